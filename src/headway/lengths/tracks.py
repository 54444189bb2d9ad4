"""The three tracks: what every encoding may do alike before it is compared.

`plain` is the setting of the published experiments: 4 layers, mean pooling, AdamW, values and disorder as they have
them; only what kept models from learning at all is mended (pre-norm, warm-up). `tuned` gives every encoding the same
better recipe and the same small choice of learning rates. `open` may also change what training shows, never for
longer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from headway.errors import unknown
from headway.runs.config import Wishes


@dataclass(frozen=True)
class Track:
    name: str
    wishes: Wishes
    rates: tuple[float, ...] = (1.0,)
    """multiples of the recipe's learning rates; the best in range is taken, for all seeds of an encoding"""
    options: dict[str, dict[str, Any]] = field(default_factory=dict)
    """by task: what training shows"""


TRACKS = {
    track.name: track
    for track in (
        Track("plain", Wishes(pooling="mean", optimizer="adamw", steps=3000, batch=128)),
        Track("tuned", Wishes(pooling="max", steps=1000, batch=128, layers=2), rates=(0.5, 1.0, 2.0)),
        Track(
            "open",
            Wishes(pooling="max", steps=1000, batch=128, layers=2, hard=0.5),
            rates=(0.5, 1.0, 2.0),
            options={"sortedness": {"ranges": 0.5, "pools": 0.25}},
        ),
    )
}


def find_track(name: str) -> Track:
    if name not in TRACKS:
        raise unknown("track", name, TRACKS)
    return TRACKS[name]
