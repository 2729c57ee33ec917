"""ckptconv serve SRC..."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import StorageError
from . import show
from .options import READING, takes

if TYPE_CHECKING:
    from ..reporting.shelf import Offered

EXAMPLES = """Examples:

\b
  ckptconv serve model.safetensors --open     look at one, of any size
  ckptconv serve runs/                        at all below a folder, and compare them
  ckptconv serve 'runs/*.pt' --port 8123      with a port for `ssh -L 8123:localhost:8123 HOST`
"""


@takes(*READING, "jobs")
def serve(
    sources: Annotated[list[str], typer.Argument(metavar="SRC...", help="Files, prefixes, folders, globs or URLs.")],
    port: Annotated[int, typer.Option("--port", metavar="N", min=0, max=65535, help="0: any that is free.")] = 0,
    browse: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    **options: Any,
) -> None:
    """Show checkpoints in a browser, with values that are read when they are asked for.

    The pages are those of `report`. A checkpoint of any size is shown at once, since only headers are read; statistics,
    histograms and pictures of a tensor follow when it is opened, and zoom from the whole matrix to single values. The
    server answers to this machine only, at an address with a random token, and changes nothing. Ctrl-C ends it.
    """
    from ..api.options import SELECT, bundle
    from ..reporting.server import Server
    from ..reporting.shelf import Shelf

    given = bundle(options, *SELECT, "jobs")

    shelf = Shelf(lambda: found(sources), given.select, given.resources.workers)
    try:
        started = Server(shelf, port)
    except OSError as e:
        raise StorageError(f"cannot listen on port {port}: {e.strerror or e}") from e
    with started as server:
        show.address(server.url)
        show.talk("only this machine can open it; Ctrl-C ends it")
        try:
            with _browsing(server.url) if browse else nullcontext():
                server.serve_forever()
        except KeyboardInterrupt:
            show.talk("ended")


def found(sources: Sequence[str]) -> list[Offered]:
    """What there is to be shown now."""
    from ..bulk.discover import discover
    from ..reporting.shelf import Offered

    return [
        Offered(f.source, f.name + f.suffix, f.size, f.problem.message if f.problem else "", f.files)
        for f in discover(sources)
    ]


@contextmanager
def _browsing(url: str) -> Iterator[None]:
    """Open the page in a browser, by way of a page that only this user can read.

    The address holds the token, and what a browser is started with can be read by every user of the machine.
    """
    import webbrowser

    with tempfile.TemporaryDirectory(prefix="ckptconv-") as folder:  # 0700
        page = Path(folder, "open.html")
        with os.fdopen(os.open(page, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(f'<!doctype html><meta http-equiv="refresh" content="0; url={escape(url)}">\n')
        if not webbrowser.open(page.as_uri()):
            show.talk("no browser could be started; open the address by hand")
        yield
