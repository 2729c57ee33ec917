"""Find how axes, gates and parts of tensors move."""
