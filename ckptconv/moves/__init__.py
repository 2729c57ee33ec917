"""The kernel: strided moves between stored data and memory."""
