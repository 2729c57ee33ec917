"""The interface for formats in other packages, which import from this module only.

docs/write-a-format.md shows a complete format, and `ckptconv.testing` has the tests that a format must pass. `DTYPES`
maps the names of dtypes to rows of the class `DType`.
"""

from .checkpoint import Checkpoint, Note, Tensor, contiguous, held, view
from .dtypes import DTYPES, DType, dtype
from .errors import CorruptCheckpoint, FormatError, Unrepresentable, UnsafeCheckpoint, UsageError
from .formats.placement import Patch, Placement, Slot, Writer, refuse_shards, refuse_unheld
from .formats.table import Format, Reading
from .formats.tiling import joined
from .moves.part import Coded, Held, Part, Span, c_strides, checked_count
from .output.destination import OutputFile
from .storage.files import Reader, Seen, join, read_all, sibling, split

__all__ = [
    "DTYPES",
    "Checkpoint",
    "Coded",
    "CorruptCheckpoint",
    "DType",
    "Format",
    "FormatError",
    "Held",
    "Note",
    "OutputFile",
    "Part",
    "Patch",
    "Placement",
    "Reader",
    "Reading",
    "Seen",
    "Slot",
    "Span",
    "Tensor",
    "Unrepresentable",
    "UnsafeCheckpoint",
    "UsageError",
    "Writer",
    "c_strides",
    "checked_count",
    "contiguous",
    "dtype",
    "held",
    "join",
    "joined",
    "read_all",
    "refuse_shards",
    "refuse_unheld",
    "sibling",
    "split",
    "view",
]
