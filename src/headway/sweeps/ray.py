"""The Ray engine: an order is a task of a Ray cluster. Ray ships this package and the sweep's own code to the nodes,
and finds each task a place; a task whose node dies is begun again by the driver.

Results lie in a shared folder where every node sees the same one, or come back through Ray's object store, and then the
driver writes them.
"""

from __future__ import annotations

import logging
import os
import socket
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from headway.errors import HeadwayError
from headway.runs import disk
from headway.runs.config import RunConfig
from headway.runs.folder import RunFolder
from headway.sweeps.engine import Ended
from headway.sweeps.file import Resources
from headway.sweeps.trial import RECORD, Order, Result, carry_out, home_of, set_aside

Files = dict[str, bytes]
LAST = ("training.json", RECORD)
"""the files that say that a run, and a trial, is complete: written after all others"""
REACHED_WITHIN = 5.0


class RayEngine:
    def __init__(
        self, out: Path, resources: Resources, device: str, address: str | None, home: Path | None, returned: bool
    ) -> None:
        try:
            import ray
        except ImportError as error:
            raise HeadwayError("--engine ray needs Ray; install it with: pip install 'headway[ray]'") from error
        self.ray, self.out, self.resources, self.device, self.returned = ray, out, resources, device, returned
        _join(ray, address, resources, home)
        if device == "cuda" and not ray.cluster_resources().get("GPU"):
            self.device = "cpu"
        wanted: dict[str, Any] = {"num_cpus": resources.threads, "max_retries": 0}
        if self.device == "cuda":
            wanted["num_gpus"] = resources.gpus or 1
        if resources.memory is not None:
            wanted["memory"] = resources.memory
        self._task = ray.remote(**wanted)(_returned if returned else _shared)
        self._running: dict[Any, tuple[int, Order, float]] = {}
        self._check_nodes()

    @property
    def slots(self) -> int:
        """As many as the nodes that are there now can run: nodes may come and go."""
        there = self.ray.cluster_resources()
        counts = [there.get("CPU", 0) / self.resources.threads]
        if self.device == "cuda":
            counts.append(there.get("GPU", 0) / (self.resources.gpus or 1))
        if self.resources.memory is not None:
            counts.append(there.get("memory", 0) / self.resources.memory)
        return max(1, int(min(counts)))

    @property
    def room(self) -> int:
        """Some wait in line, so that no node does."""
        return self.slots + max(1, self.slots // 2) - len(self._running)

    def start(self, ticket: int, order: Order) -> None:
        there = {config.address: run_files(self.out, config) for config in order.runs if self.returned}
        self._running[self._task.remote(order, there)] = (ticket, order, time.monotonic())

    def wait(self, seconds: float) -> list[Ended]:
        if not self._running:
            return []
        done, _ = self.ray.wait(list(self._running), num_returns=1, timeout=seconds)
        more, _ = self.ray.wait(list(self._running), num_returns=len(self._running), timeout=0)
        return [self._ended(task) for task in dict.fromkeys([*done, *more])]

    def _check_nodes(self) -> None:
        """Refuses what no node can meet, where there are nodes that take trials at all: it would wait for ever."""
        asked = {"CPU": float(self.resources.threads)}
        if self.device == "cuda":
            asked["GPU"] = self.resources.gpus or 1.0
        if self.resources.memory is not None:
            asked["memory"] = float(self.resources.memory)
        nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
        if nodes and not any(all(node.get(name, 0) >= amount for name, amount in asked.items()) for node in nodes):
            told = ", ".join(f"{name} {amount:g}" for name, amount in asked.items())
            best = ", ".join(f"{name} {max(node.get(name, 0) for node in nodes):g}" for name in asked)
            self.ray.shutdown()
            raise HeadwayError(f"no node has what a trial asks for ({told}; the most there is: {best}); ask for less")

    def stop(self) -> None:
        for task in self._running:
            self.ray.cancel(task, force=True)
        self._running.clear()
        self.ray.shutdown()

    def _ended(self, task: Any) -> Ended:
        ticket, order, since = self._running.pop(task)
        try:
            answer = self.ray.get(task)
        except self.ray.exceptions.RayError as error:
            said = " ".join(str(error).split())
            most = None if order.timeout is None else order.timeout * len(order.configs)
            late = most is not None and time.monotonic() - since > most
            why = f"its process or node died ({type(error).__name__}){', when its time was over' if late else ''}"
            return Ended(ticket, None, why, said[:4000], late)
        if not self.returned:
            return Ended(ticket, answer)
        results, files = answer
        for config in order.runs:
            if files[config.address]:
                write_run(self.out, config, files[config.address])
        return Ended(ticket, results)


def write_run(out: Path, config: RunConfig, files: Files) -> None:
    """A run folder from files that came from elsewhere: only plain names, and what makes it complete comes last."""
    folder = home_of(out, config)
    for name in files:
        if name != Path(name).name or name in ("", ".", "..") or "\\" in name or "\0" in name:
            raise HeadwayError(f"a node sent a file called {name!r}, which is no plain name; it was not written")
    if folder.path.exists() and _other(folder, config):
        set_aside(folder, out)
    for name in sorted(files, key=lambda name: (name in LAST, LAST.index(name) if name in LAST else 0, name)):
        disk.write_bytes(folder.path / name, files[name])
    folder.changed()


def _other(folder: RunFolder, config: RunConfig) -> bool:
    try:
        return folder.config() != config
    except HeadwayError:
        return True


def run_files(out: Path, config: RunConfig) -> Files:
    """The files of a run that is complete; of another none."""
    folder = home_of(out, config)
    if not folder.complete:
        return {}
    return {path.name: path.read_bytes() for path in folder.path.iterdir() if path.is_file()}


def _shared(order: Order, there: dict[str, Files]) -> list[Result]:
    return carry_out(order)


def _returned(order: Order, there: dict[str, Files]) -> tuple[list[Result], dict[str, Files]]:
    """On a node: the trials in a folder of its own, begun with what the driver has of them, and all their files."""
    with tempfile.TemporaryDirectory(prefix="headway-") as folder:
        for config in order.runs:
            if there[config.address]:
                write_run(Path(folder), config, there[config.address])
        results = carry_out(replace(order, out=folder))
        return results, {config.address: run_files(Path(folder), config) for config in order.runs}


def _join(ray: Any, address: str | None, resources: Resources, home: Path | None) -> None:
    """Joins a running cluster, or begins one of this machine; ships the code."""
    threads = str(resources.threads)
    environment: dict[str, Any] = {
        "py_modules": [str(Path(__file__).parents[1])],
        "env_vars": {"HEADWAY_THREADS": threads, "OMP_NUM_THREADS": threads, "GOMP_SPINCOUNT": "1000"},
        "excludes": ["**/__pycache__"],
    }
    if home is not None:
        environment["working_dir"] = str(home)
    if resources.pip:
        environment["pip"] = list(resources.pip)
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    if ray.is_initialized():
        raise HeadwayError("this process is at a Ray cluster already; end that with ray.shutdown() first")
    try:
        if address is not None:
            _reach(address)
        ray.init(
            address=address or "local",
            runtime_env=environment,
            include_dashboard=False if address is None else None,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        where = f"the cluster at {address}" if address else "a cluster of this machine"
        raise HeadwayError(f"cannot join {where}: {' '.join(str(error).split())[:300]}") from error


def _reach(address: str) -> None:
    """Refuses an address where nobody listens: Ray itself would wait for minutes."""
    host, colon, port = address.rpartition("://")[2].rpartition(":")
    if not colon:  # auto, or a name that Ray knows
        return
    if not port.isdecimal():
        raise ValueError("an address is HOST:PORT, such as 10.0.0.1:6379")
    with socket.create_connection((host, int(port)), timeout=REACHED_WITHIN):
        pass
