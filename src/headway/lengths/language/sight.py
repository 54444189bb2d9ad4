"""Whether a model whose layers all have windows sees a fact at all: the fact is changed, and its question asked again.

A token outside every path of windows has a weight of exactly 0 in every sum, so no logit of its question changes by a
single bit. That is a proof, where a wrong answer would only be a measurement.
"""

from dataclasses import dataclass, replace

import torch

from headway.attach.cures import Setting
from headway.lengths.language.corpus import Material
from headway.lengths.language.reading import LanguageReader
from headway.lengths.language.recall import RecallPrompts

ROWS = 4  # prompts that are asked twice


@dataclass(frozen=True)
class Sight:
    """By how much changing the facts at one depth changes the logits of their questions."""

    depth: int
    nearest: int
    """tokens between a question and the nearest of these facts"""
    change: float
    """the largest change of any logit"""


def look_for_facts(
    reader: LanguageReader, material: Material, prompts: RecallPrompts, depths: int, setting: Setting
) -> list[Sight]:
    """Changes the facts at each depth in turn."""
    few = _first(prompts, ROWS)
    whole = reader.logits(few.tokens, few.at)
    found = []
    for depth in range(depths):
        asked = (few.depth.gather(1, few.question.clamp(min=0)) == depth) & (few.question >= 0)
        changed = few.tokens.clone()
        for row in range(len(few)):
            places = few.facts[row][asked[row]]
            changed[row, places] = _others(changed[row, places], material)
        logits = reader.logits(changed, few.at)
        moved = (logits - whole).abs().amax(-1).cpu()
        distance = int((few.at - few.facts)[asked].min())
        found.append(Sight(depth, distance, float(moved[asked].max())))
    return found


def _first(prompts: RecallPrompts, rows: int) -> RecallPrompts:
    tables = ("tokens", "at", "question", "depth", "facts")
    return replace(prompts, **{name: getattr(prompts, name)[:rows] for name in tables})


def _others(tokens: torch.Tensor, material: Material) -> torch.Tensor:
    """Returns other words for these tokens, none of which is the same."""
    words = material.words
    place = torch.searchsorted(words.sort().values, tokens).clamp(max=len(words) - 1)
    return words.sort().values[(place + 1 + len(words) // 2) % len(words)]
