"""Keras' two families of files, both HDF5 inside: legacy.py (one name list per layer) and v3.py (paths of objects)."""
