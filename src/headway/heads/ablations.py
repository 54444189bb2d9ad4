"""The kinds of ablation, each of which replaces the output of a closed head in its own way. A new kind is one class
and its line in `ABLATIONS`."""

from collections import Counter
from collections.abc import Mapping

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headway.errors import HeadwayError, unknown
from headway.heads.question import WINDOW, WindowSize
from headway.models import Site
from headway.plugins import load_class
from headway.subjects.ragged import lengths_of
from headway.subjects.splits import Split, draw_split
from headway.subjects.subject import Subject
from headway.tasks import Problems

MEAN_OVER = 2_000  # held-out problems
PROVED = 200  # problems, of which a few of one length prove that heads can be narrowed
Replacements = Mapping[Site, Float[Tensor, "#row #query head dim"]]


class Ablation:
    """One kind of ablation of a subject's heads."""

    varies = False
    """whether the replacement differs from problem to problem"""
    window: WindowSize | None = None
    """what a closed head still sees, where its output is not replaced by another"""

    def __init__(self, subject: Subject, seed: int) -> None:
        self.subject, self.runner, self.seed = subject, subject.runner, seed

    def usable(self, problems: Problems) -> Problems:
        """Selects the problems that it can be measured on."""
        return problems

    def donors(self, problems: Problems) -> Problems | None:
        """Chooses another problem for each, whose outputs replace its own; None where none are needed."""
        return None

    def replacements(self, donors: Problems | None = None) -> Replacements:
        """Returns the replacement for the heads of each site, given the donors of a batch; no entry means zero."""
        return {}


class Zero(Ablation):
    """Replaces the output of a head by zero."""


class Mean(Ablation):
    """Replaces the output of a head by its mean over held-out problems: at each position, or over all positions where
    problems differ in length."""

    @torch.inference_mode()
    def __init__(self, subject: Subject, seed: int) -> None:
        super().__init__(subject, seed)
        problems = draw_split(subject, Split.MEANS, MEAN_OVER, seed, held_out=True)
        over = (0, 1) if self.runner.varied_lengths else (0,)

        @torch.inference_mode()
        def sums(rows: slice) -> dict[Site, tuple[Tensor, int]]:
            outputs = self.runner.record(self.runner.trim(problems[rows])).trace.outputs
            counted = {site: output.shape[: len(over)].numel() for site, output in outputs.items()}
            return {site: (each.double().sum(over, keepdim=True), counted[site]) for site, each in outputs.items()}

        totals: dict[Site, Tensor] = {}
        counts = Counter[Site]()
        for piece in self.runner.map_pieces(sums, problems):
            for site, (total, count) in piece.items():
                totals[site] = total + totals.get(site, 0)
                counts[site] += count
        self.means = {site: (total / counts[site]).float() for site, total in totals.items()}

    def replacements(self, donors: Problems | None = None) -> Replacements:
        return self.means


class Resample(Ablation):
    """Replaces the output of a head by its output on another problem."""

    varies = True

    def usable(self, problems: Problems) -> Problems:
        """Selects the problems that are not the only ones of their length."""
        if not self.runner.varied_lengths:
            return problems
        lengths = lengths_of(problems)
        return problems[(lengths[:, None] == lengths).sum(1).gt(1).nonzero()[:, 0]]

    def donors(self, problems: Problems) -> Problems:
        """Chooses another problem for each, in an order that is independent of the labels."""
        seed = Split.DONORS.seed(self.seed)
        if self.runner.varied_lengths:
            return problems[neighbours(problems, seed)]
        others = self.subject.draw(len(problems), seed, False)
        order = torch.randperm(len(others), generator=torch.Generator().manual_seed(seed))
        others = others[order.to(others.source.device)]
        same = (others.source == problems.source).all(1).nonzero()[:, 0]
        return others.replace_rows(same, others[(same + 1) % len(others)]) if len(same) else others

    def replacements(self, donors: Problems | None = None) -> Replacements:
        assert donors is not None
        return self.runner.record(donors).trace.outputs


class Windowed(Ablation):
    """Lets a closed head see only the first and the most recent tokens; what it outputs is recomputed in each pass."""

    def __init__(self, subject: Subject, seed: int, window: WindowSize | None = None) -> None:
        super().__init__(subject, seed)
        self.window = WindowSize() if window is None else window
        sites = {head.site for head in subject.heads}
        self.runner.prove_narrowing(draw_split(subject, Split.BASELINE, PROVED, seed), sites)


def neighbours(problems: Problems, seed: int) -> Int[Tensor, " row"]:
    """Chooses for each problem another one of the same length, in an order drawn by the seed."""
    lengths, order = lengths_of(problems), torch.randperm(len(problems), generator=torch.Generator().manual_seed(seed))
    order = order.to(lengths.device)
    found = torch.empty_like(order)
    for length in lengths.unique():
        own = order[lengths[order] == length]
        if len(own) < 2:
            raise HeadwayError(
                "a problem is the only one of its length, and resampling takes outputs from another one as long; "
                "give at least two of each length, or use `ablation=zero`"
            )
        found[own] = own.roll(1)
    return found


ABLATIONS: dict[str, type[Ablation]] = {"zero": Zero, "mean": Mean, "resample": Resample}
Kind = str | WindowSize
"""a kind of ablation: its name, or the size of a window"""


def create_ablation(kind: Kind, subject: Subject, seed: int) -> Ablation:
    """Creates the ablation of a kind for a subject."""
    if isinstance(kind, WindowSize):
        return Windowed(subject, seed, kind)
    return find_ablation(kind)(subject, seed)


def find_ablation(name: str) -> type[Ablation]:
    """Returns the kind of that name, or loads a user's own from `file.py:Class`."""
    if ":" in name:
        return load_class(name, Ablation)
    known = {**ABLATIONS, WINDOW: Windowed}
    if name not in known:
        raise unknown("ablation", name, known)
    return known[name]
