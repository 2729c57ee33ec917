"""NumPy: .npy and .npz over dtypes, orders, header versions and spellings, and the ways to make a zip."""

from __future__ import annotations

import io
import random
import struct
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np

from .common import Case, Outward, Values, array, dtype, some_name, some_shape, strided

PLAIN = (
    "?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16",
)  # fmt: skip
ODD = ("S3", "U2", "S0", "U0", "f16", "c32", "M8[s]", "m8[ns]", "V3", "V5", [("x", "<f4"), ("y", "<i2")], "O",
       "bfloat16", "float8_e4m3fn", "float8_e5m2", "int4")  # fmt: skip
SPELLED = ("f4", "=f4", "float32", "<f", "d", "|f4", ">b1", "<b1", "<u1", ">i1", "?", "b", "<i4", ">i4", "|i1", "<c8",
           ">c16", "|S3", "<S3", ">U2", "S3", "a3", "|U2", "<V2", "|V2", ">V2", "|V1", "<f1", "V", "<i3", "|O8",
           "f8,i4", "(2,)f4", "<M8", "|b1", "<f2", "=?", " <f4", "<f4 ", "<F4", "<f04", "<f4\\n",
           "\\x3cf4", "<L", "<q", "l")  # fmt: skip

REFUSED = {
    "whose dtype no checkpoint holds": "a dtype that is not a tensor's",
    "holds [0-9]+ strings without characters": "many strings without characters",
    "not a dictionary of descr|values of the wrong kind": "a header that NumPy does not write",
    "needs .* bytes after byte|follow the end of the pickle": "bytes after the array",
    "taken for one another": "members that are taken for one another",
    "compressed by method": "bzip2 or LZMA",
    "prepended to the zip|bytes or a comment follow the end": "a zip within other bytes",
    "members other than .npy": "a member that is not called .npy",
    "has a NUL in its name": "a NUL in a name",
    "another name in its local header|is not named in UTF-8": "a zip whose headers disagree",
    "without any .npy member": "no array",
    "an empty array of objects": "objects",
    "NumPy's files have no dtype (string|bfloat16|float8)": "a dtype that NumPy's files have not",
    "called after|name is too long": "a name that is no file name",
}
LENIENT = {
    "not a valid dtype descriptor: '[<>|]f1'": "a float8 of ml_dtypes, which NumPy writes and does not read",
    "; .*: (arrays whose dtype no checkpoint holds|members other than .npy)": "an array that we leave out",
    r"Cannot parse header.*\dL": "sizes like 3L, which NumPy reads only where its tokeniser likes the rest",
}


def oracle() -> str:
    return f"numpy {np.__version__}"


# --- arrays -----------------------------------------------------------------------------------------------------


def some_array(choose: random.Random) -> np.ndarray:
    """An array of any dtype, byte order and strides."""
    kind: Any = choose.choice(PLAIN if choose.random() < 0.75 else ODD)
    shape = some_shape(choose)
    if kind == "O":
        return objects(choose)
    item = np.dtype(kind) if isinstance(kind, list) else dtype(kind)
    if item.kind not in "V" and choose.random() < 0.3:
        item = item.newbyteorder(choose.choice("<>="))
    if item.kind in "SU":
        words = [
            "".join(choose.choice("aé日z") for _ in range(choose.randint(0, 2))) for _ in range(int(np.prod(shape)))
        ]
        if item.kind == "S":
            return np.array([w.encode()[:3] for w in words], item).reshape(shape)
        return np.array(words, item).reshape(shape)
    return strided(choose, array(choose, item, shape))


def objects(choose: random.Random) -> np.ndarray:
    """An array of objects: containers of arrays."""
    out = np.empty(choose.choice(((), (), (1,), (2,))), object)
    for i in np.ndindex(*out.shape):
        out[i] = container(choose, 2) if out.shape == () else choose.choice((leaf, lambda c: container(c, 1)))(choose)
    return out


def leaf(choose: random.Random) -> Any:
    made = array(choose, np.dtype(choose.choice(PLAIN)).newbyteorder(choose.choice("<>")), some_shape(choose, 3))
    made = (
        np.asfortranarray(made)
        if choose.random() < 0.3
        else made[::-1]
        if made.ndim and choose.random() < 0.2
        else made
    )
    return made if choose.random() < 0.9 else choose.choice((3, 0.5, "text", None, True, b"raw"))


def container(choose: random.Random, depth: int) -> Any:
    inner = lambda: container(choose, depth - 1) if depth and choose.random() < 0.3 else leaf(choose)  # noqa: E731
    many = range(choose.randint(1, 3))
    match choose.randrange(4):
        case 0:
            return [inner() for _ in many]
        case 1:
            return tuple(inner() for _ in many)
        case 2:
            return OrderedDict((f"k{i}", inner()) for i in many)
    return {choose.choice((f"k{i}", i)): inner() for i in many}


def flat(value: Any, name: str, out: Values) -> None:
    """The arrays in an array of objects, under our names for them."""
    if isinstance(value, np.ndarray) and value.dtype != object:
        out[name] = value
    elif isinstance(value, (dict, list, tuple)):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            flat(inner, f"{name}.{key}" if name else str(key), out)


def named(name: str, found: Any, out: Values) -> None:
    """One array as we would name and type it."""
    if found.dtype == object:
        root = found.item() if found.shape == () else dict(enumerate(found.reshape(-1).tolist()))
        flat(root, name, out)
    elif found.dtype in (np.dtype("V2"), np.dtype("V1")):
        out[name] = found.view("u1" if found.dtype.itemsize == 1 else dtype("bfloat16"))
    else:
        out[name] = found


# --- files ------------------------------------------------------------------------------------------------------


def npy(choose: random.Random) -> bytes:
    """By NumPy, with one of its versions; or by hand, as other writers and none might spell a header."""
    out = io.BytesIO()
    if choose.random() < 0.75:
        made = some_array(choose)
        version = choose.choice((None, None, (1, 0), (2, 0), (3, 0)))
        np.lib.format.write_array(out, made, version=version, allow_pickle=True)
        return out.getvalue() + (b"more" if choose.random() < 0.02 else b"")
    return by_hand(choose)


def by_hand(choose: random.Random) -> bytes:
    descr, shape = choose.choice(SPELLED), some_shape(choose, 3)
    spelled = {
        0: str(shape), 1: str(shape).replace(",)", ", )"), 2: str(shape).replace(" ", ""),
        3: "(" + "".join(f"{n}L, " for n in shape) + ")", 4: str(list(shape)), 5: str(shape).replace("(", "( "),
        6: "(" + ", ".join(hex(n) for n in shape) + ",)", 7: "(True, 2)", 8: "(-1,)", 9: "(2)", 10: "(1_0,)",
        11: "(+2,)",
        12: "(\n2,\n)", 13: "(2.0,)", 14: "(02,)",
    }[choose.choice((0, 0, 0, 0, 1, 2, 3, 3, choose.randrange(15)))]  # fmt: skip
    fortran = choose.choice(("True", "False", "False", "False", choose.choice(("0", "1", "None", "not 1"))))
    rows = [f"'descr': '{descr}'", f"'fortran_order': {fortran}", f"'shape': {spelled}"]
    choose.shuffle(rows)
    if choose.random() < 0.1:
        rows = choose.choice((rows[:2], [*rows, rows[0]], [*rows, "'more': 1"], [r.replace("'", '"') for r in rows]))
    glue = choose.choice((", ", ",", " , ", ",\n"))
    text = "{" + glue.join(rows) + choose.choice((", ", "", ",", " ")) + "}"
    text += choose.choice((" " * choose.randint(0, 70) + "\n", "\n", "", "\0", " # comment", ";", "\t\n"))
    text = choose.choice(("", "", "", " ", "\n")) + text
    raw = text.replace("\\n", "\n").encode()
    version = choose.choice(((1, 0), (1, 0), (2, 0), (3, 0), (1, 1), (4, 0), (0, 0)))
    head = b"\x93NUMPY" + bytes(version) + struct.pack("<H" if version < (2, 0) else "<I", len(raw)) + raw
    try:
        width = np.dtype(descr).itemsize
    except Exception:
        width = 4
    size = width * int(np.prod(shape)) + choose.choice((0, 0, 0, 0, 1, -1))
    body = bytes(max(0, size)) if descr.strip("<>|=")[:1] in ("S", "U", "a") else choose.randbytes(max(0, size))
    return head + body


def npz(choose: random.Random, path: Path) -> None:
    names = {some_name(choose) for _ in range(choose.randint(0, 4))}
    if choose.random() < 0.5:
        arrays = {n: some_array(choose) for n in names if n not in ("file", "args", "kwds")}
        (np.savez_compressed if choose.random() < 0.5 else np.savez)(path, **arrays)
        return
    method = choose.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_DEFLATED))
    method = choose.choice((zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)) if choose.random() < 0.05 else method
    out: Any = Unseekable() if choose.random() < 0.3 else io.BytesIO()
    with zipfile.ZipFile(out, "w", method, allowZip64=True) as z:
        for n in names:
            odd = ("../", "/", "a\\", "./") if choose.random() < 0.1 else ("", "")
            info = zipfile.ZipInfo(
                choose.choice(odd) + n + (".npy" if choose.random() < 0.9 else choose.choice(("", ".NPY", ".npy.npy")))
            )
            info.compress_type = method if choose.random() < 0.8 else zipfile.ZIP_STORED
            if choose.random() < 0.2:
                info.extra = struct.pack("<HHI", choose.choice((0xCAFE, 0x5455, 0x9999)), 4, 7)
            with z.open(info, "w", force_zip64=choose.random() < 0.3) as f:
                f.write(npy(choose))
        if choose.random() < 0.1:
            z.writestr("README.txt", b"words")
        if choose.random() < 0.05:
            z.mkdir("folder") if hasattr(z, "mkdir") else z.writestr("folder/", b"")
        if choose.random() < 0.03:
            z.comment = b"a comment"
    raw = out.getvalue()
    path.write_bytes((b"MZ" if choose.random() < 0.02 else b"") + raw + (b"\0" if choose.random() < 0.02 else b""))


class Unseekable(io.RawIOBase):
    """A stream: sizes and checksums follow each member."""

    def __init__(self) -> None:
        self.out = io.BytesIO()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        return self.out.write(data)

    def getvalue(self) -> bytes:
        return self.out.getvalue()


def read_npy(path: Path) -> Values:
    out: Values = {}
    if path.is_dir():
        return {unquote(p.stem): np.load(p) for p in path.iterdir()}
    found = np.load(path, allow_pickle=True)
    named("" if found.dtype == object else path.stem, found, out)
    return out


def read_npz(path: Path) -> Values:
    out: Values = {}
    with np.load(path, allow_pickle=True) as z:
        for n in z.files:
            found = z[n]
            if isinstance(found, np.ndarray):
                named(n, found, out)
    return out


def make(choose: random.Random, folder: Path) -> Case:
    if choose.random() < 0.5:
        path = folder / "w.npy"
        path.write_bytes(npy(choose))
        return Case(path, "npy", read_npy, folder / "back")
    path = folder / "m.npz"
    npz(choose, path)
    return Case(path, "npz", read_npz, folder / "back.npz")


OUTWARD = (Outward("w.npz", "npz", PLAIN, read_npz), Outward("w", "npy", PLAIN, read_npy))
