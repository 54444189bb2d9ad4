"""The splits of problems that a study draws, each from its own stream: what is selected on one is reported on another,
whatever the seed."""

from enum import IntEnum

import torch

from headway.errors import HeadwayError
from headway.subjects.ragged import sort_by_length
from headway.subjects.subject import Subject
from headway.tasks import Problems


class Split(IntEnum):
    REPORT = 0
    """what results are reported on"""
    SELECT = 1
    """what sets of heads are selected on"""
    CONFIRM = 2
    """what a selected set must pass"""
    BASELINE = 3
    DONORS = 4
    """whose outputs take the place of others'"""
    MEANS = 5
    PAIRS = 6
    SCREEN = 7
    """what the search of all sets is made on"""
    COMPARE = 8
    """what a pruned model is held against the gated one on"""
    CHECK = 9
    """what the search checks its last sets on, where problems cannot be listed"""

    def seed(self, seed: int) -> int:
        return (seed * len(Split) + self) % 2**63


def draw_split(subject: Subject, lot: Split, rows: int, seed: int, held_out: bool = False) -> Problems:
    """Problems of a lot. Where a subject has no more than a list of them, one half of it is reported on, a quarter
    confirms, and the rest is for all else: no set is reported on what it was selected on."""
    if not isinstance(subject.examples, Problems):
        return subject.draw(rows, lot.seed(seed), held_out)
    count = len(subject.examples)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).to(subject.examples.source.device)
    half, three = (count + 1) // 2, (3 * count + 3) // 4
    own = {Split.REPORT: order[:half], Split.CONFIRM: order[half:three]}.get(lot, order[three:])
    if not len(own):
        raise HeadwayError(
            f"{subject.name} has {count} examples; a study needs at least 4, to select on some and report on others"
        )
    return sort_by_length(subject.examples[own[:rows]])
