"""Documents that are executed: every `$ command` in a console block must print what stands below it.

    ```console
    $ ckptconv diff a.ckpt b.ckpt
    the same: 3 tensors equal
    ```

Standard output and standard error come as a terminal shows them. `...` stands for anything within a line, and alone on
its line for any lines; `[1]` at the end is the exit code (0 if there is none); `> ` continues a command. Blocks of
`pycon` are Python sessions, checked by doctest. All blocks of a document run in one folder that holds the checkpoints
made below. A bug report can be added to tests/cli/ as it was sent. `<!-- needs: torch -->` in a document names a
package without which it is skipped.

CKPTCONV_UPDATE=1 writes what is printed into the documents, for review.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from documents import fits, run, session, steps
from kit import FIXTURES, ROOT
from pickles import Call, Global, Id, archive

import ckptconv

FENCE = re.compile(r"^```(console|pycon)\n(.*?)^```$", re.M | re.S)
PAGES = [ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("docs/how-to/*.md"), *ROOT.glob("tests/cli/*.md")]
INTO_KERAS = ROOT / "docs/how-to/into-keras.md"
LONG = {"zoo", "mistakes", "tasks", "match", "help"}  # more than a second each
DOCUMENTS = [d for d in sorted(PAGES) if FENCE.search(d.read_text("utf-8"))]


# --- the checkpoints that documents speak of --------------------------------------------------------------------


def ramp(*shape: int, scale: float = 1.0) -> np.ndarray:
    """Numbers that are the same everywhere: from -scale to scale."""
    count = int(np.prod(shape))
    return (scale * (np.arange(count) * 2 / max(1, count - 1) - 1)).astype("f4").reshape(shape)


def encoder(layers: int, step: int, *, slots: bool = True) -> dict[str, np.ndarray]:
    out = {"encoder/embeddings": ramp(50, 16)}
    for i in range(layers):
        out[f"encoder/layer_{i}/dense/kernel"] = ramp(16, 32, scale=i + 1)
        out[f"encoder/layer_{i}/dense/bias"] = np.zeros(32, "f4")
        out[f"encoder/layer_{i}/norm/gamma"] = np.ones(32, "f4")
    if slots:
        out |= {f"{n}/{s}": np.zeros_like(a) for n, a in list(out.items()) for s in ("Adam", "Adam_1")}
    return out | {"global_step": np.array(step, "i8")}


GEMMA = {
    "embedder/input_embedding": (12, 4), "final_norm/scale": (4,), "layer_0/attn/q_einsum/w": (2, 4, 3),
    "layer_0/attn/kv_einsum/w": (2, 1, 4, 3), "layer_0/attn/attn_vec_einsum/w": (2, 3, 4),
    "layer_0/mlp/gating_einsum/w": (2, 4, 6), "layer_0/mlp/linear/w": (6, 4),
    "layer_0/pre_attention_norm/scale": (4,), "layer_0/pre_ffw_norm/scale": (4,),
}  # fmt: skip

RULES = """\
[[rule]]
from = "encoder/layer_{i}/{x...}/kernel"
to = "encoder.layers.{i}.{x...}.weight"
layout = "i o -> o i"

[[rule]]
from = "encoder/layer_{i}/dense/bias"
to = "encoder.layers.{i}.dense.bias"

[[rule]]
from = "encoder/layer_{i}/norm/gamma"
to = "encoder.layers.{i}.norm.weight"

[[rule]]
from = "encoder/embeddings"
to = "encoder.embeddings.weight"
"""


def lightning() -> bytes:
    """last.ckpt as Lightning saves it: a network of one layer in `net`, Adam's state, the epoch."""
    arrays = {"0": ramp(8, 4), "1": ramp(8), "2": np.zeros((8, 4), "f4"), "3": np.zeros((8, 4), "f4")}

    def tensor(key: str) -> Call:
        shape = arrays[key].shape
        storage = Id(("storage", Global("torch.FloatStorage"), key, "cpu", arrays[key].size))
        strides = tuple(s // 4 for s in arrays[key].strides)
        return Call(Global("torch._utils._rebuild_tensor_v2"), (storage, 0, shape, strides, False, {}))

    slots = [{"state": {0: {"exp_avg": tensor("2"), "exp_avg_sq": tensor("3")}}}]
    state = {"net.fc.weight": tensor("0"), "net.fc.bias": tensor("1")}
    whole = {"epoch": 3, "global_step": 900, "state_dict": state, "optimizer_states": slots}
    return archive(whole, {key: array.tobytes() for key, array in arrays.items()})


def adapters(scale: float) -> dict[str, np.ndarray]:
    """LoRA of rank 2 for the queries of two layers."""
    stem = "base_model.model.model.layers.{}.self_attn.q_proj.lora_"
    out = {}
    for i in range(2):
        out[stem.format(i) + "A.weight"] = ramp(2, 16)
        out[stem.format(i) + "B.weight"] = ramp(16, 2, scale=scale)
    return out


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """model.ckpt (12 layers, Adam's slots), tuned.ckpt (some values differ), a series in train/, a GAN, Orbax's run,
    and a file for each how-to."""
    home = tmp_path_factory.mktemp("documents")
    ckptconv.save(encoder(12, 1000), home / "model.ckpt")
    tuned = encoder(12, 1200)
    tuned["encoder/layer_3/dense/bias"] = ramp(32, scale=1e-3)
    del tuned["encoder/layer_11/norm/gamma/Adam_1"]
    ckptconv.save(tuned, home / "tuned.ckpt")
    broken = {f"block{i}/kernel": ramp(8, 8, scale=i) for i in range(1, 4)}
    broken["block2/kernel"][3, 5], broken["block3/kernel"][:] = np.nan, 0
    ckptconv.save(broken, home / "broken.npz")
    np.savez(home / "dated.npz", w=np.ones(2), day=np.array(["2026-01-01"], "M8[D]"))
    (home / "train").mkdir()
    for step in (1000, 2000):
        ckptconv.save(encoder(1, step, slots=False), home / f"train/model.ckpt-{step}", to="tf")
        (home / "train/checkpoint").write_text(f'model_checkpoint_path: "model.ckpt-{step}"\n')
    for part in ("generator", "discriminator"):
        ckptconv.save({"conv/kernel": ramp(3, 3, 4, 8), "conv/bias": np.zeros(8, "f4")}, home / f"{part}.ckpt")
    (home / "rules.toml").write_text(RULES)
    shutil.copytree(FIXTURES / "orbax" / "several", home / "run")
    (block,) = re.findall(r"^```toml\n(.*?)^```$", (ROOT / "docs/jax.md").read_text("utf-8"), re.M | re.S)
    (home / "jax.toml").write_text(block)
    (block,) = re.findall(r"^```python\n(import keras\n.*?)^```$", INTO_KERAS.read_text("utf-8"), re.M | re.S)
    (home / "keras_net.py").write_text(block)
    cnn = {"0.weight": ramp(8, 3, 3, 3), "0.bias": ramp(8), "2.weight": ramp(4, 800), "2.bias": ramp(4)}
    ckptconv.save(cnn, home / "cnn.pt")
    fresh = {"Conv_0/kernel": (3, 3, 3, 8), "Conv_0/bias": (8,), "Dense_0/kernel": (800, 4), "Dense_0/bias": (4,)}
    ckptconv.save({f"params/{n}": np.zeros(s, "f4") for n, s in fresh.items()}, home / "fresh.msgpack")
    ckptconv.save({f"transformer/{n}": ramp(*s) for n, s in GEMMA.items()}, home / "gemma", to="orbax")
    (home / "checkpoint").unlink()
    (home / "fixtures").symlink_to(FIXTURES)
    shutil.copy(FIXTURES / "keras" / "full_tf_keras.h5", home / "net.h5")
    shutil.copy(FIXTURES / "keras" / "net.keras", home)
    (home / "last.ckpt").write_bytes(lightning())
    for name, scale in (("adapter", 1.0), ("tuned", 0.5)):
        (home / name).mkdir()
        ckptconv.save(adapters(scale), home / name / "adapter_model.safetensors")
        (home / name / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    return home


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """A copy for one document."""
    return Path(shutil.copytree(made, tmp_path / "home", symlinks=True))


# --- reading and running ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("document", [
    pytest.param(d, id=str(d.relative_to(ROOT)), marks=[pytest.mark.slow] * (d.stem in LONG)) for d in DOCUMENTS
])  # fmt: skip
def test_document(document: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = document.read_text(encoding="utf-8")
    for package in re.findall(r"^<!-- needs: (\w+) -->$", text, re.M):
        pytest.importorskip(package)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERMINAL_WIDTH", "80")
    wrong, space = [], dict[str, object]()

    def check(m: re.Match[str]) -> str:
        if m[1] == "pycon":
            wrong.extend(session(m[2], document.name, space))
            return m[0]
        out = []
        for step in steps(m[2]):
            shown = run(step.command, folder)
            good = fits(step.expected, shown)
            if not good:
                wrong.append(f"$ {step.command}\nexpected:\n{step.expected}printed:\n{shown}")
            typed = "$ " + step.command.replace("\n", "\n> ")
            out.append(f"{typed}\n{step.expected if good else shown}")
        return f"```console\n{''.join(out)}```"

    updated = FENCE.sub(check, text)
    if os.environ.get("CKPTCONV_UPDATE"):
        document.write_text(updated, encoding="utf-8")
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
def test_the_format_that_is_shown_keeps_its_contract(tmp_path: Path) -> None:
    """Installed as a package would be: a module, and metadata with an entry point."""
    text = (ROOT / "docs/write-a-format.md").read_text(encoding="utf-8")
    for block in re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S):
        name = re.match(r'"""(\w+\.py)"""', block)
        assert name
        (tmp_path / name[1]).write_text(block, encoding="utf-8")
    (point,) = re.findall(r'^mine = "(.*)"$', text, re.M)
    info = tmp_path / "mine-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[ckptconv.formats]\nmine = {point}\nfirst = first:ROW\n")
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_mine.py"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout[-4000:]
    listed = subprocess.run(
        [sys.executable, "-m", "ckptconv", "formats"], env=env, capture_output=True, text=True, check=True
    )
    assert re.search(r"^mine +yes +yes +\.mine +an example$", listed.stdout, re.M)
    assert text[: text.index("ROW")].count("\n") <= 30  # to the first tensor
    (tmp_path / "x.first").write_bytes(b"F32 2 3\n" + bytes(24))
    shown = subprocess.run(
        [sys.executable, "-m", "ckptconv", "inspect", str(tmp_path / "x.first")],
        env=env, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "float32" in shown.stdout


# --- the executor itself ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expected", "shown", "good"),
    [
        ("a\n", "a\n", True),
        ("a\n", "b\n", False),
        ("a\n", "a\nb\n", False),
        ("in ... s\n", "in 0.3 s\n", True),
        ("...\nend\n", "x\ny\nend\n", True),
        ("a\n...\n", "a\n", True),
        ("[1]\n", "", False),
        ("a.b\n", "axb\n", False),
    ],
)
def test_matching(expected: str, shown: str, good: bool) -> None:
    assert fits(expected, shown) == good


def test_a_session_that_lies_is_found() -> None:
    assert session(">>> 1 + 1\n3\n", "x", {})
    assert not session(">>> 1 + 1\n2\n", "x", {})
