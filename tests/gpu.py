"""Runs all CUDA tests and GPU benchmarks and writes the results to one page: `make gpu`, in results/gpu.md.

    python tests/gpu.py [--out FILE] [tests | ROW …]

It needs no network: missing packages come from carry/, which `make gpu-folder` fills on another machine. The page is
rewritten after every part; a part that is not run again stays unchanged.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
# Not time-to-perfect and length-study: their references train in batches of 64, where a GPU waits for Python for longer
# than all of these rows take together.
ROWS = (
    "sums-per-second", "head-study", "window-attention", "own-models-full-loss", "own-models-answer",
    "population-per-model",
)  # fmt: skip
PACKAGES = ("torch", "triton", "numpy", "scipy", "jaxtyping", "safetensors", "transformers", "pytest")
TITLE = "# On a GPU\n\nWritten by `make gpu`: every CUDA test, and the GPU benchmarks (`--device cuda`).\n"


def main() -> int:
    parser = argparse.ArgumentParser(description="Runs the CUDA tests and the GPU benchmarks.")
    parser.add_argument("parts", nargs="*", help=f"tests, {', '.join(ROWS)} (default: all)")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "gpu.md")
    options = parser.parse_args()
    import torch

    if not torch.cuda.is_available():
        print("this machine has no CUDA device; run make gpu on one that does", file=sys.stderr)
        return 2
    parts = read_page(options.out) | {"Machine": describe_machine()}
    failed = []
    for name in options.parts or ("tests", *ROWS):
        print(f"{name} …", file=sys.stderr, flush=True)
        parts["Tests" if name == "tests" else name], succeeded = run_tests() if name == "tests" else run_row(name)
        failed += [] if succeeded else [name]
        write_page(options.out, parts)
        print(parts["Tests" if name == "tests" else name], flush=True)
    print(f"failed: {', '.join(failed)}" if failed else f"all passed; see {options.out}", file=sys.stderr)
    return 1 if failed else 0


def describe_machine() -> str:
    import torch

    versions = [f"{name} {found}" for name in PACKAGES if (found := version_of(name))]
    about = torch.cuda.get_device_properties(0)
    return (
        f"{about.name}, {about.total_memory / 2**30:.0f} GiB, {about.multi_processor_count} multiprocessors; CUDA "
        f"{torch.version.cuda}; Python {platform.python_version()}, {', '.join(versions)}; "
        f"{time.strftime('%Y-%m-%d', time.gmtime())}.\n"
    )


def version_of(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def run_tests() -> tuple[str, bool]:
    """Runs every CUDA test, including slow ones, and prints their output and times as they run."""
    words = ["-m", "pytest", "-v", "-m", "", "-W", "default", "-rfEs", "--durations=0", "-p", "no:cacheprovider"]
    command, lines = [sys.executable, *words, "tests/test_cuda.py"], []
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as running:
        for line in running.stdout or ():
            print(line, end="", file=sys.stderr, flush=True)
            lines.append(line.rstrip())
    kept = [line for line in lines if line and (running.returncode or " call " in line or " passed" in line)]
    return "".join(f"    {line}\n" for line in kept), running.returncode == 0


def run_row(name: str) -> tuple[str, bool]:
    """Runs one row of the bench in its own process."""
    words = ["-m", "headway", "bench", name, "--json", "--quiet", "--device", "cuda"]
    began = time.perf_counter()
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        return "".join(f"    {line}\n" for line in done.stderr.splitlines()[-30:]), False
    row: dict[str, Any] = json.loads(done.stdout)["rows"][0]
    sentence = (
        f"Ours {row['ours_seconds']:.4g} s, the reference {row['reference_seconds']:.4g} s: {row['ratio']:.4g} times "
        f"faster, {'the same' if row['same_result'] else 'ANOTHER'} result; {time.perf_counter() - began:.0f} s "
        f"in all. The reference: {row['reference']}.\n\n"
    )
    main_keys = ("name", "ours_seconds", "reference", "reference_seconds", "ratio", "same_result")
    details = {key: value for key, value in row.items() if key not in main_keys}
    return sentence + "".join(f"    {key}: {json.dumps(value)}\n" for key, value in details.items()), row["same_result"]


def read_page(path: Path) -> dict[str, str]:
    """Reads the parts of an existing page, by title."""
    sections = path.read_text().split("\n## ")[1:] if path.exists() else []
    return {title: body.strip("\n") + "\n" for title, _, body in (section.partition("\n") for section in sections)}


def write_page(path: Path, parts: dict[str, str]) -> None:
    order = ["Machine", "Tests", *ROWS, *parts]
    titles = [title for title in dict.fromkeys(order) if title in parts]
    path.write_text(TITLE + "".join(f"\n## {title}\n\n{parts[title]}" for title in titles))


if __name__ == "__main__":
    sys.exit(main())
