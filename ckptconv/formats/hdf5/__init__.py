"""HDF5: the numbers that our process and that of the HDF5 library agree on. The messages are drawn in worker.py."""

import struct

FRAME = struct.Struct("<cI")  # the kind and the size of a message
MAX_FRAME = 64 << 20
MAX_DATA = 8 << 20  # bytes of elements in a message, and about those that are read at once
PIECE = 1 << 20  # bytes of the file that may be asked for at once
RATIO = 1100  # deflate reaches 1032:1
NO_DATA = "without data"  # how the reason ends for which something is left out that no tensor could be made of
