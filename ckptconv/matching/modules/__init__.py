"""Pairs of modules, and tensors that are pieces of others."""
