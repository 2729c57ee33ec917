"""How axes, gates and parts of tensors move."""
