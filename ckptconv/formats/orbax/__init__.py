"""Orbax: checkpoints of JAX, which are zarr arrays in an OCDBT database or in a folder. See folder.py."""
