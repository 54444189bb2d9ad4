"""How order is told: encodings and indices by name."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headway.errors import HeadwayError, unknown
from headway.flags import plain_value
from headway.plugins import load_class
from headway.positions.alibi import Alibi, AlibiSigned
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
        Sinusoidal, Learned, LearnedClamped, NoPositions, NoPositionsCausal, Rope, Alibi, AlibiSigned, T5, Clipped,
        TransformerXL, Kerple, KerplePower, Fire, Sandwich, Window,
    )
}  # fmt: skip
INDICES: dict[str, type[Index]] = {kind.name: kind for kind in (Sequential, Randomized, Coupled, Abacus)}
LOG_LENGTH = "log-length"

__all__ = ["INDICES", "LOG_LENGTH", "POSITIONS", "Encoding", "Index", "Positions", "Relative", "Shape", "Unseen"]
__all__ += ["build_index", "find_index", "find_positions", "shape_of", "used"]


@dataclass(frozen=True)
class Encoding:
    """An encoding that was asked for: `t5+distance=16+log-length`."""

    name: str
    kind: type[Positions]
    settings: dict[str, Any]
    log_length: bool

    def __call__(self, shape: Shape) -> Positions:
        """It, for a model of this shape."""
        if self.kind.needs_causal and not shape.causal:
            need = f"{self.name} positions need a model whose queries see no later key; an encoder's see all"
            raise HeadwayError(f"{need}: choose others, or train a decoder (--model decoder)")
        try:
            made = self.kind(shape, **self.settings)
        except HeadwayError:
            raise
        except Exception as error:  # whatever a user's class may raise
            wrong = f"positions {self.name!r} cannot be made ({type(error).__name__}: {error})"
            raise HeadwayError(f"{wrong}; its constructor takes a headway.Shape and its settings") from error
        return made.with_log_length() if self.log_length else made


def find_positions(name: str) -> Encoding:
    """An encoding by its name, or a user's own as `module:Class`, with its settings."""
    base, *parts = name.split("+")
    kind = load_class(base, Positions) if ":" in base else POSITIONS.get(base)
    if kind is None:
        raise unknown("positions", base, POSITIONS)
    log_length = LOG_LENGTH in parts
    if log_length and kind.temper is not Positions.temper:
        raise HeadwayError(f"{base} tempers its scores by itself; leave out +{LOG_LENGTH}")
    if log_length and kind.offsets is not Positions.offsets and not any(part.startswith("share=") for part in parts):
        raise HeadwayError(f"{base} sees the same number of keys at every length; leave out +{LOG_LENGTH}")
    settings = _settings(base, kind, [part for part in parts if part != LOG_LENGTH], f"; +{LOG_LENGTH} fits any")
    return Encoding(name, kind, settings, log_length)


def find_index(name: str) -> tuple[type[Index], dict[str, Any]]:
    """An index's class and the settings asked for, such as `randomized+range=4096`."""
    base, *parts = name.split("+")
    if base not in INDICES:
        raise unknown("index", base, INDICES)
    return INDICES[base], _settings(base, INDICES[base], parts)


def build_index(name: str, digits: int | None, least_first: bool) -> Index:
    """An index for a task: `digits` is how many of its tokens are digits, where its problems have columns."""
    kind, settings = find_index(name)
    return kind(digits, least_first, **settings) if issubclass(kind, Coupled) else kind(**settings)


def shape_of(config: ModelConfig, index: Index, tokens: int, causal: bool = False, answers: int | None = None) -> Shape:
    """What an encoding is told of a model that trains on so many tokens, of which so many are of the answer."""
    kind = find_positions(config.positions).kind
    answers = config.trained_answer if answers is None else answers
    return Shape(config.d_model, config.heads, used(kind, index, tokens, answers), causal or kind.causal, tokens)


def used(kind: type[Positions], index: Index, tokens: int, answers: int) -> int:
    """How many different numbers, or distances, an encoding is told of so many tokens."""
    by_place = kind.embed is not Positions.embed
    return index.count(tokens, answers) if by_place else index.distances(tokens, answers)


def _settings(name: str, kind: Callable[..., Any], parts: list[str], more: str = "") -> dict[str, Any]:
    """The settings in `parts`, each `name=value`, held against what the constructor takes."""
    parameters = inspect.signature(kind).parameters.values()
    known = {entry.name: entry.default for entry in parameters if entry.default is not entry.empty}
    typed = {entry: str(value).lower() if isinstance(value, bool) else str(value) for entry, value in known.items()}
    settings = {}
    for part in parts:
        setting, equals, text = part.partition("=")
        if not equals or setting not in known:
            have = ", ".join(map("=".join, typed.items())) or "no settings"
            raise HeadwayError(f"{name}+{part}: {name} has {have}{more}")
        value, usual = plain_value(text), known[setting]
        if isinstance(usual, float) and type(value) is int:
            value = float(value)
        if type(value) is not type(usual):
            raise HeadwayError(f"{name}+{part}: {setting} is a {type(usual).__name__}, such as {typed[setting]}")
        settings[setting] = value
    return settings
