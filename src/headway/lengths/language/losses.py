"""Loss by position: how well a model predicts the user's text at each place of its context, and where that gets worse.

Places are grouped into bands, four to an octave. The rise is tested window by window, so that a text that is harder in
places does not look like a limit of the model.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor

from headway.evaluation.intervals import Interval
from headway.lengths.language.corpus import Material
from headway.lengths.language.reading import LanguageReader

WINDOWS, FEWEST = 16, 4  # passages of the text, at most and at least
PLACES = 24  # in a band, of which the loss is measured, evenly spread
BANDS, FIRST = 4, 16  # bands an octave, and where the first ends
LEAST = 0.01  # nats; less is no rise that anybody would notice
Measure = Callable[[int, int], None]


@dataclass(frozen=True)
class LossBand:
    """The loss over places `first` to `last` (not included) of a context."""

    first: int
    last: int
    loss: float
    interval: Interval
    rise: float
    """over the best octave before it, in the same passages"""
    rise_at_least: float
    """the lower end of its interval, corrected over all bands"""

    def to_json(self) -> dict[str, int | float | list[float]]:
        return {
            "first": self.first,
            "last": self.last,
            "loss": self.loss,
            "interval": self.interval.to_json(),
            "rise": self.rise,
            "rise_at_least": self.rise_at_least,
        }


@dataclass(frozen=True)
class LossCurve:
    """The loss at each place of a context, in nats for each token."""

    bands: tuple[LossBand, ...]
    windows: int
    length: int

    @property
    def rises_at(self) -> int | None:
        """Where the loss begins to rise: the first place of the first band that is shown to be worse than an earlier
        one; None if none is."""
        return next((band.first for band in self.bands if band.rise_at_least > 0 and band.rise > LEAST), None)

    def to_json(self) -> dict[str, int | list[dict[str, int | float | list[float]]] | None]:
        bands = [band.to_json() for band in self.bands]
        return {"length": self.length, "windows": self.windows, "rises_at": self.rises_at, "bands": bands}


def band_edges(length: int) -> list[int]:
    """Returns where bands begin and end, from place 1 on."""
    count = max(1, math.ceil(BANDS * math.log2(max(length, FIRST + 1) / FIRST)))
    edges = [round(FIRST * 2 ** (number / BANDS)) for number in range(count)]
    return sorted({1, *(edge for edge in edges if edge < length), length})


def longest_window(material: Material, length: int) -> int | None:
    """Returns how long the passages may be, so that there are enough; None where the text is too short."""
    tokens = 0 if material.text is None else len(material.text)
    fitting = min(length, tokens // FEWEST)
    return fitting if fitting >= 2 * FIRST else None


def measure_losses(reader: LanguageReader, material: Material, length: int, watch: Measure) -> LossCurve:
    """Measures the loss in each band of each passage."""
    windows, edges = material.windows(length, WINDOWS), band_edges(length)
    places = [torch.linspace(a, b - 1, min(PLACES, b - a)).round().long() for a, b in pairwise(edges)]
    at, counts = torch.cat(places), [len(band) for band in places]
    done = 0

    def read(rows: slice) -> Tensor:
        nonlocal done
        some = windows[rows]
        logits = reader.logits(some, at.expand(len(some), -1))
        wanted = some[:, at].to(logits.device)
        losses = torch.nn.functional.cross_entropy(logits.flatten(0, 1), wanted.flatten(), reduction="none")
        done += len(some)
        watch(done, len(windows))
        return torch.stack([band.mean(1) for band in losses.view(wanted.shape).split(counts, 1)], 1).double().cpu()

    losses = torch.cat(reader.in_pieces(read, len(windows), length))
    return LossCurve(tuple(_compare(losses, edges)), len(windows), length)


def _compare(losses: Float[Tensor, "window band"], edges: list[int]) -> list[LossBand]:
    """Compares each band with the best octave before it, window by window. The best of many single bands would be the
    best partly by chance, and everything after it would seem to rise."""
    from scipy.stats import t

    windows, count = losses.shape
    each = float(t.ppf(0.975, windows - 1))
    strict = float(t.ppf(1 - 0.05 / max(1, count - 1), windows - 1))
    found, best = [], losses[:, :BANDS].mean(1)
    for number, (first, last) in enumerate(pairwise(edges)):
        own = losses[:, number]
        half = each * float(own.std()) / math.sqrt(windows)
        change = own - best
        least = float(change.mean()) - strict * float(change.std()) / math.sqrt(windows)
        mean = float(own.mean())
        interval = Interval(mean - half, mean + half)
        found.append(LossBand(first, last, mean, interval, float(change.mean()), least if number >= BANDS else 0.0))
        octave = losses[:, max(0, number + 1 - BANDS) : number + 1].mean(1)
        if number >= BANDS and float(octave.mean()) < float(best.mean()):
            best = octave
    return found
