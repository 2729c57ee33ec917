"""The contract of a format as tests: subclass `FormatTests`, name the format, and pytest does the rest.

    from ckptconv.testing import FormatTests, Subject

    class TestMine(FormatTests):
        @pytest.fixture
        def subject(self):
            return Subject("mine", "checkpoint.mine")

The format must be in the table (ours, or the entry point group `ckptconv.formats`). Tensors that its writer cannot hold
(`Writer.cannot_hold`) must be refused; all others must be read back bit for bit. For any input bytes, the reader must
return a Checkpoint or raise a CkptError.
"""

from ..moves.part import c_strides
from .contract import FormatTests, Subject
from .samples import NAMES, assert_same, bits, edges, files_of, holdable, odd_names, read, survives, write, zoo

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
