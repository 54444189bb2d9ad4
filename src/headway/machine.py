"""The machine: which device, how many threads, and what to write down about them."""

from __future__ import annotations

import os
import platform
import shlex
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from headway.errors import HeadwayError


def choose_device(name: str) -> torch.device:
    """`auto` takes a GPU where there is one."""
    if name not in ("auto", "cpu", "cuda"):
        raise HeadwayError(f"unknown device {name!r}; there are: auto, cpu, cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise HeadwayError("--device cuda, but this machine has no CUDA device; use --device cpu or auto")
    device = torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")
    prepare(device)
    return device


def prepare(device: torch.device) -> None:
    """Settings under which the same command gives the same bytes, and small steps do not drown in threads."""
    torch.set_num_threads(threads())
    torch.set_flush_denormal(True)
    if device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=True)
        # deterministic mode would also fill every fresh tensor, which we never read before writing
        torch.utils.deterministic.fill_uninitialized_memory = False  # pyright: ignore[reportAttributeAccessIssue]
        torch.set_float32_matmul_precision("high")


def threads() -> int:
    """The cores this process may use, at most four: steps of small models are too short to split further.

    It depends on the machine alone, never on how busy it is, because sums over threads round differently.
    HEADWAY_THREADS overrides it.
    """
    chosen = os.environ.get("HEADWAY_THREADS", "")
    if chosen:
        if not chosen.isdecimal() or int(chosen) < 1:
            raise HeadwayError(f"HEADWAY_THREADS is {chosen!r}; it must be a whole number of at least 1")
        return int(chosen)
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(available, 4)


def environment(device: torch.device) -> dict[str, Any]:
    """What a reader needs to know to judge or repeat a result."""
    try:
        own = version("headway")
    except PackageNotFoundError:
        own = "unknown"
    return {
        "headway": own,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "system": platform.platform(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
        "command": shlex.join(["headway", *sys.argv[1:]]),
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
