"""Convert many checkpoints at once: find, plan, run, resume."""
