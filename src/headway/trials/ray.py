"""The Ray engine: a piece of work is a task of a Ray cluster. Ray ships this package and the user's code to the nodes
and schedules the tasks; the driver restarts a task whose node dies.

Results are in a folder that all nodes share, or come back through Ray's object store, and then the driver writes them.
"""

import contextlib
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
from headway.runs.folder import RunFolder
from headway.trials.execute import run_piece, set_aside
from headway.trials.local import EndedPiece, OnProgress
from headway.trials.trial import RECORD, Piece, Result, Terms, Trial

Files = dict[str, bytes]
LAST = ("training.json", RECORD)  # the files that mark a run, and a trial, as complete: written after all others
CONNECT_TIMEOUT = 5.0


class RayEngine:
    def __init__(self, terms: Terms, address: str | None, returned: bool) -> None:
        try:
            import ray
        except ImportError as error:
            raise HeadwayError("`engine=ray` needs Ray; install it with: pip install 'headway[ray]'") from error
        self.ray, self.returned = ray, returned
        self.on_progress: OnProgress = lambda ticket, steps, words: None
        _connect(ray, address, terms)
        if terms.device == "cuda" and not ray.cluster_resources().get("GPU"):
            terms = replace(terms, device="cpu")
        self.terms, resources = terms, terms.resources
        gpus = (resources.gpus or 1.0) if terms.device == "cuda" else None
        needs = {"CPU": resources.threads, "GPU": gpus, "memory": resources.memory}
        self._needs = {name: amount for name, amount in needs.items() if amount is not None}
        wanted: Any = {"num_cpus": resources.threads, "num_gpus": gpus, "memory": resources.memory}
        self._task = ray.remote(**wanted, max_retries=0)(_run_and_return_files if returned else run_piece)
        self._running: dict[Any, tuple[int, Piece, float]] = {}
        self._check_nodes()

    @property
    def slots(self) -> int:
        """The number of pieces that the current nodes can run; nodes may come and go."""
        there = self.ray.cluster_resources()
        return max(1, int(min(there.get(name, 0) / amount for name, amount in self._needs.items())))

    @property
    def room(self) -> int:
        """The number of pieces to submit; some wait in a queue so that no node is idle."""
        return self.slots + max(1, self.slots // 2) - len(self._running)

    def start(self, ticket: int, piece: Piece) -> None:
        files = {trial.place: run_files(trial.folder(self.terms.out)) for trial in piece.trials if self.returned}
        given: Any = (piece, self.terms, files) if self.returned else (piece, self.terms)
        self._running[self._task.remote(*given)] = (ticket, piece, time.monotonic())

    def wait(self, seconds: float) -> list[EndedPiece]:
        if not self._running:
            return []
        done, _ = self.ray.wait(list(self._running), num_returns=1, timeout=seconds)
        more, _ = self.ray.wait(list(self._running), num_returns=len(self._running), timeout=0)
        return [self._collect(task) for task in dict.fromkeys([*done, *more])]

    def _check_nodes(self) -> None:
        """Rejects requirements that none of the nodes can meet: such trials would wait forever."""
        nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
        needs = self._needs.items()
        if nodes and not any(all(node.get(name, 0) >= amount for name, amount in needs) for node in nodes):
            wanted = ", ".join(f"{name} {amount:g}" for name, amount in needs)
            best = ", ".join(f"{name} {max(node.get(name, 0) for node in nodes):g}" for name in self._needs)
            self.ray.shutdown()
            raise HeadwayError(f"no node has what a trial needs ({wanted}; the most available: {best}); ask for less")

    def stop(self) -> None:
        for task in self._running:
            self.ray.cancel(task, force=True)
        self._running.clear()
        self.ray.shutdown()

    def _collect(self, task: Any) -> EndedPiece:
        ticket, piece, since = self._running.pop(task)
        try:
            answer = self.ray.get(task)
        except self.ray.exceptions.RayError as error:
            message, most = " ".join(str(error).split()), self.terms.seconds(piece)
            late = most is not None and time.monotonic() - since > most
            why = f"its process or node died ({type(error).__name__}){' after its timeout' if late else ''}"
            return EndedPiece(ticket, None, why, message[:4000], late)
        if not self.returned:
            return EndedPiece(ticket, answer)
        results, files = answer
        for trial in piece.trials:
            if files[trial.place]:
                write_run(trial, self.terms.out, files[trial.place])
        return EndedPiece(ticket, results)


def write_run(trial: Trial, out: str | Path, files: Files) -> None:
    """Writes a run folder from files that a node sent: only plain names, and the files that mark it complete last."""
    folder = trial.folder(out)
    for name in files:
        if name != Path(name).name or name in ("", ".", "..") or "\\" in name or "\0" in name:
            raise HeadwayError(f"a node sent a file named {name!r}, which is not a plain file name; it was not written")
    there = None
    with contextlib.suppress(HeadwayError):
        there = folder.config()
    if folder.path.exists() and there != trial.config:
        set_aside(folder, out)
    for name in sorted(files, key=lambda name: (LAST.index(name) if name in LAST else -1, name)):
        disk.write_bytes(folder.path / name, files[name])
    folder.mark_changed()


def run_files(folder: RunFolder) -> Files:
    """Reads the files of a complete run; returns none if it is not complete."""
    paths = folder.path.iterdir() if folder.complete else ()
    return {path.name: path.read_bytes() for path in paths if path.is_file()}


def _run_and_return_files(piece: Piece, terms: Terms, files: dict[str, Files]) -> tuple[list[Result], dict[str, Files]]:
    """Runs on a node: trains in a temporary folder, starting from the driver's files, and returns all files."""
    with tempfile.TemporaryDirectory(prefix="headway-") as out:
        for trial in piece.trials:
            if files[trial.place]:
                write_run(trial, out, files[trial.place])
        results = run_piece(piece, replace(terms, out=out))
        return results, {trial.place: run_files(trial.folder(out)) for trial in piece.trials}


def _connect(ray: Any, address: str | None, terms: Terms) -> None:
    """Connects to a running cluster, or starts one on this machine; ships the code."""
    threads = dict.fromkeys(("HEADWAY_THREADS", "OMP_NUM_THREADS"), str(terms.resources.threads))
    environment: Any = {"py_modules": [str(Path(__file__).parents[1])], "excludes": ["**/__pycache__"]}
    environment["env_vars"] = {**threads, "GOMP_SPINCOUNT": "1000"}
    if terms.path:
        environment["working_dir"] = terms.path[0]
    if terms.resources.pip:
        environment["pip"] = list(terms.resources.pip)
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    if ray.is_initialized():
        raise HeadwayError("this process is already connected to a Ray cluster; call ray.shutdown() first")
    try:
        # fail at once if nothing listens at the address: Ray itself would wait for minutes
        host, colon, port = (address or "").rpartition("://")[2].rpartition(":")
        if colon and not port.isdecimal():
            raise ValueError("write the address as HOST:PORT, such as 10.0.0.1:6379")
        if colon:  # otherwise it is auto, or a name that Ray resolves
            socket.create_connection((host, int(port)), timeout=CONNECT_TIMEOUT).close()
        ray.init(
            address=address or "local",
            runtime_env=environment,
            include_dashboard=False if address is None else None,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        where = f"the cluster at {address}" if address else "a cluster on this machine"
        raise HeadwayError(f"cannot connect to {where}: {' '.join(str(error).split())[:300]}") from error
