"""ckptconv verify SRC... DST"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from . import options, show
from .options import (
    Converter,
    Densify,
    Dtype,
    Ema,
    Exclude,
    From,
    Include,
    Inverse,
    Jobs,
    Json,
    Opaque,
    Param,
    Quiet,
    Rename,
    Scope,
    WeightsOnly,
)

if TYPE_CHECKING:
    from ..verification.hashes import Checked

EXAMPLES = """Examples:

\b
  ckptconv verify model.ckpt model.safetensors
  ckptconv verify model.ckpt half.npz --weights-only --dtype float16
  ckptconv verify model.safetensors              by its own hashes and checksums
  ckptconv verify bert.ckpt bert.safetensors -c auto
"""


def verify(
    paths: Annotated[list[str], typer.Argument(metavar="[SRC] DST", help="What was converted, and the result last.")],
    from_: From = None,
    converter: Converter = None,
    inverse: Inverse = False,
    param: Param = None,
    rename: Rename = None,
    include: Include = None,
    exclude: Exclude = None,
    scope: Scope = None,
    weights_only: WeightsOnly = False,
    ema: Ema = False,
    dtype: Dtype = None,
    skip_unrepresentable: Annotated[
        bool, typer.Option("--skip-unrepresentable", help="What DST's format cannot hold was left out.")
    ] = False,
    opaque: Opaque = False,
    densify: Densify = False,
    jobs: Jobs = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Derive again what DST should hold, and compare every bit.

    Give the options of the conversion. Exits with 7, naming the first tensor and index, if anything differs.
    One path alone is read whole and compared with its own checksums, and with the hashes that it carries.
    """
    from .. import api
    from ..errors import UsageError

    if len(paths) == 1:
        given = {
            "--converter": converter, "--inverse": inverse, "--param": param, "--rename": rename, "--scope": scope,
            "--dtype": dtype, "--skip-unrepresentable": skip_unrepresentable,
        }  # fmt: skip
        if idle := ", ".join(name for name, value in given.items() if value):
            raise UsageError(f"only a conversion has {idle}; give its source and its result: ckptconv verify SRC DST")
        chosen = options.select(from_, include, exclude, opaque, weights_only, ema, densify=densify)
        _show(api.check_itself(paths[0], select=chosen, resources=api.Resources(jobs=jobs)), as_json, quiet)
        return
    *sources, destination = paths
    held = api.check(
        sources,
        destination,
        select=options.select(from_, include, exclude, opaque, weights_only, ema, densify=densify),
        change=options.change(converter, inverse, param, rename, dtype, scope),
        target=api.Target(skip_unrepresentable=skip_unrepresentable),
        resources=api.Resources(jobs=jobs),
    )
    if as_json:
        show.as_json({"same": True, "tensors": len(held), "bytes": held.nbytes})
    elif not quiet:
        what = f"{show.many(len(held), 'tensor')}, {show.bytes_(held.nbytes)}"
        show.talk(f"verified: {what}, are bit for bit what the conversion gives")


def _show(found: Checked, as_json: bool, quiet: bool) -> None:
    if as_json:
        show.as_json({"sound": True, "tensors": found.tensors, "hashed": found.hashed, "checked_bytes": found.checked})
    elif not quiet:
        proof = [f"{show.many(found.hashed, 'hash').replace('hashs', 'hashes')}"] if found.hashed else []
        proof += [f"checksums of {show.bytes_(found.checked)}"] if found.checked else []
        by = " and ".join(proof) or "no hash or checksum of its own, so only that it can be read"
        show.talk(f"verified: {show.many(found.tensors, 'tensor')}, by {by}")
