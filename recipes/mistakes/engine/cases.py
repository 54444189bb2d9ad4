"""The cases: every mistake alone, all pairs that can be combined, 150 triples and 60 healthy labs. Which they are, and
in which style each is written, follows from their names and never changes."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from .mistakes import MISTAKES, find_conflict, plan_for, style_for
from .models import PLUS
from .plan import Plan, Style, every_style
from .training import Recipe

TRIPLES, HEALTHY, SORTERS = 150, 60, 12
SEED = 24


def rank(text: str) -> int:
    """Returns a number that looks random and depends on the text alone."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


@dataclass(frozen=True)
class Case:
    kind: str
    """single, pair, triple or healthy"""
    mistakes: tuple[str, ...]
    style: Style
    plan: Plan

    @property
    def name(self) -> str:
        return " + ".join(self.mistakes) or f"healthy {rank(repr((self.style, self.plan))) % 10**6:06}"

    @property
    def half(self) -> str:
        """Whether it may be looked at while checks are being written."""
        if len(self.mistakes) < 2:
            return "written"
        return "written" if rank(" + ".join(sorted(self.mistakes))) % 2 else "unseen"

    @property
    def recipes(self) -> set[Recipe]:
        """What must be trained for it."""
        return {replace(self.plan.recipe, seed=self.plan.recipe.seed + more) for more in range(self.plan.seeds)}


def plant(kind: str, names: Sequence[str]) -> Case:
    """Makes the case of these mistakes, in a style that follows from their names."""
    styles = [each for each in every_style() if each.decode != "wrapped"]
    style = styles[rank(f"style of {' + '.join(sorted(names))}") % len(styles)]
    return Case(kind, tuple(names), style_for(names, style), plan_for(names))


def singles() -> list[Case]:
    return [plant("single", [name]) for name in MISTAKES]


def pairs() -> list[Case]:
    return [plant("pair", names) for names in combinations(MISTAKES, 2) if find_conflict(names) is None]


def excluded() -> dict[tuple[str, ...], str]:
    """Returns the pairs that cannot be combined, each with the reason."""
    reasons = {names: find_conflict(names) for names in combinations(MISTAKES, 2)}
    return {names: reason for names, reason in reasons.items() if reason is not None}


def triples() -> list[Case]:
    """Returns random triples: the first ones that can be combined, in the order of their rank."""
    ranked = sorted(combinations(MISTAKES, 3), key=lambda names: rank(" + ".join(names)))
    return [plant("triple", names) for names in ranked if find_conflict(names) is None][:TRIPLES]


def healthy() -> list[Case]:
    """Returns healthy labs: adders and sorters, of one seed or three, with and without dropout, padding and a start
    token that the source knows too."""
    dice, styles = random.Random(SEED), every_style()
    adders = [Recipe(), Recipe(seed=1), Recipe(dropout=0.1), Recipe(padding="masked"), Recipe(start=PLUS)]
    sorters = [Recipe("order"), Recipe("order", padding="masked")]
    plans = [Plan(adders[number % len(adders)]) for number in range(HEALTHY - SORTERS)]
    plans[0] = replace(plans[0], seeds=3)
    plans += [Plan(sorters[number % len(sorters)]) for number in range(SORTERS)]
    return [Case("healthy", (), style, plan) for style, plan in zip(dice.sample(styles, HEALTHY), plans, strict=True)]


def every_case() -> list[Case]:
    return [*singles(), *pairs(), *triples(), *healthy()]


def take_fraction(cases: Iterable[Case], fraction: int) -> list[Case]:
    """Returns one case in so many, chosen by name: half of them of the plain model, half of one other, since
    training takes longer than an examination."""
    cases = sorted(cases, key=lambda case: rank(case.name))
    wanted = -(-len(cases) // fraction)
    uses = Counter(recipe for case in cases for recipe in case.recipes)
    common = [recipe for recipe, count in uses.items() if count >= wanted // 2 and recipe != Recipe()]
    few = {Recipe(), *sorted(common, key=lambda each: rank(each.key))[:1]}
    plain = [case for case in cases if case.recipes == {Recipe()}]
    others = [case for case in cases if case.recipes <= few and case not in plain]
    taken = plain[: wanted - wanted // 2] + others[: wanted // 2]
    return taken + plain[wanted - wanted // 2 :][: wanted - len(taken)]
