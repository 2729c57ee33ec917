"""Propose a converter between two checkpoints, or a checkpoint and a module."""
