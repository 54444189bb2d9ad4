"""Models and files as a page carries them: half floats, and gzip."""

import base64
import gzip
from typing import Any

from headway.errors import BrokenRun
from headway.report.page.sources import Sources
from headway.runs import disk
from headway.runs.folder import AGAIN, RunFolder

MOST_FILES = 1_000_000
"""bytes that all files may take in the page, packed; the largest stay outside"""


def pack_model(run: RunFolder) -> dict[str, Any]:
    """Packs a model as half floats, after its files were held against their hashes. Of position tables it takes only
    the rows that a sum of these digits uses."""
    import numpy

    config = run.verified()
    model, digits = config.model, config.options.get("digits", 3)
    rows = {"source_positions.table": 2 * digits + 1, "answer_positions.table": digits + 1}
    weights = {}
    for name, weight in _weights(run).items():
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


def _weights(run: RunFolder) -> dict[str, Any]:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        weights = load_file(run.weights)
    except (SafetensorError, OSError, ValueError, OverflowError, KeyError, TypeError) as error:
        raise BrokenRun(f"{run.weights} holds no tensors ({error}); {AGAIN}") from error
    for name, weight in weights.items():
        if weight.ndim == 0 or weight.dtype.kind != "f":
            raise BrokenRun(f"{run.weights}: {name} is not a table of weights; {AGAIN}")
    return weights


def pack_files(sources: Sources) -> tuple[list[dict[str, str]], list[str]]:
    """Packs what lies in the folders; names the largest files, where all would be too much."""
    packed = {path: gzip.compress(disk.read_bytes(path), mtime=0) for path in sources.files}
    taken, room = set(), MOST_FILES
    for path in sorted(packed, key=lambda path: len(packed[path])):
        room -= len(packed[path])
        if room >= 0:
            taken.add(path)
    names = {path: sources.name(path).replace("/", "-") for path in sources.files}
    files = [
        {"name": name, "data": base64.b64encode(packed[path]).decode()} for path, name in names.items() if path in taken
    ]
    return files, [name for path, name in names.items() if path not in taken]
