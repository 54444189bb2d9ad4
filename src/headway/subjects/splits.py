"""The splits of problems that a study draws, each from its own random stream: heads selected on one split are reported
on another, whatever the seed."""

from enum import IntEnum

import torch

from headway.errors import HeadwayError
from headway.subjects.ragged import sort_by_length
from headway.subjects.subject import Subject
from headway.tasks import Problems


class Split(IntEnum):
    REPORT = 0
    """for the reported results"""
    SELECT = 1
    """for selecting sets of heads"""
    CONFIRM = 2
    """for confirming a selected set"""
    BASELINE = 3
    DONORS = 4
    """for the outputs that replace those of ablated heads"""
    MEANS = 5
    PAIRS = 6
    SCREEN = 7
    """for the search over all sets"""
    COMPARE = 8
    """for comparing a pruned model with the gated one"""
    CHECK = 9
    """for the final check of the search, where problems cannot be enumerated"""

    def seed(self, seed: int) -> int:
        return (seed * len(Split) + self) % 2**63


def draw_split(subject: Subject, split: Split, rows: int, seed: int, held_out: bool = False) -> Problems:
    """Draws the problems of a split. A subject with a fixed list of examples reports on one half of it, confirms on a
    quarter and uses the rest for all else: no set is reported on the problems it was selected on."""
    if not isinstance(subject.examples, Problems):
        return subject.draw(rows, split.seed(seed), held_out)
    count = len(subject.examples)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).to(subject.examples.source.device)
    half, three = (count + 1) // 2, (3 * count + 3) // 4
    chosen = {Split.REPORT: order[:half], Split.CONFIRM: order[half:three]}.get(split, order[three:])
    if not len(chosen):
        raise HeadwayError(
            f"{subject.name} has {count} examples; a study needs at least 4, to select on some and report on others"
        )
    return sort_by_length(subject.examples[chosen[:rows]])
