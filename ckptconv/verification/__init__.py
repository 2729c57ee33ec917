"""Prove what was written: compare, read back, hashes."""
