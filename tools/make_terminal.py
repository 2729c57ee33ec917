"""Record docs/terminal.svg: the commands below, run in a terminal of 100 columns, with the colours that it shows.

python tools/make_terminal.py, where there are pseudo-terminals. Each run gives other times, so `make docs` does not run
this; a test says when the commands print something else.
"""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import shlex
import struct
import subprocess
import sys
import tempfile
import termios
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI
from rich.text import Text

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "terminal.svg"
WIDTH = 100
COMMANDS = (
    "ckptconv inspect fixtures/g2p_en --weights-only --tree --include 'rnn/*' --include 'dense/*'",
    "ckptconv fixtures/g2p_en -o g2p_en.safetensors --weights-only",
    "ckptconv verify fixtures/g2p_en g2p_en.safetensors --weights-only",
    "ckptconv g2p_en.safetensors -o dense.pt -c tf-torch --include 'dense/*' --dry-run",
)
FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"


def shown(command: str, folder: str) -> str:
    """What a terminal gets from a command, with its colours."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, WIDTH, 0, 0))
    env = os.environ | {"TERM": "xterm-256color", "COLUMNS": str(WIDTH), "PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-m", *shlex.split(command)]
    with subprocess.Popen(words, cwd=folder, env=env, stdout=theirs, stderr=theirs, stdin=theirs) as process:
        os.close(theirs)
        raw = bytearray()
        while True:
            try:
                piece = os.read(ours, 65536)
            except OSError:  # Linux says so at the end
                break
            if not piece:
                break
            raw += piece
    os.close(ours)
    assert process.returncode in (0, 1), raw.decode()
    lines = re.split(r"\r?\n", raw.decode())
    drawn = "\n".join(line for line in lines if "━" not in line)  # without the progress bar
    return re.sub(r"\x1b\[[0-9;?]*[A-LN-Za-ln-z]", "", drawn).strip("\n")


def picture() -> str:
    """The whole recording."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "fixtures").symlink_to(ROOT / "fixtures")
        for command in COMMANDS:
            console.print(Text.assemble(("$ ", "green"), (command, "bold")))
            console.print(Text.from_ansi(shown(command, folder)))
            console.print()
    svg = console.export_svg(title="ckptconv", theme=DIMMED_MONOKAI, unique_id="ckptconv")
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.S)  # which would be fetched
    return re.sub(r"font-family: (Fira Code, monospace|arial)", f"font-family: {FONT}", svg)


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
