"""How many requests a remote checkpoint costs, by format: inspect, convert, and its share of a zoo. Prints a table.

python benchmarks/remote.py          needs moto[server] and s3fs; nothing leaves this machine

Counted at the server, so what the libraries below ask on their own is included.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import moto.backends
import moto.s3.models  # before the server, which imports it in a circle
import numpy as np
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

import ckptconv
from ckptconv.bulk.run import zoo_plan
from ckptconv.reporting import inspection

NAMES = {
    "safetensors": "m.safetensors", "npz": "m.npz", "npy": "arrays", "tf": "tf/m.ckpt", "torch": "m.pt",
    "flax": "m.msgpack", "hdf5": "m.hdf5", "keras": "m.h5", "hf": "folder",
}  # fmt: skip
SIDE = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "README.md", "merges.txt")
ZOO = 20  # checkpoints
Log = list[tuple[str, str]]


class Counted:
    """The server's application, with a list of the requests that it got."""

    def __init__(self) -> None:
        self._inner = DomainDispatcherApplication(create_backend_app)
        self.log: Log = []

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        method = "LIST" if "list-type=2" in environ["QUERY_STRING"] else environ["REQUEST_METHOD"]
        self.log.append((method, f"{environ['PATH_INFO']} {environ.get('HTTP_RANGE', '')}"))
        out: Iterable[bytes] = self._inner(environ, start_response)
        return out


def values(count: int = 6) -> dict[str, np.ndarray]:
    r = np.random.default_rng(count)
    return {f"layer_{i}/kernel": r.standard_normal((20 + i, 7)).astype("f4") for i in range(count)}


def fill(home: Path) -> None:
    """One small checkpoint of each format, a folder of four shards, and a zoo of folders with side files."""
    for name, path in NAMES.items():
        ckptconv.save(values(), f"s3://zoo/{path}", to=name)
    shards = {f"block_{i}/kernel": np.full((512, 512), i, "f4") for i in range(64)}
    ckptconv.save(shards, "s3://zoo/sharded/model.safetensors", max_shard_size=16 * 2**20)
    backend = moto.backends.get_backend("s3")["123456789012"]["aws"]
    ckptconv.save(values(), home / "model.safetensors")
    for n in range(ZOO):
        backend.put_object("zoo", f"many/m{n}/model.safetensors", (home / "model.safetensors").read_bytes())
        for side in SIDE:
            backend.put_object("zoo", f"many/m{n}/{side}", b'{"model_type": "small"}' * 20)


def main() -> None:
    app = Counted()
    server = make_server("127.0.0.1", 0, app, threaded=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    os.environ |= {
        "AWS_ACCESS_KEY_ID": "nobody", "AWS_SECRET_ACCESS_KEY": "nothing", "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}",
    }  # fmt: skip
    moto.backends.get_backend("s3")["123456789012"]["aws"].create_bucket("zoo", "us-east-1")

    def counted(do: Callable[[], object]) -> int:
        app.log.clear()
        do()
        if os.environ.get("EACH"):
            print(*(f"    {method} {what}" for method, what in app.log), sep="\n")
        return len(app.log)

    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        fill(home)
        print("| checkpoint | inspect | convert to a local file | convert to S3 |\n| :-- | --: | --: | --: |")
        for name, path in {**NAMES, "4 shards of 16 MB": "sharded"}.items():
            url = f"s3://zoo/{path}"
            row = (
                counted(lambda url=url: inspection.inspect(url)),
                counted(lambda url=url, n=name: ckptconv.convert(url, home / f"{n}.npz")),
                counted(lambda url=url, n=name: ckptconv.convert(url, f"s3://zoo/out/{n}.npz")),
            )
            print(f"| {name} | " + " | ".join(map(str, row)) + " |", flush=True)
        book = str(home / "ledger.jsonl")
        parts = {
            "planning": lambda: zoo_plan(["s3://zoo/many"], "s3://zoo/converted"),
            "all of it": lambda: ckptconv.zoo(["s3://zoo/many"], "s3://zoo/converted", ledger=book, jobs=2),
            "resuming, with nothing to do": lambda: ckptconv.zoo(
                ["s3://zoo/many"], "s3://zoo/converted", ledger=book, resume=True
            ),
        }
        print(f"\n| a zoo of {ZOO} checkpoints, S3 to S3 | requests | each |\n| :-- | --: | --: |")
        for name, do in parts.items():
            count = counted(do)
            print(f"| {name} | {count} | {count / ZOO:.1f} |", flush=True)
            if os.environ.get("EACH"):
                print(Counter(method for method, _ in app.log))
    server.shutdown()


if __name__ == "__main__":
    main()
