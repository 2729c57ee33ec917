"""Verify output: read it back, compare it, check hashes."""
