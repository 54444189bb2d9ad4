"""Do the claims of docs/settled.md about one adder hold for others?

    headway train addition --seeds 1,2,3,4,5,6 --out runs/adders
    python recipes/other_seeds.py pretrained:adder runs/adders/seed-*     # two minutes each on two cores

Prints for each adder: the heads with a label and what they flip by themselves; how often whole sites and feed-forward
blocks flip each contrast; which parts of the decoder carry the written digit together; and what heads, sites and blocks
cost under three kinds of ablation. Of several adders also whether they differ by more than draws of the pairs do.
"""

import sys
from collections import Counter
from dataclasses import dataclass, field

from headway.causes.flips import CANNOT, Cannot, count_flips, measure_strengths
from headway.causes.kinds import count_kinds
from headway.causes.patching import Pairs, Patch
from headway.causes.patterns import find_patterns
from headway.causes.profiles import measure_redraws
from headway.causes.roles import PAIRS, swap_inputs
from headway.heads.ablation import measure
from headway.heads.variants import Variants
from headway.models import Head, Site
from headway.subjects.own import open_one, subject_of
from headway.subjects.splits import Split
from headway.subjects.subject import Subject

MAPS, SUMS, MARGIN = 1_000, 2_000, 0.01
WRITTEN = "written 2 prefix"
TOLD = ("diagonal", "vertical", "carry source")  # labels that claims are about


@dataclass
class Findings:
    labels: Counter[str] = field(default_factory=Counter)
    flips: dict[tuple[str, str], float | Cannot | None] = field(default_factory=dict)
    """by part and contrast"""
    written: dict[str, list[float] | None] = field(default_factory=dict)
    """with only the written digits swapped: shares in both directions when these parts are patched"""
    together: dict[str, tuple[int, float]] = field(default_factory=dict)
    """by kind of ablation: the heads that are cheap alone, and the accuracy without all of them, on other problems"""


def patch_parts(subject: Subject, found: Findings, labels: dict[Head, str], pairs_each: int) -> None:
    """Patches every head, site and feed-forward block, and all parts of the decoder but one."""
    pairs = Pairs(subject, subject.contrasts(pairs_each, Split.REPORT.seed(0)) if subject.contrasts else [])
    table = measure_strengths(pairs, [Patch(frozenset({part})) for part in (*subject.heads, *subject.runner.sites)])
    found.flips = {(str(each.part), each.contrast): each.both.to_json() for each in table}
    for part in (*subject.heads, *subject.runner.sites):
        own = [each for each in table if each.part == part]
        label = labels.get(part, "") if isinstance(part, Head) else "site"
        if label in TOLD or label == "site" or any(each.named for each in own):
            shares = {each.contrast: each.both.to_json() for each in own if each.both.to_json() not in (0.0, CANNOT)}
            placebo = max(each.placebo.share or 0.0 for each in own)
            words = ", ".join(f"{name} {share:.4f}" for name, share in shares.items() if isinstance(share, float))
            print(f"  {part} ({label}): {words or 'flips nothing'}; placebo at most {placebo:.4f}")
    for each in swap_inputs(pairs):
        print(f"  no patch, {each.contrast}: {each.flips.directions()} of {each.flips.pairs} pairs")
    decoder = [site for site in subject.runner.sites if site.stack == "decoder"]
    only = Pairs(subject, [contrast for contrast in pairs.contrasts if contrast.name == WRITTEN])
    sets: dict[str, frozenset[Head | Site]] = {"all parts": frozenset(decoder)}
    sets |= {f"all but {site}": frozenset(decoder) - {site} for site in decoder}
    counts = count_flips(only, [Patch(parts) for parts in sets.values()])
    found.written = {name: counts.total(place, 0).directions() for place, name in enumerate(sets)}
    print(f"  {WRITTEN}, patched:", ", ".join(f"{name} {shares}" for name, shares in found.written.items()))


def ablate_parts(subject: Subject, found: Findings, sums: int) -> None:
    """Ablates every head, site and block under three kinds, and all heads that are cheap alone on other sums."""
    chosen, reported = (subject.draw(sums, Split.SELECT.seed(seed), False) for seed in (11, 12))
    parts = [*subject.heads, *subject.runner.sites]
    for kind in ("zero", "mean", "resample"):
        variants = Variants(subject, kind)
        effects = measure(variants, [chosen], [frozenset({part}) for part in parts])[1:]
        cheap = frozenset(h for h, effect in zip(subject.heads, effects, strict=False) if effect.drop < MARGIN)
        left = measure(variants, [reported], [cheap])[1].accuracy
        found.together[kind] = len(cheap), left
        costs = ", ".join(f"{part} {effect.drop:.4f}" for part, effect in zip(parts, effects, strict=True))
        print(f"  {kind}: {len(cheap)} heads cost under {MARGIN} alone; all of them removed leave {left:.4f}; {costs}")


def main(names: list[str], pairs: int = PAIRS, sums: int = SUMS) -> dict[str, Findings]:
    every = {}
    for name in names:
        found, subject = Findings(), subject_of(open_one(name))
        patterns = find_patterns(subject, subject.draw(MAPS, Split.SELECT.seed(7), False))
        found.labels = Counter(pattern.label for pattern in patterns)
        print(f"{name}: {dict(found.labels)}", flush=True)
        for each in patterns:
            if each.label in TOLD:
                weight, shuffled = each.scores[each.label]
                print(f"  {each.head} {each.label}: weight {weight:.2f}, shuffled {shuffled:.2f}, key {each.key}")
        patch_parts(subject, found, {pattern.head: pattern.label for pattern in patterns}, pairs)
        ablate_parts(subject, found, sums)
        every[name] = found
    if len(names) > 1:
        print(
            *count_kinds([measure_redraws(subject_of(open_one(name)), n) for n, name in enumerate(names)]).findings(),
            sep="\n",
        )
    return every


if __name__ == "__main__":
    main(sys.argv[1:] or ["pretrained:adder"])
