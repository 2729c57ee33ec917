"""Strided moves between stored data and memory: the kernel."""
