"""Pair modules, and tensors that are pieces of others."""
