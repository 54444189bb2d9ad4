"""Models and files as a page carries them: half floats, and gzip."""

from __future__ import annotations

import base64
import gzip
from pathlib import Path
from typing import Any

from headway.errors import BrokenRun
from headway.report.page.found import Found
from headway.report.page.reading import bytes_of
from headway.runs.folder import RunFolder

MOST_FILES = 1_000_000
"""bytes that all files may take in the page, packed; the largest stay outside"""


def packed(run: RunFolder) -> dict[str, Any]:
    """A model as half floats, after its files were held against their hashes. Of position tables only the rows that a
    sum of these digits uses."""
    import numpy

    config = run.verified()
    model, digits = config.model, config.options.get("digits", 3)
    rows = {"source_positions.table": 2 * digits + 1, "answer_positions.table": digits + 1}
    weights = {}
    for name, weight in _read(run).items():
        with numpy.errstate(over="ignore"):  # what a half float cannot hold is infinite in the page too
            half = weight[: rows.get(name, len(weight))].astype(numpy.float16)
        data = base64.b64encode(half.astype("<f2").tobytes()).decode()
        weights[name] = {"shape": list(half.shape), "data": data}
    return {
        "d_model": model.d_model,
        "heads": model.heads,
        "layers": model.layers,
        "decoder_layers": model.decoder_layers,
        "start": model.start,
        "positions": model.positions,
        "vocabulary": [*map(str, range(10)), "+", "−", "start", "end"],
        "digits": digits,
        "weights": weights,
    }


def _read(run: RunFolder) -> dict[str, Any]:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        weights = load_file(run.weights)
    except (SafetensorError, OSError, ValueError, OverflowError, KeyError, TypeError) as error:
        raise BrokenRun(f"{run.weights} holds no tensors ({error}); restore it or train again elsewhere") from error
    for name, weight in weights.items():
        if weight.ndim == 0 or weight.dtype.kind != "f":
            raise BrokenRun(f"{run.weights}: {name} is no table of weights; restore it or train again elsewhere")
    return weights


def packed_files(found: Found) -> tuple[list[dict[str, str]], list[str]]:
    """What lies in the folders, packed; and the names of the largest, where all would be too much."""
    packed = {path: gzip.compress(bytes_of(path), mtime=0) for path in found.files}
    taken, room = set(), MOST_FILES
    for path in sorted(packed, key=lambda path: len(packed[path])):
        room -= len(packed[path])
        if room >= 0:
            taken.add(path)
    files = [
        {"name": _flat(found, path), "data": base64.b64encode(packed[path]).decode()}
        for path in found.files
        if path in taken
    ]
    return files, [_flat(found, path) for path in found.files if path not in taken]


def _flat(found: Found, path: Path) -> str:
    return found.name(path).replace("/", "-")
