"""The config of a run: the task, the model, the training and the seed. Two runs with the same config are the same
run; its hash is the run's identity. This is plain data without torch, so that `--help` and the report stay light."""

from __future__ import annotations

import hashlib
import json
import math
import re
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Literal, get_args, get_type_hints

from headway.errors import HeadwayError, unknown
from headway.runs.shapes import fill, fits

LARGEST = 2**31 - 1  # largest size, count or token
LATER = (
    ("model", "norm"),
    ("model", "points"),
    ("training", "schedule"),
    ("training", "dropout"),
    ("training", "stored"),
)
"""settings that config.json names only where they do not have their defaults"""


@dataclass(frozen=True)
class ModelConfig:
    kind: Literal["encoder-decoder", "decoder", "classifier", "averaging"]
    vocabulary: int
    trained: int
    """tokens of the longest source in training; for a decoder, of source and answer together"""
    trained_answer: int
    """tokens of the longest answer in training"""
    positions: str = "sinusoidal"
    d_model: int = 128
    heads: int = 4
    d_ff: int = 512
    layers: int = 2
    """layers of the encoder, the classifier or the decoder-only model"""
    decoder_layers: int = 2
    index: str = "sequential"
    pooling: Literal["mean", "max", "violation"] = "mean"
    start: int | None = None
    end: int | None = None
    classes: int | None = None
    digits: int | None = None
    """tokens below this are digits, where problems have columns"""
    least_first: bool = False
    """whether answers begin with the least significant digit"""
    segments: bool = False
    """decoder only: whether a learned segment embedding distinguishes the problem from the answer"""
    pruned: str = ""
    """removed heads, separated by spaces: decoder.0.self.1 decoder.1.cross.3"""
    norm: Literal["pre", "post"] = "pre"
    """whether each sublayer's input is normalised, or the residual stream after it"""
    points: Literal["line", "table"] = "line"
    """averaging only: whether digits are evenly spaced in order, or each is learned on its own"""

    def __post_init__(self) -> None:
        _at_least(1, self, "d_model", "heads", "d_ff", "layers", "decoder_layers", "vocabulary", "trained")
        _at_least(0, self, "trained_answer", "start", "end", "classes", "digits")
        if self.d_model % self.heads and self.kind != "averaging":  # its heads are as wide as the stream
            most = min(self.d_model, 4 * self.heads, 1024)
            fitting = ", ".join(str(n) for n in range(1, most + 1) if self.d_model % n == 0)
            raise HeadwayError(f"{self.heads} heads do not divide d_model {self.d_model}; heads can be {fitting}")

    @property
    def dim(self) -> int:
        """The width of one head."""
        return self.d_model // self.heads

    def remaining_heads(self, site: str) -> list[int]:
        """Lists the numbers of the heads that a site has after pruning."""
        removed = set(self.pruned.split())
        return [number for number in range(self.heads) if f"{site}.{number}" not in removed]


@dataclass(frozen=True)
class TrainingConfig:
    steps: int
    batch: int
    optimizer: Literal["muon", "adamw", "adam"]
    learning_rate: float
    """learning rate of the embeddings, norms and biases; with AdamW and Adam, of all weights"""
    muon_rate: float = 0.02
    """learning rate of the hidden matrices, with Muon"""
    momentum: float = 0.8
    """momentum of Muon; with the customary 0.95 fewer seeds became perfect in a few hundred steps"""
    weight_decay: float = 0.01
    warmup: int = 100
    hard: float = 0.0
    """share of each batch from the task's hard probe"""
    until: Literal["perfect"] | None = None
    """stop as soon as every trainable problem is right"""
    recovered: int = 0
    """training steps after heads were removed"""
    schedule: Literal["cosine", "constant"] = "cosine"
    """the learning rate after the warm-up"""
    dropout: float = 0.0
    stored: int | None = None
    """train on this many problems, drawn once and read in shuffled epochs; None for fresh problems at every step"""

    def __post_init__(self) -> None:
        _at_least(1, self, "steps", "batch", "stored")
        _at_least(0, self, "warmup", "recovered")
        if not 0 <= self.dropout < 1:
            raise HeadwayError(f"dropout is {self.dropout}; it is a share of at least 0 and below 1")
        if not 0 <= self.hard <= 1:
            raise HeadwayError(f"hard is {self.hard}; it is a share between 0 and 1")
        if not 0 <= self.momentum < 1:
            raise HeadwayError(f"momentum is {self.momentum}; it must be at least 0 and below 1")
        if not (0 <= self.weight_decay < math.inf):
            raise HeadwayError(f"weight_decay is {self.weight_decay}; it must be at least 0")
        for name in ("learning_rate", "muon_rate"):
            if not 0 < getattr(self, name) < math.inf:
                raise HeadwayError(f"{name} is {getattr(self, name)}; it must be above 0")


@dataclass(frozen=True)
class RunConfig:
    task: str
    model: ModelConfig
    training: TrainingConfig
    seed: int
    options: dict[str, Any] = field(default_factory=dict)
    """all options of the task, defaults included"""
    data: str | None = None
    """hash of the training file, where training read one"""
    source: str | None = None
    """hash of the user's own files that define the task and the encoding, where there are any"""

    def __post_init__(self) -> None:
        check_seed(self.seed)

    def to_json(self) -> dict[str, Any]:
        """Returns the config as plain values. Settings that older versions did not have are left out where they have
        their defaults, so that the same run keeps its hash."""
        content = asdict(self)
        for part, name in LATER:
            kind = ModelConfig if part == "model" else TrainingConfig
            if content[part][name] == getattr(kind, name):
                del content[part][name]
        if self.source is None:
            del content["source"]
        return content

    @cached_property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()

    @property
    def name(self) -> str:
        """A short name for people: task, positions, seed."""
        return f"{self.stem}-seed{self.seed}-{self.digest[:8]}"

    @property
    def family(self) -> str:
        """A name for the seeds of one config together."""
        return f"{self.stem}-{replace(self, seed=0).digest[:8]}"

    @property
    def stem(self) -> str:
        """Task and positions in a form that is valid as a folder name."""
        return folder_name(f"{self.task}-{self.model.positions}")

    @property
    def address(self) -> str:
        """The name of its folder where runs are stored by config; the hash is long enough for millions of them."""
        return f"{self.stem}-seed{self.seed}-{self.digest[:20]}"

    @staticmethod
    def from_json(raw: Any) -> RunConfig:
        """Reads a config; the error names a missing, unknown or ill-typed entry."""
        try:
            model, training = fill(ModelConfig, raw["model"]), fill(TrainingConfig, raw["training"])
            config = fill(RunConfig, {**raw, "model": model, "training": training})
            config.digest  # noqa: B018  a config without a digest is invalid
            return config
        except (KeyError, TypeError, RecursionError) as error:
            raise HeadwayError(f"not the config of a run: {error}") from error


@dataclass(frozen=True)
class Overrides:
    """Settings that a user overrides; None leaves the task's default. The texts are those of `--help`."""

    model: Literal["encoder-decoder", "decoder", "classifier"] | None = None
    """kind of model"""
    positions: str | None = None
    """position encoding; 'headway list positions' names them, module:Class is your own"""
    index: str | None = None
    """position index"""
    pooling: Literal["mean", "max", "violation"] | None = None
    """how a classifier pools its positions"""
    segments: bool | None = None
    """decoder only: add segment embeddings for problem and answer (default: with the coupled index)"""
    d_model: int | None = None
    """width of the model"""
    heads: int | None = None
    """heads at each site"""
    d_ff: int | None = None
    """width of the feed-forward blocks"""
    layers: int | None = None
    """layers of the encoder (or of the decoder-only model)"""
    decoder_layers: int | None = None
    """layers of the decoder of an encoder-decoder"""
    norm: Literal["pre", "post"] | None = None
    """pre: layer norm before each sublayer (default); post: after it"""
    recipe: Literal["reports"] | None = None
    """a set of defaults; reports: post-norm, Adam at 1e-3 throughout, dropout 0.1, 50 epochs of 10,000 stored sums"""
    steps: int | None = None
    """training steps"""
    epochs: int | None = None
    """instead of steps: passes through the stored problems"""
    batch: int | None = None
    """problems per step"""
    stored: int | None = None
    """train on this many problems, drawn once and shuffled every epoch, instead of fresh ones at every step"""
    optimizer: Literal["muon", "adamw", "adam"] | None = None
    """muon for the hidden matrices, or adamw or adam (no weight decay) for everything"""
    learning_rate: float | None = None
    """peak rate of AdamW or Adam"""
    muon_rate: float | None = None
    """peak rate of Muon"""
    momentum: float | None = None
    """momentum of Muon"""
    weight_decay: float | None = None
    """weight decay"""
    warmup: int | None = None
    """steps over which the learning rate rises"""
    schedule: Literal["cosine", "constant"] | None = None
    """the learning rate after the warm-up: cosine decay to 0 (default), or constant"""
    dropout: float | None = None
    """share of activations that training drops at random"""
    hard: float | None = None
    """share of each batch from the task's hard problems (addition: carry-heavy)"""
    until: Literal["perfect"] | None = None
    """stop once every trainable problem is right"""

    @staticmethod
    def from_settings(raw: dict[str, Any]) -> Overrides:
        """Makes overrides of plain values; the error names one that is unknown or ill-typed."""
        hints = get_type_hints(Overrides)
        for name, value in raw.items():
            if name not in hints:
                raise unknown("setting", name, hints)
            if not fits(value, hints[name]):
                kind = get_args(hints[name])[0]  # of `kind | None`
                choices = f"there are: {', '.join(map(str, get_args(kind)))}"
                wanted = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}.get(kind)
                raise HeadwayError(f"{name} is {value!r}; {f'it must be {wanted}' if wanted else choices}")
            if isinstance(value, int) and value.bit_length() > 63:
                raise HeadwayError(f"{name} is a number of {value.bit_length()} bits; it must be below 2^63")
        return Overrides(**raw)

    def check_choices(self, *names: str) -> None:
        """Rejects a value of these settings that is not among their choices; None is."""
        hints = get_type_hints(Overrides)
        for name in names:
            choices = get_args(get_args(hints[name])[0])  # of `Literal[…] | None`
            if (value := getattr(self, name)) is not None and value not in choices:
                raise unknown(name, value, choices)

    def to_dict(self) -> dict[str, Any]:
        """Returns the settings that are given, by name."""
        names = [entry.name for entry in fields(Overrides)]
        return {name: value for name in names if (value := getattr(self, name)) is not None}


def folder_name(text: str) -> str:
    """Makes a name for one folder, without characters that would lead to another."""
    return re.sub(r"^[.-]", "_", re.sub(r"[^\w+=.,-]", ".", text))[:80]


def check_seed(seed: int) -> None:
    if not 0 <= seed < 2**63:
        raise HeadwayError(f"seed is {seed}; it must be a whole number from 0 to 2^63 - 1")


def _at_least(least: int, config: Any, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        if value is not None and not least <= value <= LARGEST:
            bound = f"least {least}" if value < least else f"most {LARGEST:,}"
            raise HeadwayError(f"{name} is {value}; it must be at {bound}")
