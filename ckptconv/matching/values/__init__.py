"""Pairs by content, proved bit for bit."""
