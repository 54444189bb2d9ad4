"""How order is told: encodings and indices by name."""

from __future__ import annotations

from headway.errors import unknown
from headway.positions.index import Index, sequential
from headway.positions.learned import Learned, LearnedClamped
from headway.positions.none import NoPositions, NoPositionsCausal
from headway.positions.positions import Positions, Shape
from headway.positions.sinusoidal import Sinusoidal

POSITIONS: dict[str, type[Positions]] = {
    kind.name: kind for kind in (Sinusoidal, Learned, LearnedClamped, NoPositions, NoPositionsCausal)
}
INDICES: dict[str, Index] = {"sequential": sequential}

__all__ = ["INDICES", "POSITIONS", "Index", "Positions", "Shape", "find_index", "find_positions"]


def find_positions(name: str) -> type[Positions]:
    """An encoding's class, by its name or as a user's own `module:Class`."""
    from headway.plugins import load_class

    if ":" in name:
        return load_class(name, Positions)
    if name not in POSITIONS:
        raise unknown("positions", name, POSITIONS)
    return POSITIONS[name]


def find_index(name: str) -> Index:
    if name not in INDICES:
        raise unknown("index", name, INDICES)
    return INDICES[name]
