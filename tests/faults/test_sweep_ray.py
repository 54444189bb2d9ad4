"""A Ray cluster of several nodes on this machine: the same results on any number of nodes, and when nodes die."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sweeping import FEW, ONE, TRIALS, check_whole, done, finish, start, sweep, sweep_file, table, wait_for

pytest.importorskip("ray")


@pytest.fixture
def cluster() -> Iterator[Callable[[int], Any]]:
    """Starts a cluster of nodes with one CPU each; the head node has none, so that workers can be killed."""
    from ray.cluster_utils import Cluster

    begun: list[Any] = []

    def begin(nodes: int) -> Any:
        made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
        begun.append(made)
        for _ in range(nodes):
            made.add_node(num_cpus=1)
        return made

    yield begin
    for each in begun:
        each.shutdown()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    home = tmp_path_factory.mktemp("undisturbed")
    sweep(sweep_file(home), home / "out", *ONE)
    return table(home / "out")


def on(cluster: Any, *words: str) -> tuple[str, ...]:
    return ("--engine", "ray", "--address", cluster.address, *words)


@pytest.mark.fault("a Ray node is killed in the middle of a sweep")
@pytest.mark.slow
def test_a_killed_node_costs_the_trials_in_flight_at_most(
    tmp_path: Path, cluster: Callable[[int], Any], record_outcome: Callable[[str], None]
) -> None:
    out, file = tmp_path / "out", sweep_file(tmp_path, trials=FEW)
    sweep(file, tmp_path / "alone", *ONE)
    two = cluster(2)
    process = start(file, out, *on(two, "--results", "shared"))
    wait_for(lambda: done(out), process)
    kept, node = done(out), two.list_all_nodes()[-1]
    two.remove_node(node, allow_graceful=False)
    found = finish(process)
    assert (found["done"], found["failed"]) == (FEW, [])
    check_whole(out, kept, trials=FEW)
    assert table(out) == table(tmp_path / "alone")
    record_outcome(
        f"1 of 2 nodes killed when {len(kept)} of {FEW} trials were done; finished on the other one, same table"
    )


@pytest.mark.fault("on Ray with 1, 2 and 4 nodes")
@pytest.mark.slow
def test_any_number_of_nodes_gives_the_same(
    tmp_path: Path,
    cluster: Callable[[int], Any],
    record_outcome: Callable[[str], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    file, seconds, busy = sweep_file(tmp_path, steps=800), {}, {}
    sweep(file, tmp_path / "local")
    for nodes in (1, 2, 4):
        found = sweep(file, out := tmp_path / str(nodes), *on(cluster(nodes), "--results", "shared"))
        assert (found["done"], found["slots"]) == (TRIALS, nodes)
        check_whole(out, {})
        assert table(out) == table(tmp_path / "local")
        seconds[nodes], busy[nodes] = found["seconds"], found["efficiency"]
    weights = [sorted((tmp_path / str(n)).glob("runs/*/model.safetensors")) for n in ("local", *seconds)]
    for group in zip(*weights, strict=True):
        assert len({path.read_bytes() for path in group}) == 1
    faster = {nodes: seconds[1] / each for nodes, each in seconds.items()}
    words = ", ".join(f"{n}: {s:.1f} s ({faster[n]:.2f} times as fast, busy {busy[n]:.0%})" for n, s in seconds.items())
    where = f"{len(os.sched_getaffinity(0))} cores, starting included"
    with capsys.disabled():
        print(f"\nnodes {words}; {where}")
    record_outcome(f"the same bytes as on local processes; nodes {words}; {where}")


@pytest.mark.fault("a Ray node is killed, results come back through the object store, another node joins")
@pytest.mark.slow
def test_results_through_the_object_store(
    tmp_path: Path, cluster: Callable[[int], Any], undisturbed: str, record_outcome: Callable[[str], None]
) -> None:
    two, out = cluster(2), tmp_path / "out"
    process = start(sweep_file(tmp_path), out, *on(two, "--results", "returned"))
    wait_for(lambda: done(out), process)
    kept = done(out)
    two.remove_node(two.list_all_nodes()[-1], allow_graceful=False)
    two.add_node(num_cpus=1)
    found = finish(process)
    assert (found["done"], found["failed"]) == (TRIALS, [])
    check_whole(out, kept)
    assert table(out) == undisturbed
    record_outcome(f"{TRIALS} of {TRIALS} trials done, written by the driver alone, same table")


@pytest.mark.fault("SIGKILL of a Ray worker, and then of the driver")
@pytest.mark.slow
def test_a_killed_ray_driver_goes_on(
    tmp_path: Path, cluster: Callable[[int], Any], undisturbed: str, record_outcome: Callable[[str], None]
) -> None:
    two, file, out = cluster(2), sweep_file(tmp_path), tmp_path / "out"
    process = start(file, out, *on(two, "--results", "shared"))
    wait_for(lambda: done(out), process)
    workers = [pid for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))) if _is_task(pid)]
    assert workers
    os.kill(workers[0], signal.SIGKILL)
    time.sleep(0.5)
    process.kill()
    process.communicate()
    kept = done(out)
    found = sweep(file, out, *on(two, "--results", "shared"))
    assert found["done"] + found["reused"] == TRIALS
    assert found["reused"] >= len(kept)
    check_whole(out, kept)
    assert table(out) == undisturbed
    record_outcome(f"{len(kept)} trials done by then, all kept; the same command did the rest, same table")


def _is_task(pid: int) -> bool:
    """Tells whether a process is a Ray worker running a Headway task."""
    try:
        name = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return name.startswith((b"ray::run_piece", b"ray::_run_and_return_files"))
