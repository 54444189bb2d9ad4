"""The machine: the device, the number of threads, and what a run records about them."""

import gc
import os
import platform
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

import torch

from headway.errors import HeadwayError

SHAPES = 64  # input shapes for which one function is compiled; further ones run eagerly

Item = TypeVar("Item")
Result = TypeVar("Result")


def choose_device(name: str) -> torch.device:
    """Chooses the device; `auto` is a GPU if there is one."""
    if name not in ("auto", "cpu", "cuda"):
        raise HeadwayError(f"unknown device {name!r}; there are: auto, cpu, cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise HeadwayError("`device=cuda`, but this machine has no CUDA device; use `device=cpu` or `device=auto`")
    device = torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")
    prepare(device)
    return device


def choose_precision(name: str, device: torch.device) -> torch.dtype:
    """Chooses the precision that a stack of models runs in; `auto` is bfloat16 on a GPU."""
    known = {"float32": torch.float32, "bfloat16": torch.bfloat16}
    if name != "auto" and name not in known:
        raise HeadwayError(f"unknown precision {name!r}; there are: auto, {', '.join(known)}")
    if name == "bfloat16" and device.type == "cpu":
        raise HeadwayError("`precision=bfloat16` is for a GPU; on a CPU it is slower and less precise: leave it out")
    return known["bfloat16" if name == "auto" and device.type == "cuda" else name.replace("auto", "float32")]


def prepare(device: torch.device) -> None:
    """Configures torch so that the same command gives the same bytes and small steps use few threads."""
    torch.set_num_threads(threads())
    torch.set_flush_denormal(True)
    if device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=True)
        # deterministic mode would also fill every fresh tensor, which we never read before writing
        torch.utils.deterministic.fill_uninitialized_memory = False  # pyright: ignore[reportAttributeAccessIssue]
        torch.set_float32_matmul_precision("high")


def compile_on_gpu(work: Callable[..., Any], device: torch.device) -> Callable[..., Any]:
    """Compiles a function for a GPU. On a CPU it is returned unchanged: on two cores compiling did not pay."""
    if device.type != "cuda":
        return work
    import torch._dynamo.config as limits
    import torch._inductor.config as settings

    if hasattr(settings, "deterministic"):
        settings.deterministic = True  # kernels are chosen by rule, not by timing: the same bytes every time
    limits.recompile_limit = SHAPES
    return torch.compile(work, dynamic=False)  # vmap is incompatible with symbolic sizes


@contextmanager
def full_precision_matmul() -> Iterator[None]:
    """Computes float32 matrix products in full precision; otherwise a GPU may round their factors."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def threads() -> int:
    """Returns the number of cores this process may use, at most four: steps of small models are too short to split
    further. It depends only on the machine, not on its load, because the thread count changes how sums round.
    HEADWAY_THREADS overrides it."""
    chosen = os.environ.get("HEADWAY_THREADS", "") or str(min(cores(), 4))
    if not chosen.isdecimal() or int(chosen) < 1:
        raise HeadwayError(f"HEADWAY_THREADS is {chosen!r}; it must be a whole number of at least 1")
    return int(chosen)


def map_in_threads(work: Callable[[Item], Result], items: Sequence[Item], device: torch.device) -> list[Result]:
    """Calls `work` for each item. On a CPU the items are divided among the threads: operations on small tensors are too
    short to be split over threads."""
    workers = torch.get_num_threads()
    if device.type != "cpu" or workers == 1 or len(items) == 1:
        return [work(item) for item in items]
    try:
        with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            return list(pool.map(work, items))
    finally:
        torch.set_num_threads(workers)


def halve_on_out_of_memory(work: Callable[[slice], Result], stop: int, start: int = 0) -> list[Result]:
    """Calls `work` for all rows at once or, if that runs out of memory, for each half of them, and so on."""
    try:
        return [work(slice(start, stop))]
    except (RuntimeError, MemoryError) as error:
        if stop - start <= 1 or not is_out_of_memory(error):
            raise
    gc.collect()  # the error is gone here, but not yet the memory it held
    torch.cuda.empty_cache()
    half = (start + stop + 1) // 2
    return [*halve_on_out_of_memory(work, half, start), *halve_on_out_of_memory(work, stop, half)]


def is_out_of_memory(error: BaseException) -> bool:
    """Tells whether an error means that memory ran out, on a GPU or on the CPU."""
    full = isinstance(error, torch.OutOfMemoryError | MemoryError)
    return full or (isinstance(error, RuntimeError) and "allocate memory" in str(error))


@cache
def cpu_has_bfloat16() -> bool:
    """Whether this CPU multiplies bfloat16 by instructions of its own; without them it is slower than float32."""
    info = Path("/proc/cpuinfo")
    flags = set(info.read_text().split()) if info.exists() else set()
    return bool(flags & {"avx512_bf16", "amx_bf16"}) and torch.backends.mkldnn.is_available()


def cores() -> int:
    """Returns the number of cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def environment(device: torch.device) -> dict[str, str | int]:
    """Describes the versions and the machine, as needed to judge or repeat a result."""
    try:
        installed = version("headway")
    except PackageNotFoundError:
        installed = "unknown"
    return {
        "headway": installed,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "system": platform.platform(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
        "command": shlex.join(["headway", *sys.argv[1:]]),
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
