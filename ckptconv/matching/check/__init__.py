"""Run the target with the proposed weights, compare its outputs, and try alternatives to marked pairs."""
