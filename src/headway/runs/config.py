"""What a run is: the task, the model, the training, the seed. Two runs with the same config are the same
run; its hash is the run's identity. Plain data without torch, so that `--help` and the report stay light."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from headway.errors import HeadwayError


@dataclass(frozen=True)
class ModelConfig:
    kind: Literal["encoder-decoder", "decoder", "classifier"]
    vocabulary: int
    trained: int
    """tokens of the longest sequence that training shows"""
    positions: str = "sinusoidal"
    d_model: int = 128
    heads: int = 4
    d_ff: int = 512
    layers: int = 2
    """layers of the encoder, of the classifier or of the decoder-only model"""
    decoder_layers: int = 2
    index: str = "sequential"
    pooling: Literal["mean", "max", "violation"] = "mean"
    start: int | None = None
    end: int | None = None
    classes: int | None = None

    def __post_init__(self) -> None:
        for name in ("d_model", "heads", "d_ff", "layers", "decoder_layers", "vocabulary", "trained"):
            if getattr(self, name) < 1:
                raise HeadwayError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.d_model % self.heads:
            near = [n for n in range(1, self.d_model + 1) if self.d_model % n == 0]
            fitting = ", ".join(str(n) for n in near if n <= 4 * self.heads)
            raise HeadwayError(f"{self.heads} heads do not divide d_model {self.d_model}; heads can be {fitting}")

    @property
    def dim(self) -> int:
        """Width of one head."""
        return self.d_model // self.heads


@dataclass(frozen=True)
class TrainingConfig:
    steps: int
    batch: int
    optimizer: Literal["muon", "adamw"]
    learning_rate: float
    """of the embeddings, norms and biases; with AdamW, of everything"""
    muon_rate: float = 0.02
    """of the hidden matrices, with Muon"""
    momentum: float = 0.8
    """of Muon; the customary 0.95 is too slow for runs of a few hundred steps"""
    weight_decay: float = 0.01
    warmup: int = 100
    hard: float = 0.0
    """share of each batch from the task's hard probe"""
    until: Literal["perfect"] | None = None
    """stop as soon as every trainable problem is right"""

    def __post_init__(self) -> None:
        for name in ("steps", "batch"):
            if getattr(self, name) < 1:
                raise HeadwayError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if not 0 <= self.hard <= 1:
            raise HeadwayError(f"hard is {self.hard}; it is a share between 0 and 1")
        for name in ("learning_rate", "muon_rate"):
            if not 0 < getattr(self, name) < float("inf"):
                raise HeadwayError(f"{name} is {getattr(self, name)}; it must be above 0")


@dataclass(frozen=True)
class RunConfig:
    task: str
    model: ModelConfig
    training: TrainingConfig
    seed: int
    options: dict[str, Any] = field(default_factory=dict)
    """the task's own options"""
    data: str | None = None
    """hash of the data files, where training read some"""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def digest(self) -> str:
        text = json.dumps(self.to_json(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def name(self) -> str:
        """What a person calls it: task, positions, seed."""
        task = self.task.replace(":", ".")
        return f"{task}-{self.model.positions.replace(':', '.')}-seed{self.seed}-{self.digest[:8]}"

    @staticmethod
    def from_json(raw: dict[str, Any]) -> RunConfig:
        """The config in `raw`; a missing, unknown or ill-typed entry is named."""
        try:
            model = _fill(ModelConfig, raw["model"])
            training = _fill(TrainingConfig, raw["training"])
            return _fill(RunConfig, {**raw, "model": model, "training": training})
        except (KeyError, TypeError, AttributeError) as error:
            raise HeadwayError(f"no config of a run: {error}") from error


def _fill(kind: type, raw: dict[str, Any]) -> Any:
    known = {entry.name for entry in fields(kind)}
    if extra := set(raw) - known:
        raise TypeError(f"unknown entry {sorted(extra)[0]!r} in {kind.__name__}")
    return kind(**raw)
