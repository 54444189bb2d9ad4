"""Position encodings and position indices, by name."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headway.errors import HeadwayError, unknown
from headway.flags import plain_value
from headway.plugins import load_class
from headway.positions.alibi import Alibi, AlibiSigned
from headway.positions.alibi_learned import AlibiLearned
from headway.positions.clipped import Clipped
from headway.positions.fire import Fire
from headway.positions.index import Abacus, Coupled, Index, Randomized, Sequential
from headway.positions.kerple import Kerple, KerplePower
from headway.positions.learned import Learned, LearnedClamped
from headway.positions.none import NoPositions, NoPositionsCausal
from headway.positions.positions import Positions, Relative, Shape, Unseen
from headway.positions.rope import Rope
from headway.positions.sandwich import Sandwich
from headway.positions.sinusoidal import Sinusoidal
from headway.positions.t5 import T5
from headway.positions.transformer_xl import TransformerXL
from headway.positions.window import Window
from headway.runs.config import ModelConfig

POSITIONS: dict[str, type[Positions]] = {
    kind.name: kind
    for kind in (
        Sinusoidal, Learned, LearnedClamped, NoPositions, NoPositionsCausal, Rope, Alibi, AlibiSigned, AlibiLearned,
        T5, Clipped, TransformerXL, Kerple, KerplePower, Fire, Sandwich, Window,
    )
}  # fmt: skip
INDICES: dict[str, type[Index]] = {kind.name: kind for kind in (Sequential, Randomized, Coupled, Abacus)}
LOG_LENGTH = "log-length"

__all__ = ["INDICES", "LOG_LENGTH", "POSITIONS", "Encoding", "Index", "Positions", "Relative", "Shape", "Unseen"]
__all__ += ["build_index", "count_indices", "find_index", "find_positions", "shape_of"]


@dataclass(frozen=True)
class Encoding:
    """A named encoding with its settings, such as `t5+distance=16+log-length`."""

    name: str
    kind: type[Positions]
    settings: dict[str, Any]
    log_length: bool

    def __call__(self, shape: Shape) -> Positions:
        """Builds the encoding for a model of this shape."""
        if self.kind.needs_causal and not shape.causal:
            need = f"{self.name} positions need a causal model, and an encoder is not causal"
            raise HeadwayError(f"{need}; choose other positions, or train a decoder: `model=decoder`")
        try:
            positions = self.kind(shape, **self.settings)
        except HeadwayError:
            raise
        except Exception as error:  # a user's class may raise anything
            wrong = f"positions {self.name!r} cannot be built ({type(error).__name__}: {error})"
            raise HeadwayError(f"{wrong}; the constructor must take a headway.Shape and the settings") from error
        return positions.with_log_length() if self.log_length else positions


def find_positions(name: str) -> Encoding:
    """Returns the encoding of that name, or a user's `module:Class`, with its settings."""
    base, *parts = name.split("+")
    kind = load_class(base, Positions) if ":" in base else POSITIONS.get(base)
    if kind is None:
        raise unknown("positions", base, POSITIONS)
    log_length = LOG_LENGTH in parts
    if log_length and kind.temper is not Positions.temper:
        raise HeadwayError(f"{base} already scales its scores; leave out +{LOG_LENGTH}")
    if log_length and kind.offsets is not Positions.offsets and not any(part.startswith("share=") for part in parts):
        raise HeadwayError(f"{base} sees the same number of keys at every length; leave out +{LOG_LENGTH}")
    settings = _settings(base, kind, [part for part in parts if part != LOG_LENGTH], f"; +{LOG_LENGTH} fits any")
    return Encoding(name, kind, settings, log_length)


def find_index(name: str) -> tuple[type[Index], dict[str, Any]]:
    """Returns the class and the settings of an index, such as `randomized+range=4096`."""
    base, *parts = name.split("+")
    if base not in INDICES:
        raise unknown("index", base, INDICES)
    return INDICES[base], _settings(base, INDICES[base], parts)


def build_index(name: str, digits: int | None, least_first: bool) -> Index:
    """Builds an index for a task; `digits` is the number of digit tokens, if its problems have columns."""
    kind, settings = find_index(name)
    return kind(digits, least_first, **settings) if issubclass(kind, Coupled) else kind(**settings)


def shape_of(config: ModelConfig, index: Index, tokens: int, causal: bool = False, answers: int | None = None) -> Shape:
    """Returns the Shape of a model that trains on `tokens` tokens, of which `answers` belong to the answer."""
    kind = find_positions(config.positions).kind
    trained = count_indices(kind, index, tokens, config.trained_answer if answers is None else answers)
    return Shape(config.d_model, config.heads, trained, causal or kind.causal, tokens)


def count_indices(kind: type[Positions], index: Index, tokens: int, answers: int) -> int:
    """Returns how many different indices, or distances, an encoding meets in a sequence of `tokens` tokens."""
    by_place = kind.embed is not Positions.embed
    return index.count(tokens, answers) if by_place else index.distances(tokens, answers)


def _settings(name: str, kind: Callable[..., Any], parts: list[str], more: str = "") -> dict[str, Any]:
    """Parses the settings in `parts`, each `name=value`, and checks them against the constructor."""
    parameters = inspect.signature(kind).parameters.values()
    known = {entry.name: entry.default for entry in parameters if entry.default is not entry.empty}
    typed = {entry: str(value).lower() if isinstance(value, bool) else str(value) for entry, value in known.items()}
    settings = {}
    for part in parts:
        setting, equals, text = part.partition("=")
        if not equals or setting not in known:
            have = ", ".join(map("=".join, typed.items())) or "no settings"
            raise HeadwayError(f"{name}+{part}: {name} has {have}{more}")
        value, default = plain_value(text), known[setting]
        if isinstance(default, float) and type(value) is int:
            value = float(value)
        if type(value) is not type(default):
            raise HeadwayError(f"{name}+{part}: {setting} must be {type(default).__name__}, such as {typed[setting]}")
        settings[setting] = value
    return settings
