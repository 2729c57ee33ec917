"""Restore a checkpoint with the real Orbax and save what it gives: python restore_orbax.py CHECKPOINT OUT.npz

Four ways, which must agree: StandardCheckpointer as it is stored, with a target, with a target on a mesh of 2x2
devices, and PyTreeCheckpointer. Bits of dtypes that NumPy lacks are unsigned integers, under "name:dtype".
"""

import os
import sys

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

jax.config.update("jax_enable_x64", True)


def flat(tree):
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        name = "/".join(str(getattr(k, "key", getattr(k, "idx", k))) for k in path)
        a = np.asarray(leaf)
        if a.dtype.isbuiltin == 1:
            yield name, a
        else:
            raw = a.view(f"u{a.dtype.itemsize}")
            yield f"{name}:{a.dtype.name}", raw & 15 if a.dtype.name == "int4" else raw  # JAX leaves the high bits open


def target(tree, mesh=None):
    def one(a):
        shape = np.shape(a)
        spec = PartitionSpec(*["xy"[i] if i < 2 and n % 2 == 0 and n else None for i, n in enumerate(shape)])
        sharding = NamedSharding(mesh, spec) if mesh else jax.sharding.SingleDeviceSharding(jax.devices()[0])
        return jax.ShapeDtypeStruct(shape, np.asarray(a).dtype, sharding=sharding)

    return jax.tree_util.tree_map(one, tree)


def main(path, out):
    standard = ocp.StandardCheckpointer()
    first = standard.restore(path)
    want = dict(flat(first))
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("x", "y"))
    ways = {
        "target": lambda: standard.restore(path, target(first)),
        "mesh": lambda: standard.restore(path, target(first, mesh)),
        "pytree": lambda: ocp.PyTreeCheckpointer().restore(path),
    }
    for way, restore in ways.items():
        got = dict(flat(restore()))
        bad = [n for n in want if n not in got or got[n].tobytes() != want[n].tobytes()]
        if bad or set(got) != set(want):
            sys.exit(f"{way} restores {len(bad)} of {len(want)} otherwise: {bad[:5]}")
    np.savez(out, **want)


main(*sys.argv[1:])
