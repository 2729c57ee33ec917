"""Random pickles of torch's own reduction grammar: what torch.load makes of each, and what we do.

    grammar.py CASES [SEED]

Each case is a file: an archive (stored or deflated, little- or big-endian) or a legacy stream. Its pickle is made
opcode by opcode of all that torch's `__reduce_ex__` writes and has written, and of what an attacker would write
instead: storages of the right type and of a wrong one, under one key or two; every _rebuild_* function with its
options; states, BUILD, REDUCE and NEWOBJ; containers made in each way; numpy arrays of each byte order; protocols 2 to
5. Our tensors must be those of torch.load, with and without weights_only, bit for bit, or the file is refused: never
another value. torch runs in a child process of bounded memory and file sizes.
"""

from __future__ import annotations

import io
import json
import random
import struct
import subprocess
import sys
import tempfile
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

SIZES = {
    "Double": 8, "Float": 4, "Half": 2, "BFloat16": 2, "Long": 8, "Int": 4, "Short": 2, "Char": 1, "Byte": 1, "Bool": 1,
    "ComplexDouble": 16, "ComplexFloat": 8,
}  # fmt: skip
QUANTISED = {"QInt8": 1, "QUInt8": 1}  # those of QInt32 are rounded by torch as the processor likes
DTYPES = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1,
    "uint16": 2, "uint32": 4, "uint64": 8, "bool": 1, "complex64": 8, "float8_e4m3fn": 1,
}  # fmt: skip
BYTES = 96  # of each member
MEMBERS = 4
BATCH = 200


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value.encode())) + value.encode()


def integer(value: int) -> bytes:
    return b"K%c" % value if 0 <= value < 256 else b"J" + struct.pack("<i", value)


def several(*items: bytes) -> bytes:
    return b"(" + b"".join(items) + b"t"


def named(path: str) -> bytes:
    module, _, name = path.rpartition(".")
    return f"c{module}\n{name}\n".encode()


class Grammar:
    """One random file. `legacy`: a stream, whose storages have views."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.legacy = self.rng.random() < 0.25
        self.protocol = self.rng.choice((2, 2, 2, 3, 4, 5))
        self.python = "__builtin__" if self.protocol == 2 else "builtins"
        self.kinds: dict[int, tuple[str, int]] = {}  # of each member: its type and number of elements
        for key in range(MEMBERS):
            kind = self.rng.choice(list(SIZES))
            self.kinds[key] = kind, BYTES // SIZES[kind]
        self.used: dict[int, None] = {}
        self.memo: list[int] = []
        self.next = 0

    def odd(self, chance: float = 0.02) -> bool:
        return self.rng.random() < chance

    def pick(self, *makers: Callable[[], bytes]) -> bytes:
        return self.rng.choice(makers)()

    def call(self, path: str, *args: bytes) -> bytes:
        how = b"\x81" if self.odd(0.004) else b"R"
        return named(path) + several(*args) + how

    def keep(self, body: bytes) -> bytes:
        """Memorise a value, to be used again."""
        if self.next > 250:
            return body
        self.memo.append(self.next)
        self.next += 1
        return body + b"q%c" % self.memo[-1]

    # --- storages and arguments

    def storage(self, kind: str = "", key: int = -1) -> tuple[bytes, str, int]:
        """Opcodes, type, elements."""
        fit = [k for k, (own, _) in self.kinds.items() if kind in QUANTISED or own not in QUANTISED or self.odd()]
        key = self.rng.choice(fit or [0]) if key < 0 else key
        own, count = self.kinds[key]
        if kind and kind != own and not self.odd(0.3):
            fresh = kind, BYTES // (SIZES | QUANTISED)[kind]
            self.kinds[key] = own, count = fresh if key not in self.used else (own, count)
        if self.odd():
            own = self.rng.choice(list(SIZES))
            count = BYTES // SIZES[own]
        self.used[key] = None
        name = "torch.storage.UntypedStorage" if self.odd() else f"torch.{own}Storage"
        if name.endswith("Untyped") or "Untyped" in name:
            own, count = "Byte", BYTES
        shown = count + 1 if self.odd(0.01) else count
        said = [text("storage"), named(name), text(str(key)), text("cpu"), integer(shown)]
        if self.legacy:
            view = b"N"
            if self.odd(0.01):  # which is refused
                start = self.rng.randrange(count)
                size = self.rng.randint(0, count - start)
                other = self.rng.choice((900 + key, 950 + self.rng.randrange(20), key))
                view, count = several(text(str(other)), integer(start), integer(size)), size
            said.append(view)
        return several(*said) + b"Q", own, count

    def place(self, count: int) -> tuple[bytes, bytes, bytes, list[int]]:
        """Offset, shape and strides that lie within `count` elements, mostly."""
        shape = [self.rng.choice((0, 1, 2, 2, 3)) for _ in range(self.rng.randint(0, 3))]
        strides, step = [], 1
        for n in reversed(shape):
            strides.insert(0, step)
            step *= max(n, 1)
        if self.odd(0.3):
            order = self.rng.sample(range(len(shape)), len(shape))
            shape, strides = [shape[i] for i in order], [strides[i] for i in order]
        strides = [0 if self.odd() else s for s in strides]
        last = sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) if all(shape) else 0
        offset = self.rng.randint(0, max(0, count - last - 1)) + (count if self.odd(0.01) else 0)
        return integer(offset), several(*map(integer, shape)), several(*map(integer, strides)), shape

    def rest(self, kind: str, extra: bytes = b"") -> list[bytes]:
        """requires_grad, hooks, [dtype,] [metadata]"""
        real = kind in ("Double", "Float", "Half", "BFloat16", "ComplexDouble", "ComplexFloat", "float32", "float64")
        grad = b"\x88" if self.odd(0.2) and (real or self.odd()) else b"\x89"
        out = [grad, self.call("collections.OrderedDict"), *([extra] if extra else [])]
        if self.odd(0.15):
            flags = {"conj": kind.lower().startswith("complex") or self.odd(), "neg": self.odd(0.3), "odd": self.odd()}
            items = b"".join(text(k) + b"\x88s" for k, on in flags.items() if on)
            out.append(b"}" + items)
        return out

    # --- tensors

    def v1(self) -> bytes:
        where, _, count = self.storage()
        return self.call("torch._utils._rebuild_tensor", where, *self.place(count)[:3])

    def v2_arguments(self) -> bytes:
        where, kind, count = self.storage()
        return several(where, *self.place(count)[:3], *self.rest(kind))

    def v2(self) -> bytes:
        return named("torch._utils._rebuild_tensor_v2") + self.v2_arguments() + (b"\x81" if self.odd(0.01) else b"R")

    def v3(self) -> bytes:
        kind = self.rng.choice(list(DTYPES))
        where, _, _ = self.storage()
        place = self.place(BYTES // DTYPES[kind])[:3]
        return self.call("torch._utils._rebuild_tensor_v3", where, *place, *self.rest(kind, named("torch." + kind)))

    def state(self) -> bytes:
        """Attributes, harmless or not, in each form."""
        odd = ("data", "grad", "real", "requires_grad", "_w", "__class__")
        word = self.rng.choice(odd if self.odd(0.2) else ("tag", "grad_mean", "ignored"))
        value = self.dense() if word in ("data", "real", "grad") or self.odd(0.2) else b"\x89"
        said = self.rng.choice((b"N", b"}", b"}" + text(word) + value + b"s"))
        return several(said, self.rng.choice((b"N", b"}"))) if self.odd(0.2) else said

    def parameter(self) -> bytes:
        false, hooks = b"\x89", self.call("collections.OrderedDict")
        return self.pick(
            lambda: self.call("torch._utils._rebuild_parameter", self.dense(), false, hooks),
            lambda: self.call("torch._utils._rebuild_parameter_with_state", self.dense(), false, hooks, self.state()),
            lambda: (
                named("torch.nn.parameter.Parameter") + several(self.dense(), false) + self.rng.choice((b"R", b"\x81"))
            ),
        )

    def typed(self) -> bytes:
        kind = self.rng.choice(
            ("torch.Tensor", "torch._tensor.Tensor", "torch.nn.parameter.Parameter", "torch.nn.parameter.Buffer")
        )
        version = self.rng.choice(("_rebuild_from_type_v2", "_rebuild_from_type_v2", "_rebuild_from_type"))
        make = named("torch._utils._rebuild_tensor_v2")
        return self.call(f"torch._tensor.{version}", make, named(kind), self.v2_arguments(), self.state())

    def built(self) -> bytes:
        where, _, count = self.storage()
        if self.odd(0.6):
            hooks = self.call("collections.OrderedDict")
            return self.pick(self.v2, self.parameter) + several(b"\x89", b"\x89", hooks) + b"b"
        states = (
            lambda: several(b"\x89", b"\x89", self.call("collections.OrderedDict")),
            lambda: several(where, *self.place(count)[:3]),
            lambda: several(self.dense(), b"N", self.call("collections.OrderedDict"), b"\x89", b"\x89"),
        )
        return self.pick(self.v2, self.parameter, self.made) + self.pick(*states) + b"b"

    def made(self) -> bytes:
        kind = self.rng.choice(("Float", "Double", "Long", "Byte", ""))
        where, _, _ = self.storage(kind)
        args = self.pick(
            lambda: b")", lambda: several(where), lambda: several(b"](K\1K\2e"), lambda: several(integer(2)),
            lambda: several(self.dense()),
        )  # fmt: skip
        return named(f"torch.{kind}Tensor") + args + self.rng.choice((b"R", b"\x81"))

    def quantised(self) -> bytes:
        where, _, count = self.storage(self.rng.choice(list(QUANTISED)))
        offset, shape, strides, sizes = self.place(count)
        scale, zero = b"G" + struct.pack(">d", 0.25), integer(self.rng.randrange(3))
        how = several(named("torch.per_tensor_affine"), scale, zero)
        if self.odd(0.5) and sizes:
            axis = self.rng.randrange(len(sizes)) + self.odd()
            count = sizes[min(axis, len(sizes) - 1)] + self.odd()
            scales, zeros = b"](" + scale * count + b"e", b"](" + zero * count + b"e"
            scheme = "per_tensor_affine" if self.odd() else "per_channel_affine"
            how = several(named("torch." + scheme), scales, zeros, integer(axis))
        rest = [b"\x89", self.call("collections.OrderedDict")]
        return self.call("torch._utils._rebuild_qtensor", where, offset, shape, strides, how, *rest)

    def device(self) -> bytes:
        to = self.pick(
            lambda: b"N", lambda: named("torch.float32"), lambda: named("torch." + self.rng.choice(list(DTYPES)))
        )
        if self.odd(0.3):
            return self.call("torch._utils._rebuild_device_tensor_from_numpy", self.array(), to, text("cpu"), b"\x89")
        path = "torch._utils._rebuild_device_tensor_from_cpu_tensor"
        return self.call(path, self.dense(), to, text("cpu"), b"\x89")

    def array(self) -> bytes:
        spelled = self.rng.choice(("f4", "<f4", ">f4", "=f4", "i8", ">i8", "u1", "b1", ">c8", "f2"))
        flags = [b"\x89", b"\x89" if self.odd(0.1) else b"\x88"]
        dtype = self.call("numpy.dtype", text(spelled), *flags)
        order = self.rng.choice("<>=|")
        if not self.odd(0.1):
            end = b"J\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00"
            dtype += several(b"K\x03", text(order), b"NNN", end) + b"b"
        shape = self.rng.choice(((2,), (2, 3), (), (0, 2)))
        size = int(spelled[-1])
        for n in shape:
            size *= n
        raw = b"C%c" % size + self.rng.randbytes(size) if spelled != "b1" else b"C%c" % size + b"\1" * size
        if self.odd(0.2):
            where = named("numpy._core.numeric._frombuffer")
            return where + several(raw, dtype, several(*map(integer, shape)), text("C")) + b"R"
        core = self.rng.choice(("numpy.core", "numpy._core"))
        fresh = self.call(f"{core}.multiarray._reconstruct", named("numpy.ndarray"), several(b"K\0"), b"C\1b")
        fortran = self.rng.choice((b"\x88", b"\x89"))
        return fresh + several(b"K\1", several(*map(integer, shape)), dtype, fortran, raw) + b"b"

    def dense(self) -> bytes:
        if self.memo and self.odd(0.1):
            return b"h%c" % self.rng.choice(self.memo)
        return self.keep(self.pick(self.v2, self.v2, self.v2, self.v1, self.v3))

    def tensor(self) -> bytes:
        if self.odd(0.5):
            return self.dense()
        return self.pick(
            self.parameter, self.parameter, self.typed, self.typed, self.quantised, self.device, self.array, self.array,
            self.built if self.odd(0.5) else self.dense, self.made if self.odd(0.4) else self.dense,
        )  # fmt: skip

    # --- containers

    def key(self) -> bytes:
        if self.odd(0.1):
            return self.rng.choice((integer(self.rng.randrange(3)), b"\x88", b"N", several(text("t"), integer(1))))
        return text(f"w{self.rng.randrange(40)}")

    def pairs(self, depth: int) -> list[tuple[bytes, bytes]]:
        return [(self.key(), self.value(depth)) for _ in range(self.rng.randint(1, 3))]

    def value(self, depth: int) -> bytes:
        if depth and self.odd(0.3):
            return self.pick(lambda: self.mapping(depth - 1), lambda: self.listed(depth - 1))
        return self.tensor()

    def mapping(self, depth: int) -> bytes:
        pairs = self.pairs(depth)
        items = b"(" + b"".join(k + v for k, v in pairs) + b"u"
        ordered = named("collections.OrderedDict")
        as_list = b"](" + b"".join(b"](" + k + v + b"e" for k, v in pairs) + b"e"
        as_tuples = several(*(several(k, v) for k, v in pairs))
        as_dict = b"}" + items
        given = self.rng.choice((as_list, as_tuples, as_dict))
        how = b"\x81" if self.odd(0.05) else b"R"
        kinds = (
            ordered,
            ordered,
            named(self.python + ".dict"),
            named("collections.Counter") if self.odd(0.3) else ordered,
        )
        return self.pick(
            lambda: b"}" + items, lambda: b"}" + items,
            lambda: ordered + b")R" + items,
            lambda: ordered + b")R" + items + b"}" + text("_metadata") + b"}sb",
            lambda: self.rng.choice(kinds) + several(given) + how,
            lambda: named("collections.defaultdict") + several(named(self.python + ".dict"), given) + how,
            lambda: named("collections.defaultdict") + several(named(self.python + ".list")) + b"R" + items,
            lambda: b"}" + items + b"}" + text("a") + b"Nsb" if self.odd(0.2) else b"}" + items,
        )  # fmt: skip

    def listed(self, depth: int) -> bytes:
        items = [self.value(depth) for _ in range(self.rng.randint(1, 3))]
        body = b"](" + b"".join(items) + b"e"
        return self.pick(
            lambda: body, lambda: several(*items), lambda: named(self.python + ".list") + several(body) + b"R",
            lambda: named(self.python + ".list") + several(body) + (b"\x81" if self.odd(0.1) else b"R"),
            lambda: named(self.python + ".tuple") + several(body) + self.rng.choice((b"R", b"\x81")),
            lambda: b"](" + b"".join(items) + (b"\x90" if self.odd(0.1) else b"e"),
        )  # fmt: skip

    # --- files

    def file(self) -> bytes:
        body = b"}(" + b"".join(text(f"x{i}") + self.value(2) for i in range(self.rng.randint(1, 4))) + b"u."
        frame = b"\x95" + struct.pack("<Q", len(body)) if self.protocol >= 4 and self.odd(0.5) else b""
        pickle = b"\x80" + bytes([self.protocol]) + frame + body
        payload = {key: self.payload(key) for key in range(MEMBERS)}
        return self.stream(pickle, payload) if self.legacy else self.archive(pickle, payload)

    def payload(self, key: int) -> bytes:
        raw = self.rng.randbytes(BYTES)
        return bytes(b & 1 for b in raw) if self.kinds[key][0] == "Bool" else raw

    def archive(self, pickle: bytes, payload: dict[int, bytes]) -> bytes:
        out = io.BytesIO()
        order = self.rng.choice((b"", b"little", b"little", b"big"))
        members = {"data.pkl": pickle, **({"byteorder": order} if order else {}), "version": b"3\n"}
        members |= {f"data/{key}": raw for key, raw in payload.items()}
        deflated = self.odd(0.2)
        with zipfile.ZipFile(out, "w") as z:
            for name, raw in members.items():
                method = zipfile.ZIP_DEFLATED if deflated and self.odd(0.6) else zipfile.ZIP_STORED
                z.writestr(zipfile.ZipInfo("archive/" + name), raw, method)
        return out.getvalue()

    def stream(self, pickle: bytes, payload: dict[int, bytes]) -> bytes:
        magic = b"\x80\x02\x8a\x0a" + bytes.fromhex("6cfc9c46f9206aa85019") + b"."
        little = b"\x88" if self.odd(0.7) else b"\x89"
        head = magic + b"\x80\x02M\xe9\x03." + b"\x80\x02}" + text("little_endian") + little + b"s."
        keys = b"\x80\x02](" + b"".join(text(str(k)) for k in self.used) + b"e."
        data = b"".join(struct.pack("<q", self.kinds[k][1]) + payload[k] for k in self.used)
        return head + pickle + keys + data + (b"more" if self.odd() else b"")


# --- what torch makes of it ---------------------------------------------------------------------------------------


def shown(raw: bytes, kind: str, computed: bool = False) -> str:
    """Bytes in hexadecimal. Any but 0 is true, which torch writes as 1 when it copies.

    computed: negated or conjugated, where torch gives zeros a sign and NaNs a payload as its vector unit likes.
    """
    import ml_dtypes
    import numpy as np

    if computed and kind != "bool":
        array = np.frombuffer(raw, getattr(ml_dtypes, kind, kind))
        array = array.view(f"f{array.itemsize // 2}") if kind.startswith("complex") else array
        raw = np.where(np.isnan(array), np.array(np.nan, array.dtype), array + np.array(0, array.dtype)).tobytes()
    return (bytes(b > 0 for b in raw) if kind == "bool" else raw).hex()


def flat(value: Any, name: str, out: dict[str, Any]) -> None:
    """Tensors and arrays by the names that we give them."""
    import numpy as np
    import torch

    if isinstance(value, torch.Tensor):
        computed = value.is_conj() or value.is_neg()
        t = value.detach().resolve_conj().resolve_neg()
        t = t.dequantize() if t.is_quantized else t
        raw = t.contiguous().clone().reshape(-1).view(torch.uint8).numpy().tobytes() if t.numel() else b""
        kind = str(t.dtype).removeprefix("torch.")
        out[name] = [kind, list(t.shape), shown(raw, kind, computed)]
    elif isinstance(value, np.ndarray):
        native = np.ascontiguousarray(value.astype(value.dtype.newbyteorder("="))).reshape(value.shape)
        out[name] = [str(native.dtype), list(native.shape), shown(native.tobytes(), str(native.dtype))]
    elif isinstance(value, dict):
        for key, inner in value.items():
            part = "(" + ", ".join(map(str, key)) + ")" if isinstance(key, tuple) else str(key)
            flat(inner, f"{name}.{part}" if name else part, out)
    elif isinstance(value, (list, tuple)):
        for i, inner in enumerate(value):
            flat(inner, f"{name}.{i}", out)


def torchs() -> None:
    """In the child: paths come in, one JSON line for each goes out."""
    import resource
    import warnings

    import torch

    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_AS, (16 * 2**30, 16 * 2**30))
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20))
    torch.set_num_threads(1)
    for line in sys.stdin:
        said = []
        for only in (True, False):
            found: dict[str, Any] = {}
            try:
                flat(torch.load(line.strip(), weights_only=only, map_location="cpu"), "", found)
                said.append(found)
            except Exception as e:
                said.append(f"{type(e).__name__}: {e}"[:200])
        print(json.dumps(said), flush=True)


def ours(path: Path) -> dict[str, Any] | str:
    from ckptconv.errors import CkptError
    from ckptconv.formats.detect import open_checkpoint
    from ckptconv.formats.table import Reading

    try:
        found = open_checkpoint(str(path), Reading(densify=True))
        out = {}
        for name, t in found.items():
            if not t.role:  # else an attribute of a tensor
                computed = bool({"conj", "neg"} & {op for part in t.parts for op in part.ops})
                out[name] = [str(t.dtype), list(t.shape), shown(t.numpy().tobytes(), str(t.dtype), computed)]
        return out
    except CkptError as e:
        return f"{type(e).__name__}: {e.message}"


def compared(mine: dict[str, Any] | str, theirs: list[Any]) -> tuple[str, str]:
    """A word for the outcome, and what differs."""
    values = [t for t in theirs if not isinstance(t, str)]
    if isinstance(mine, str):
        if "cannot be read as" in mine:
            return "only the last net caught it", mine
        return ("both refuse" if not values else "we refuse"), ""
    if not values:
        return ("torch crashes" if "torch crashed" in theirs else "torch refuses"), ""
    for found in values:
        for name in mine.keys() | found.keys():
            if mine.get(name) != found.get(name):
                return "DIFFERENT", f"{name}: ours {mine.get(name)}, torch's {found.get(name)}"
    return "equal", ""


class Child:
    """A process in which torch loads; started anew when a file was its death."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[str] | None = None

    def load(self, path: Path) -> list[Any]:
        if self.process is None:
            pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
            self.process = subprocess.Popen([sys.executable, __file__, "--torch"], text=True, **pipes)
        out, back = self.process.stdin, self.process.stdout
        assert out is not None
        assert back is not None
        out.write(f"{path}\n")
        out.flush()
        line = back.readline()
        if not line:
            self.end()
        return list(json.loads(line)) if line else ["torch crashed", "torch crashed"]

    def end(self) -> None:
        if self.process is not None:
            with self.process:
                pass
        self.process = None


def run(cases: int, seed: int, folder: Path) -> tuple[Counter[str], list[str]]:
    """Make and compare; outcomes, and a line for each difference."""
    outcomes: Counter[str] = Counter()
    different = []
    child = Child()
    for number in range(seed, seed + cases):
        path = folder / f"{number % BATCH}.pt"
        path.write_bytes(Grammar(number).file())
        outcome, what = compared(ours(path), child.load(path))
        outcomes[outcome] += 1
        if what:
            different.append(f"seed {number}: {outcome}: {what}")
            (folder / f"seed-{number}.pt").write_bytes(path.read_bytes())
    child.end()
    return outcomes, different


if __name__ == "__main__":
    if sys.argv[1:] == ["--torch"]:
        torchs()
    else:
        count, first = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
        with tempfile.TemporaryDirectory() as home:
            outcomes, different = run(count, first, Path(home))
        print(f"{count} cases from seed {first}: " + ", ".join(f"{n} {word}" for word, n in outcomes.most_common()))
        print("\n".join(different[:20]))
        sys.exit(bool(different))
