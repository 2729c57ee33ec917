"""An S3 server (moto) in a process of its own: prints its port, holds one large checkpoint from the start.

big/model-00001-of-00008.safetensors ...    80 MB in eight shards of zeros, each tensor 1 MiB
"""

from __future__ import annotations

import json
import sys

import moto.backends
from moto.s3.models import S3Backend
from moto.server import ThreadedMotoServer

SHARDS, TENSORS = 8, 10


def header(shard: int) -> bytes:
    entries = {
        f"layer{shard * TENSORS + i}/w": {
            "dtype": "F32", "shape": [512, 512], "data_offsets": [i << 20, (i + 1) << 20]
        }
        for i in range(TENSORS)
    }  # fmt: skip
    raw = json.dumps(entries, separators=(",", ":")).encode()
    return len(raw).to_bytes(8, "little") + raw


def fill(backend: S3Backend) -> None:
    weights = {}
    for shard in range(SHARDS):
        name = f"model-{shard + 1:05d}-of-{SHARDS:05d}.safetensors"
        backend.put_object("zoo", "big/" + name, header(shard) + bytes(TENSORS << 20))
        weights |= {f"layer{shard * TENSORS + i}/w": name for i in range(TENSORS)}
    index = {"metadata": {"total_size": (SHARDS * TENSORS) << 20}, "weight_map": weights}
    backend.put_object("zoo", "big/model.safetensors.index.json", json.dumps(index).encode())


def main() -> None:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    backend = moto.backends.get_backend("s3")["123456789012"]["aws"]
    backend.create_bucket("zoo", "us-east-1")
    fill(backend)
    print(server.get_host_and_port()[1], flush=True)
    sys.stdin.read()  # until the tests are done


if __name__ == "__main__":
    main()
