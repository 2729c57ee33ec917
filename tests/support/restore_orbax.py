"""Restore a checkpoint with the real Orbax and save what it gives: python restore_orbax.py CHECKPOINT OUT.npz

Ran with orbax-checkpoint 0.4.8, 0.5.20, 0.7.0, 0.11.10 and 0.12.8. Several ways, which must agree:
StandardCheckpointer as it is stored, with a target on one device and on meshes of 1x1, 2x2 and 4x1 devices;
PyTreeCheckpointer; as a step of CheckpointManager; and the `load` of orbax.checkpoint.v1, if there is one. Bits of
dtypes that NumPy lacks are unsigned integers, under "name:dtype".
"""

import inspect
import os
import shutil
import sys
import tempfile

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

jax.config.update("jax_enable_x64", True)
LOW = {"int4": 15, "int2": 3, "float4_e2m1fn": 15}  # JAX leaves the high bits open


def flat(tree):
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        name = "/".join(str(getattr(k, "key", getattr(k, "idx", k))) for k in path)
        a = np.asarray(leaf)
        if a.dtype.isbuiltin == 1:
            yield name, a
        else:
            raw = a.view(f"u{a.dtype.itemsize}")
            yield f"{name}:{a.dtype.name}", raw & LOW.get(a.dtype.name, 255) if a.itemsize == 1 else raw


def target(tree, shape=None):
    mesh = Mesh(np.array(jax.devices()[: shape[0] * shape[1]]).reshape(shape), ("x", "y")) if shape else None

    def one(a):
        spec = [n if mesh and i < 2 and size and size % mesh.shape[n] == 0 else None
                for i, (size, n) in enumerate(zip(np.shape(a), "xy*******", strict=False))]  # fmt: skip
        sharding = NamedSharding(mesh, PartitionSpec(*spec)) if mesh else SingleDeviceSharding(jax.devices()[0])
        return jax.ShapeDtypeStruct(np.shape(a), np.asarray(a).dtype, sharding=sharding)

    return jax.tree_util.tree_map(one, tree)


def restored(path, wanted):
    """With a target: old versions take the shardings beside it."""
    if hasattr(ocp.args, "StandardRestore"):
        return ocp.StandardCheckpointer().restore(path, wanted)
    args = jax.tree_util.tree_map(
        lambda a: ocp.ArrayRestoreArgs(dtype=a.dtype, sharding=a.sharding, global_shape=a.shape), wanted)  # fmt: skip
    return ocp.PyTreeCheckpointer().restore(path, item=wanted, restore_args=args)


def managed(path):
    """As step 7 of a run, into which the folder is copied."""
    with tempfile.TemporaryDirectory() as run:
        os.makedirs(f"{run}/7")
        shutil.copytree(path, f"{run}/7/default")
        if "args" in inspect.signature(ocp.CheckpointManager.restore).parameters:
            return ocp.CheckpointManager(run).restore(7, args=ocp.args.StandardRestore())
        return ocp.CheckpointManager(run, ocp.PyTreeCheckpointer()).restore(7)


def main(path, out):
    first = ocp.StandardCheckpointer().restore(path)
    want = dict(flat(first))
    ways = {
        "target": lambda: restored(path, target(first)),
        "mesh 1x1": lambda: restored(path, target(first, (1, 1))),
        "mesh 2x2": lambda: restored(path, target(first, (2, 2))),
        "mesh 4x1": lambda: restored(path, target(first, (4, 1))),
        "pytree": lambda: ocp.PyTreeCheckpointer().restore(path),
        "manager": lambda: managed(path),
    }
    if hasattr(ocp, "v1"):
        ways["v1"] = lambda: ocp.v1.load(path)
    if len(want) > 4000:
        ways = {way: ways[way] for way in ("mesh 2x2", "pytree")}
    failed = []
    for way, restore in ways.items():
        got = dict(flat(restore()))
        bad = [n for n in want if n not in got or got[n].tobytes() != want[n].tobytes()]
        if bad or set(got) != set(want):
            failed.append(f"{way} restores {len(bad)} of {len(want)} otherwise: {bad[:5]}")
    np.savez(out, **want)
    if failed:
        sys.exit("\n".join(failed))


main(*sys.argv[1:])
