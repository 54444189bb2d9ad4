"""Packs trained models into the page: the adder whose heads were studied, the classifiers of a study of length, and the
two certified models that ship with the package.

The page computes them itself (web/src/forward). The adder travels as half floats: it is the largest, and a test shows
that it stays perfect. The others travel in float32, because a proof holds for the weights that it checked, and because
a classifier past its training length is often near a tie, which rounded weights would tip.
"""

import base64
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from headway.errors import BrokenRun
from headway.runs import disk
from headway.runs.config import ModelConfig
from headway.runs.folder import AGAIN, RunFolder
from headway.runs.seal import CERTIFICATE

SHIPPED = Path(__file__).parents[2] / "pretrained"
ENCODINGS = ("learned", "sinusoidal", "none", "rope", "alibi")  # that the page computes, beside windows
WINDOW = re.compile(r"window\+behind=\d+\+ahead=\d+")
MOST_CLASSIFIERS = 3
MOST_BYTES = 450_000  # of the weights of a classifier: a larger one would make the page slow and large
VALUES = 100  # different elements of the sequences that the page makes
LONGEST = 128  # of them, as in web/src/sequences.ts


class PackedTensor(TypedDict):
    shape: list[int]
    data: str
    """base64, little-endian"""
    single: NotRequired[bool]
    """float32; a half float where this is absent"""


Weights = dict[str, PackedTensor]


class PackedModel(TypedDict):
    d_model: int
    heads: int
    layers: int
    positions: str
    weights: Weights


class PackedAdder(PackedModel):
    decoder_layers: int
    start: int | None
    vocabulary: list[str]
    digits: int


class PackedClassifier(PackedModel):
    name: str
    run: str
    pooling: str
    values: int
    trained: list[int]
    rows: int | None
    """lengths that the table of a learned encoding has rows for"""


class PackedDecoder(PackedModel):
    name: str
    start: int | None
    plus: int | None
    trained: list[int]


class PackedSmallest(TypedDict):
    """The smallest adder: its trained numbers by name, and what is proved of them."""

    name: str
    shift: float
    own: float
    right: float
    into: float
    out: float
    scale: float
    contexts: int
    margin: float
    bound: float


class LengthModels(TypedDict):
    classifiers: list[PackedClassifier]
    sorter: PackedClassifier
    adder: PackedDecoder
    smallest: PackedSmallest


def runs_in_page(run: RunFolder | None) -> bool:
    """Whether there is a run, and it is an adder whose forward pass the page supports."""
    if run is None:
        return False
    config = run.config()
    model, options = config.model, config.options
    usual = {"base": 10, "operators": "+", "first": "most", "natural": False}
    return (
        run.complete
        and (config.task, model.kind, model.index, model.pruned) == ("addition", "encoder-decoder", "sequential", "")
        and model.norm == "pre"
        and model.positions in ENCODINGS
        and options.get("digits", 3) in range(1, 16)  # a browser's numbers hold the sums of 15 digits
        and all(options.get(name, value) == value for name, value in usual.items())
    )


def pack_adder(run: RunFolder) -> PackedAdder:
    """Packs an adder as half floats. Of position tables it packs only the rows that a sum of these digits uses."""
    config = run.verify()
    model, digits = config.model, config.options.get("digits", 3)
    rows = {"source_positions.table": 2 * digits + 1, "answer_positions.table": digits + 1}
    return {
        **_pack_model(model, _pack_weights(run, single=False, rows=rows)),
        "decoder_layers": model.decoder_layers,
        "start": model.start,
        "vocabulary": [*map(str, range(10)), "+", "−", "start", "end"],
        "digits": digits,
    }


def pack_length_models(
    runs: Iterable[RunFolder], name: Callable[[Path], str], about_lengths: bool
) -> LengthModels | None:
    """Packs the models that a reader tries at any length: classifiers of these runs, one for each encoding, and the
    certified models. None where the page is not about lengths and has no classifier."""
    found: dict[str, RunFolder] = {}
    for run in sorted((run for run in runs if _is_classifier(run)), key=_preference):
        found.setdefault(run.config().model.positions, run)
    if not found and not about_lengths:
        return None
    sorter = RunFolder(SHIPPED / "certified-sorter")
    shipped = sorter.training().weights_sha256
    own = [run for run in found.values() if run.training().weights_sha256 != shipped][:MOST_CLASSIFIERS]
    return {
        "classifiers": [_pack_classifier(run, name(run.path), run.config().model.positions) for run in own],
        "sorter": _pack_classifier(sorter, "pretrained:certified-sorter", "certified sorter"),
        "adder": _pack_certified_adder(RunFolder(SHIPPED / "certified-adder")),
        "smallest": _pack_smallest(RunFolder(SHIPPED / "smallest-adder")),
    }


def _is_classifier(run: RunFolder) -> bool:
    """Whether a run is a finished classifier of sortedness whose forward pass the page supports."""
    config = run.config()
    model = config.model
    return (
        run.complete
        and (config.task, model.kind, model.index, model.pruned) == ("sortedness", "classifier", "sequential", "")
        and model.norm == "pre"
        and (model.positions in ENCODINGS or WINDOW.fullmatch(model.positions) is not None)
        and config.options.get("values", VALUES) == VALUES
        and run.weights.stat().st_size <= MOST_BYTES
    )


def _preference(run: RunFolder) -> tuple[int, int]:
    """Sorts runs by encoding, those of the lab first, and by seed."""
    config = run.config()
    known = config.model.positions in ENCODINGS
    return ENCODINGS.index(config.model.positions) if known else len(ENCODINGS), config.seed


def _pack_classifier(run: RunFolder, path: str, name: str) -> PackedClassifier:
    config = run.verify()
    model, weights = config.model, _pack_weights(run, single=True, rows={"positions.table": LONGEST})
    return {
        **_pack_model(model, weights),
        "name": name,
        "run": path,
        "pooling": model.pooling,
        "values": VALUES,
        "trained": [config.options.get("shortest", 8), config.options.get("longest", 16)],
        "rows": weights["positions.table"]["shape"][0] if model.positions == "learned" else None,
    }


def _pack_certified_adder(run: RunFolder) -> PackedDecoder:
    config = run.verify()
    return {
        **_pack_model(config.model, _pack_weights(run, single=True)),
        "name": "certified adder",
        "start": config.model.start,
        "plus": config.model.digits,  # the token after the digits
        "trained": [config.options["shortest"], config.options["digits"]],
    }


def _pack_smallest(run: RunFolder) -> PackedSmallest:
    run.verify()
    weights, proof = _load_weights(run), disk.read_json(run.path / CERTIFICATE)
    own, right = weights["blocks.0.attentions.self.out.weight"].ravel().tolist()
    return {
        "name": "pretrained:smallest-adder",
        "shift": weights["tokens.shift"].item(),
        "own": own,
        "right": right,
        "into": weights["blocks.0.feed.into.weight"].item(),
        "out": weights["blocks.0.feed.out.weight"].item(),
        "scale": weights["nearest.scale"].item(),
        "contexts": proof["contexts"],
        "margin": proof["smallest_margin"],
        "bound": proof["rounding_bound"],
    }


def _pack_model(model: ModelConfig, weights: Weights) -> PackedModel:
    return {
        "d_model": model.d_model,
        "heads": model.heads,
        "layers": model.layers,
        "positions": model.positions,
        "weights": weights,
    }


def _pack_weights(run: RunFolder, single: bool, rows: dict[str, int] | None = None) -> Weights:
    """Packs the tensors of a run, whose files were checked against their hashes; of some only their first rows."""
    import numpy

    weights = Weights()
    for name, weight in _load_weights(run).items():
        if weight.ndim == 0 or weight.dtype.kind != "f":
            raise BrokenRun(f"{run.weights}: {name} is not a weight tensor; {AGAIN}")
        with numpy.errstate(over="ignore"):  # numbers beyond half floats become infinite in the page too
            part = weight[: (rows or {}).get(name, len(weight))].astype("<f4" if single else "<f2")
        weights[name] = {"shape": list(part.shape), "data": base64.b64encode(part.tobytes()).decode()}
        if single:
            weights[name]["single"] = True
    return weights


def _load_weights(run: RunFolder) -> Mapping[str, Any]:
    """Returns the tensors of a run as NumPy arrays, by name."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        return load_file(run.weights)
    except (SafetensorError, OSError, ValueError, OverflowError, KeyError, TypeError) as error:
        raise BrokenRun(f"{run.weights} holds no tensors ({error}); {AGAIN}") from error
