"""What tests share beside fixtures."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings

from ckptconv import Checkpoint, CkptError
from ckptconv.checkpoint import held
from ckptconv.testing import Subject

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "fixtures"
SHARED = Path(os.environ.get("CKPTCONV_SHARED", ROOT.parent / "shared"))  # large checkpoints that are not shipped
# the share of random cases and of long tables of cases that tests try
EFFORT = float(os.environ.get("CKPTCONV_EFFORT", "1"))


def examples(count: int) -> settings:
    """Let a property be tried on this many examples, or fewer if less effort is asked for."""
    return settings(max_examples=max(5, int(count * EFFORT)))


# Every format that is written, as `ckptconv.testing` wants it described.
SUBJECTS = [s._replace(tries=int(s.tries * EFFORT)) for s in (
    Subject("safetensors", "model.safetensors", order=False),
    Subject("hf", "folder", order=False),
    Subject("npz", "weights.npz", metadata=False),
    Subject("npy", "folder", order=False, metadata=False),
    Subject("orbax", "checkpoint.orbax", tries=100),
    Subject("torch", "model.pt", ties=True),
    Subject("dcp", "folder", tries=50),
    Subject("tf", "model.ckpt", order=False, metadata=False),
    Subject("hdf5", "weights.hdf5", ties=True, tries=4),
    Subject("keras", "weights.h5", tries=4),
    Subject(
        "keras3", "model.weights.h5", order=False, tries=4,
        spell=lambda n: f"layers/{n.replace('/', '_')}/vars/0",
    ),
    Subject("flax", "model.msgpack", order=False, metadata=False),
)]  # fmt: skip


class Later:
    """A framework that is imported when a test first uses it: each worker collects all modules, few need all of them.
    Where it is not installed, the module is skipped."""

    def __init__(self, name: str) -> None:
        self.name = name
        if find_spec(name.partition(".")[0]) is None:
            pytest.skip(f"{name} is not installed", allow_module_level=True)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # pytest asks whatever it finds in a module
            raise AttributeError(name)
        return getattr(import_module(self.name), name)


Run = Callable[..., "subprocess.CompletedProcess[str]"]


def same(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal in shape, dtype and every bit: NaN payloads and -0.0 count."""
    if a.dtype == object or b.dtype == object:
        return a.shape == b.shape and list(map(bytes, a.flat)) == list(map(bytes, b.flat))
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()


@contextmanager
def process(rank: int, world: int = 2) -> Iterator[None]:
    """Be one process of torch among several; nothing is sent."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
    try:
        yield
    finally:
        dist.destroy_process_group()


@contextmanager
def refused(words: str = "") -> Iterator[None]:
    """Expect an error whose message the format gives itself: the last net would turn any exception into one."""
    with pytest.raises(CkptError, match=words or None) as caught:
        yield
    _is_worded(caught.value)


@contextmanager
def sound_or_refused() -> Iterator[None]:
    """Expect that nothing happens, or an error as `refused` expects it."""
    try:
        yield
    except CkptError as e:
        _is_worded(e)


def _is_worded(e: CkptError) -> None:
    assert e.__cause__ is None or not e.message.startswith("cannot be read as"), repr(e.__cause__)


def in_memory(arrays: Mapping[str, Any], **more: Any) -> Checkpoint:
    """A checkpoint of these arrays, as they are."""
    return Checkpoint({n: held(n, np.asarray(a)) for n, a in arrays.items()}, **more)


def safetensors(path: Path, head: Any, data: bytes = b"") -> Path:
    """A file of safetensors whose header is this object, or these bytes."""
    raw = head if isinstance(head, bytes) else json.dumps(head).encode()
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + data)
    return path


def legacy(path: Path, layers: dict[str, dict[str, Any]], **attrs: object) -> Path:
    """A legacy file of Keras: layers and their weights, listed in this order; those that are None are not there."""
    import h5py

    with h5py.File(path, "w") as f:
        f.attrs["layer_names"] = [n.encode() for n in layers]
        f.attrs.update(attrs)
        for layer, weights in layers.items():
            f.create_group(layer).attrs["weight_names"] = [n.encode() for n in weights]
            for name, value in weights.items():
                if value is not None:
                    f[layer][name] = value
    return path


def read_all(found: Checkpoint, largest: int = 1 << 20) -> None:
    """Read each tensor of a reasonable size: it has the shape and bytes that were promised."""
    for t in found.values():
        if t.nbytes <= largest:
            array = t.numpy()
            assert array.shape == t.shape
            assert array.dtype == object or array.nbytes == t.nbytes


def page_data(page: str) -> Any:
    """The data of a report, which its scripts draw."""
    return json.loads(page.partition('id="data">')[2].partition("</script>")[0])
