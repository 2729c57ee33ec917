"""ckptconv inspect SRC"""

from __future__ import annotations

from typing import Annotated

import typer

from . import options, show
from .options import Ema, Exclude, From, Include, Json, Opaque, WeightsOnly


def inspect(
    source: Annotated[str, typer.Argument(metavar="SRC", help="File, prefix, folder or URL.")],
    from_: From = None,
    include: Include = None,
    exclude: Exclude = None,
    weights_only: WeightsOnly = False,
    ema: Ema = False,
    opaque: Opaque = False,
    as_json: Json = False,
) -> None:
    """List the tensors of a checkpoint: names, dtypes, shapes, sizes and roles. Only headers are read."""
    from .. import api

    select = options.select(from_, include, exclude, opaque, weights_only, ema)
    found = api.prepare([source], select, api.Change())
    tensors = found.tensors.values()
    if as_json:
        show.as_json(
            {
                "url": source,
                "format": found.format,
                "tensors": [
                    {"name": t.name, "dtype": t.dtype.name, "shape": list(t.shape), "bytes": t.nbytes, "role": t.role}
                    for t in tensors
                ],
                "metadata": found.metadata,
                "ties": found.ties,
                "notes": [n._asdict() for n in found.notes],
            }
        )
        return
    rows = [
        [t.name, t.dtype.name, "x".join(map(str, t.shape)) or "scalar", show.bytes_(t.nbytes), t.role] for t in tensors
    ]
    show.table(("name", "dtype", "shape", "size", "role"), rows, "lllr")
    show.notes(found.notes)
    weights = sum(t.count for t in tensors if not t.role)
    show.talk(f"{found.format}: {len(found)} tensors, {show.bytes_(found.nbytes)}, {weights:,} parameters in weights")
