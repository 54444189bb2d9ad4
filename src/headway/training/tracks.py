"""The three tracks: the recipes under which all encodings are trained and compared.

`plain` is the setting of the published experiments: 4 layers, mean pooling, AdamW, the same values and disorder, but
with pre-norm and warm-up. `tuned` gives every encoding the same better
recipe and the same small choice of learning rates. `open` may also change the training data, not the number of steps.
Sums have 1 to 20 digits in training; `plain` uses the published encoder-decoder, which answers the most significant
digit first, the others a one-layer decoder that answers the least significant digit first.
"""

from dataclasses import dataclass, field, replace
from typing import Any

from headway.errors import unknown
from headway.runs.config import Overrides
from headway.tasks import Task


@dataclass(frozen=True)
class Track:
    name: str
    classifier: Overrides
    """for tasks that answer with a class"""
    adder: Overrides  # for tasks that answer with a sequence
    rates: tuple[float, ...] = (1.0,)
    """multiples of the recipe's learning rates; the best one in range is used for all seeds of an encoding"""
    options: dict[str, dict[str, Any]] = field(default_factory=dict)  # by task: options of the training data
    chooses: bool = False  # whether a rate is chosen among several
    blind_steps: int | None = None
    """training steps of encodings that are blind to order, which no training changes (default: like all others)"""

    def overrides(self, task: Task) -> Overrides:
        return self.adder if task.classes is None else self.classifier


RATES = (0.5, 1.0, 2.0)
ADAMW = Overrides(optimizer="adamw", steps=3000, batch=128)
MUON_CLASSIFIER = Overrides(pooling="max", steps=1000, batch=128, layers=2)
MUON_ADDER = Overrides(model="decoder", layers=1, d_model=128, heads=8, d_ff=512, steps=3000, batch=128, hard=0.5)
SUMS = {"digits": 20, "shortest": 1}
LEAST_FIRST = {**SUMS, "first": "least"}
MORE = {"sortedness": {"ranges": 0.5, "pools": 0.5}, "addition": LEAST_FIRST}

TRACKS = {
    track.name: track
    for track in (
        Track("plain", replace(ADAMW, pooling="mean"), ADAMW, options={"addition": SUMS}),
        Track("tuned", MUON_CLASSIFIER, MUON_ADDER, RATES, {"addition": LEAST_FIRST}, chooses=True),
        Track("open", replace(MUON_CLASSIFIER, hard=0.5), MUON_ADDER, RATES, MORE, chooses=True),
    )
}


def find_track(name: str) -> Track:
    if name not in TRACKS:
        raise unknown("track", name, TRACKS)
    return TRACKS[name]
