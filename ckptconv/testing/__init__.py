"""The contract of a format as tests: subclass `FormatTests`, name the format, and pytest does the rest.

    from ckptconv.testing import FormatTests, Subject

    class TestMine(FormatTests):
        @pytest.fixture
        def subject(self):
            return Subject("mine", "checkpoint.mine")

The format must be in the table (ours, or the entry point group `ckptconv.formats`). What its writer says it cannot
hold (`Writer.cannot_hold`) must be refused; all else must come back bit for bit. Whatever bytes a reader is given, it
makes a Checkpoint of them or raises a CkptError.
"""

from ..moves.part import c_strides
from .contract import FormatTests, Subject
from .files import assert_same, files_of, holdable, read, survives, write
from .samples import NAMES, bits, edges, odd_names, zoo

__all__ = [
    "NAMES",
    "FormatTests",
    "Subject",
    "assert_same",
    "bits",
    "c_strides",
    "edges",
    "files_of",
    "holdable",
    "odd_names",
    "read",
    "survives",
    "write",
    "zoo",
]
