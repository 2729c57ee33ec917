"""What is asked of a Ray cluster, without one: addresses, tasks in flight, what nodes answer, and what goes wrong."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from ckptconv import MissingExtra, StorageError, UsageError
from ckptconv.dtypes import DTYPES
from ckptconv.engine import ray as engine
from ckptconv.engine.plan import Job
from ckptconv.messages import version
from ckptconv.moves.part import Part, Piece

F32 = DTYPES["float32"]


class Lost(Exception):
    """What Ray raises for a task that it could not run."""


class Failed(Lost):
    """What Ray raises for a task that raised."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(str(cause))
        self.cause = cause


class Cluster(ModuleType):
    """As much of `ray` as is used; tasks run when they are waited for, the newest first."""

    exceptions = SimpleNamespace(RayError=Lost, RayTaskError=Failed)
    util = SimpleNamespace(scheduling_strategies=SimpleNamespace(
        NodeAffinitySchedulingStrategy=lambda node, soft: (node, soft)
    ))  # fmt: skip

    def __init__(self, answers: Any = None, cpus: float = 2, connected: bool = True) -> None:
        super().__init__("ray")
        self.answers, self.cpus, self.connected = answers or {}, cpus, connected
        self.said = list[Any]()
        self.flying, self.ended, self.stuck, self.at_once = set[int](), set[int](), set[int](), 1
        self.most, self.count = 0, 0
        self.tasks = dict[int, Any]()

    def is_initialized(self) -> bool:
        return self.connected

    job_config = SimpleNamespace(JobConfig=SimpleNamespace)

    def init(self, address: str, **how: Any) -> None:
        self.said.append(("init", address))
        assert address.startswith("ray://") or how["job_config"]._runtime_env_has_working_dir()
        if isinstance(self.answers, Exception):
            raise self.answers

    def shutdown(self) -> None:
        self.said.append("shutdown")

    def remote(self, **how: Any) -> Any:
        self.said.append(how)

        def wrapped(function: Any) -> Any:
            def begin(*given: Any, where: Any = None) -> int:
                self.count += 1
                self.tasks[self.count] = (function, given, where)
                self.flying.add(self.count)
                self.most = max(self.most, len(self.flying))
                return self.count

            return SimpleNamespace(
                remote=begin, options=lambda scheduling_strategy: SimpleNamespace(
                    remote=lambda *given: begin(*given, where=scheduling_strategy)
                )
            )  # fmt: skip

        return wrapped

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": self.cpus} if self.cpus else {}

    def wait(
        self, references: list[int], num_returns: int, timeout: float | None, fetch_local: bool
    ) -> tuple[list[int], list[int]]:
        assert set(references) == self.flying
        assert not fetch_local
        self.ended |= {*[r for r in references if r not in self.stuck][-self.at_once :]}
        ready = [r for r in references if r in self.ended][:num_returns]
        return ready, [r for r in references if r not in ready]

    def get(self, reference: Any, timeout: float | None = None) -> Any:
        self.flying.discard(reference)
        function, given, where = self.tasks[reference]
        if where is not None:
            assert timeout == engine.PATIENCE
            answer = self.answers.get(where[0])
            assert where[1] is False
            if isinstance(answer, Exception):
                raise answer
            return answer or function(*given)
        try:
            return function(*given)
        except Lost:
            raise
        except Exception as e:
            raise Failed(e) from e

    def cancel(self, reference: int) -> None:
        self.flying.discard(reference)

    def nodes(self) -> list[dict[str, Any]]:
        return [
            {"NodeID": f"{name}-0123456789", "Alive": name != "dead", "NodeManagerHostname": name * (name != "bare"),
             "Resources": {"CPU": 4.0} if name != "head" else {}}
            for name in ("one", "dead", "head", "bare")
        ]  # fmt: skip


# --- tasks --------------------------------------------------------------------------------------------------------


def apply(ray: Cluster, run: Any, tasks: Any, *, size: int = engine.SMALL, **how: Any) -> Iterator[tuple[Any, Any]]:
    """Run tasks, each as a pack of its own unless they are small."""
    return engine.apply(ray, lambda shared, task: run(task), None, tasks, 77, size=lambda _: size, **how)


@pytest.mark.parametrize(
    ("sizes", "counts"),
    [
        ([], []),
        ([9] * 17, [8, 8, 1]),
        ([engine.SMALL + 1, engine.SMALL, 1, 9], [1, 1, 2]),
        ([engine.SMALL // 2] * 5, [2, 2, 1]),
    ],
)
def test_small_neighbours_are_one_pack(sizes: list[int], counts: list[int]) -> None:
    ray, tasks = Cluster(cpus=9), list(enumerate(sizes))
    found = engine.apply(ray, lambda shared, task: task[0], None, tasks, 1, size=lambda task: task[1])
    assert sorted(result for _, result in found) == [*range(len(sizes))]
    assert [len(given[0]) for _, given, _ in ray.tasks.values()] == counts


def test_a_pack_that_fails_is_taken_apart() -> None:
    """One task loses its worker, another raises; both by themselves, and the others end."""

    def run(task: str) -> str:
        if task == "d":
            raise StorageError("the disk")
        if task == "f":
            raise Lost("\n the worker is gone\nmore")
        return task.upper()

    ray = Cluster(cpus=1)
    results = {task: str(result) for task, result in apply(ray, run, "abcdefg", size=1)}
    lost = "the cluster lost a task 4 times: Lost: the worker is gone"
    assert results == {**{t: t.upper() for t in "abceg"}, "d": "the disk", "f": lost}
    assert (ray.count, ray.most) == (8, 2)


@pytest.mark.parametrize(
    ("sizes", "workers", "counts"),
    [
        ([10] * 16, 1, [2] * 8),
        ([10] * 16, 2, [1] * 16),
        ([10] * 5, 100, [1] * 5),
        ([1, 1, 100, 1, 1], 1, [2, 1, 2]),
        ([300] * 4, 0, [1] * 4),
        ([100] * 100, 1, [3] * 33 + [1]),  # 1,250 would be one of eight tasks: no task writes more than MAX_TASK
        ([], 3, []),
    ],
)
def test_neighbouring_jobs_are_one_task(
    sizes: list[int], workers: int, counts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "MAX_TASK", 300)
    monkeypatch.setattr(engine, "MEANWHILE", 0)
    jobs = [job(start=i)._replace(size=size) for i, size in enumerate(sizes)]
    some = list(engine.batches(jobs, workers))
    assert [len(s) for s in some] == counts
    assert [j for s in some for j in s] == jobs


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (UsageError("no such thing"), UsageError, "no such thing"),
        (ValueError("first\nsecond"), engine.TaskLost, "a worker failed: ValueError: first"),
        (ValueError(" \n"), engine.TaskLost, "a worker failed: ValueError: no reason given"),
    ],
)
def test_how_tasks_fail(error: Exception, kind: type, words: str) -> None:
    def fails(shared: object, task: object) -> object:
        raise error

    ((task, got),) = engine.apply(Cluster(), fails, None, ["t"], 1, size=lambda _: 1)
    assert (task, type(got), str(got)) == ("t", kind, words)


# --- nodes --------------------------------------------------------------------------------------------------------


def test_all_that_is_wrong_with_nodes_is_said_at_once() -> None:
    old = ("0.0.1", ["cannot read x", "cannot write y"])
    lost = Cluster({"one-0123456789": old, "bare-0123456789": Failed(ImportError("no ckptconv\nhere"))})
    with pytest.raises(UsageError) as e:
        engine.probe(lost, {}, [])
    assert str(e.value).splitlines() == [
        "the cluster's workers cannot do this; source, destination and (for a remote destination) TMPDIR must lie on "
        "storage that all of them reach by the same path:",
        f"  one: has ckptconv 0.0.1, not {version()}",
        "  one: cannot read x",
        "  one: cannot write y",
        "  bare-012: cannot run ckptconv (ImportError: no ckptconv)",
    ]
    with pytest.raises(UsageError, match=r"one: cannot run ckptconv \(Lost: no answer\)"):
        engine.probe(Cluster({"one-0123456789": Lost("no answer")}), {}, [])


def test_what_a_node_sees(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"123")
    file, none = str(tmp_path / "file"), str(tmp_path / "none")
    assert engine.reach({file: 3}, [file]) == (version(), [])
    problems = [f"sees another file at {file}: 3 bytes, not 4", f"cannot read {none}", f"cannot write {none}"]
    want = {file: 4}, [file, none]
    assert engine.reach({**want[0], none: 3}, want[1]) == (version(), problems)


def job(*data: Any, start: int = 0) -> Job:
    parts = tuple(Part(d, F32, (1,), 0, (1,), 0, (1,)) for d in data)
    return Job("file", start, 4, (Piece("w", F32, 0, 1, 0, parts),))


# --- the cluster ---------------------------------------------------------------------------------------------------


def test_the_engines() -> None:
    for name in ("ray", "ray://host:1"):
        with pytest.raises(TypeError, match="a cluster runs the jobs of a plan"):
            list(engine.engine(name)(print, []))  # type: ignore[arg-type]
    for name in ("rays", "Ray", "ray:/host", "", "spark"):
        with pytest.raises(
            UsageError, match=f"unknown engine {name!r}; the engines are local, ray and ray://HOST:PORT"
        ):
            engine.engine(name)


def test_a_cluster_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", Cluster(RuntimeError("away\nfor good"), connected=False))
    monkeypatch.setattr(engine, "_knock", str)
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    words = r"^no Ray cluster answers \(away\)\. Start one with `ray start --head`, and say where it is: engine='ray://"
    with pytest.raises(UsageError, match=words), engine.cluster("ray"):
        pass


def test_without_ray_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match=r"needs a package: .*pip install 'ckptconv\[ray\]'"), engine.cluster("ray"):
        pass


@pytest.mark.parametrize(
    ("address", "asked"),
    [
        ("ray://[::1]:10001/x", ("::1", 10001)),
        ("ray://host:7", ("host", 7)),
        ("host:8", ("host", 8)),
        ("local", None),
        ("host", None),
        (":7", None),
        ("host:port", None),
        ("host:", None),
    ],
)
def test_an_address_at_which_nothing_listens(monkeypatch: pytest.MonkeyPatch, address: str, asked: Any) -> None:
    tried = list[Any]()

    def answers(address: Any, patience: float) -> Any:
        tried.append((address, patience))
        return SimpleNamespace(close=lambda: tried.append("closed"))

    monkeypatch.setattr(socket, "create_connection", answers)
    engine._knock(address)
    assert tried == ([(asked, 10.0), "closed"] if asked else [])

    def refuses(address: Any, patience: float) -> Any:
        raise ConnectionRefusedError("nobody is there")

    monkeypatch.setattr(socket, "create_connection", refuses)
    if asked:
        with pytest.raises(UsageError, match=r"no Ray cluster answers \(.*: nobody is there\)"):
            engine._knock(address)
    else:
        engine._knock(address)


@pytest.mark.parametrize(
    ("name", "variable", "address"),
    [
        ("ray://host:7", "other:1", "ray://host:7"), ("ray", "host:8", "host:8"),
        ("ray", "ray://host:8", "ray://host:8"), ("ray", "auto", ""), ("ray", "", ""),
    ],
)  # fmt: skip
def test_where_the_cluster_is(monkeypatch: pytest.MonkeyPatch, name: str, variable: str, address: str) -> None:
    """Nobody else names it: what runs there gets our work, and its answers are unpickled here."""
    monkeypatch.setitem(sys.modules, "ray", ray := Cluster(connected=False))
    monkeypatch.setattr(engine, "_knock", str)
    monkeypatch.setenv("RAY_ADDRESS", variable)
    words = r"no Ray cluster answers \(its address is not given\)\. Start one .*, or RAY_ADDRESS"
    with nullcontext() if address else pytest.raises(UsageError, match=words), engine.cluster(name):
        assert ray.said == [("init", address)]
