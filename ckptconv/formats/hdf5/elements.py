"""The dtype of an HDF5 type, by its class, size, fields and byte order; runs only in the child process."""

from __future__ import annotations

from typing import Any

from ...dtypes import DTYPES


def element(kind: Any, attrs: dict[str, Any]) -> tuple[str, bool, str]:
    """Map an HDF5 type to (dtype or '', big-endian, note). Without a dtype, the note says why it is not a tensor."""
    import h5py

    h5t = h5py.h5t
    group, size = kind.get_class(), int(kind.get_size())
    if group == h5t.FLOAT:
        return _float(kind, size)
    if group == h5t.INTEGER:
        return _integer(kind, size)
    if group == h5t.ENUM:
        return _enumeration(kind, size)
    if group == h5t.STRING:
        return "string", False, ""
    if group == h5t.OPAQUE:
        return _opaque(size, str(attrs.get("dtype", "")))
    if group == h5t.COMPOUND:
        name, swap = _complex(kind, size)
        if name:
            return name, swap, ""
    classes = {h5t.COMPOUND: "compound", h5t.REFERENCE: "reference", h5t.VLEN: "variable-length", h5t.ARRAY: "array"}
    return "", False, f"its elements are of the HDF5 class {classes.get(group, group)}, which is not a tensor"


def _enumeration(kind: Any, size: int) -> tuple[str, bool, str]:
    """Booleans are enumerations in HDF5; any other enumeration is read as its integers."""
    names = {kind.get_member_name(i): int(kind.get_member_value(i)) for i in range(min(kind.get_nmembers(), 3))}
    if size == 1 and names == {b"FALSE": 0, b"TRUE": 1}:
        return "bool", False, ""
    name, swap, _ = _integer(kind.get_super(), size)
    return name, swap, "an enumeration, read as its numbers; their names are dropped"


def _complex(kind: Any, size: int) -> tuple[str, bool]:
    """The complex dtype of a compound of two equal floats named r and i, as h5py writes it; '' for other compounds."""
    import h5py

    if kind.get_nmembers() != 2 or [kind.get_member_name(i) for i in (0, 1)] != [b"r", b"i"]:
        return "", False
    parts = [kind.get_member_type(i) for i in (0, 1)]
    offsets = [kind.get_member_offset(i) for i in (0, 1)]
    half, swap, _ = _float(parts[0], size // 2) if parts[0].get_class() == h5py.h5t.FLOAT else ("", False, "")
    name = {"float32": "complex64", "float64": "complex128"}.get(half, "")
    return (name, swap) if name and parts[0].equal(parts[1]) and offsets == [0, size // 2] else ("", False)


def _float(kind: Any, size: int) -> tuple[str, bool, str]:
    import h5py

    swap = int(kind.get_order()) == 1
    fields = tuple(int(n) for n in kind.get_fields())
    rows: dict[tuple[int, ...], tuple[int, str]] = {
        (2, 15, 10, 5, 0, 10): (15, "float16"),
        (2, 15, 7, 8, 0, 7): (127, "bfloat16"),
        (4, 31, 23, 8, 0, 23): (127, "float32"),
        (8, 63, 52, 11, 0, 52): (1023, "float64"),
        (1, 7, 3, 4, 0, 3): (7, "float8_e4m3fn"),  # by its bias; HDF5 2.0 calls it F8E4M3
        (1, 7, 2, 5, 0, 2): (15, "float8_e5m2"),
    }
    if kind.get_norm() != h5py.h5t.NORM_IMPLIED or kind.get_precision() != 8 * size or kind.get_offset():
        return "", False, f"a float of {size} bytes whose mantissa has no implied bit, which no framework uses"
    bias, name = rows.get((size, *fields), (0, ""))
    if not name or bias != int(kind.get_ebias()) or int(kind.get_order()) not in (0, 1):
        return "", False, f"a float of {size} bytes with the fields {fields}, which no framework uses"
    return name, swap, ""


def _integer(kind: Any, size: int) -> tuple[str, bool, str]:
    if size not in (1, 2, 4, 8) or kind.get_precision() != 8 * size or kind.get_offset():
        return "", False, f"an integer of {kind.get_precision()} bits, which no framework uses"
    name = f"{'int' if int(kind.get_sign()) else 'uint'}{8 * size}"
    return name, size > 1 and int(kind.get_order()) == 1, ""


def _opaque(size: int, dtype: str) -> tuple[str, bool, str]:
    """Keras writes bfloat16 and float8 as opaque bytes; newer versions add an attribute with the dtype."""
    row = DTYPES.get(dtype)
    if row and row.itemsize == size and row.kind in "fiu":
        return dtype, False, ""
    if size == 2:
        return "bfloat16", False, "2 opaque bytes per element: assumed to be bfloat16, as Keras writes it"
    if size == 1:
        return "uint8", False, "1 opaque byte per element, perhaps a float8 that the file does not name; read as uint8"
    return "", False, f"{size} opaque bytes per element"
