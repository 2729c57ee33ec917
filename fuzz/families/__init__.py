"""What the fuzzer's bytes become: a family for each kind of reader, with ways to lay inputs out as files, and seeds.

u8      which way, modulo their number; divided by it, which options of `open` (rule files: no such byte)
rest    the file itself; or, of a way that packs several files or members, records: see common.py
"""

from __future__ import annotations

from . import flax, hdf5, json, numpy, orbax, pytorch, rules, tf, zoo
from .common import LARGEST, ROOT, Family, dictionary, packed, records

FAMILIES: dict[str, Family] = {
    "tf": tf.FAMILY, "pytorch": pytorch.FAMILY, "hdf5": hdf5.FAMILY, "json": json.FAMILY, "numpy": numpy.FAMILY,
    "flax": flax.FAMILY, "orbax": orbax.FAMILY, "zoo": zoo.FAMILY, "rules": rules.FAMILY,
}  # fmt: skip

__all__ = ["FAMILIES", "LARGEST", "ROOT", "Family", "dictionary", "packed", "records"]
