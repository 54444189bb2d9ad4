"""Runs the tests of docs/settled.md on an adder, and sums up what they found in many.

Everything about one adder is a plain dictionary, so that it can lie beside its run as JSON: the label of every head,
what every head, site and feed-forward block flips, the sets that suffice and their controls, what parts cost under
three kinds of ablation, and the profiles of its sites on several draws. `summarize` counts over adders, claim by claim.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from headway.causes.flips import CANNOT, Flips, count_flips
from headway.causes.kinds import count_kinds
from headway.causes.patching import Pairs, Patch
from headway.causes.patterns import find_patterns
from headway.causes.profiles import Profile, measure_redraws
from headway.causes.roles import GROWN, PAIRS, RANDOM_SETS, Roles, find_roles
from headway.heads.ablation import measure
from headway.heads.variants import Variants
from headway.models import Head, Site
from headway.runs import disk
from headway.subjects.naming import find_runs
from headway.subjects.own import open_one, subject_of
from headway.subjects.splits import Split
from headway.subjects.subject import Subject

MAPS, MARGIN, KINDS = 1_000, 0.01, ("zero", "mean", "resample")
WRITTEN = "written 2 prefix"
FILE = "causes-of-claims.json"
Study = dict[str, Any]


@dataclass(frozen=True)
class Sizes:
    pairs: int = PAIRS
    sums: int = 2_000
    random_sets: int = RANDOM_SETS


def study_adder(subject: Subject, number: int = 0, sizes: Sizes | None = None) -> Study:
    """Runs all tests; `number` decides which pairs the profiles are drawn from: no two adders share them."""
    sizes = sizes or Sizes()
    patterns = find_patterns(subject, subject.draw(MAPS, Split.SELECT.seed(7), False))
    labels = {
        str(each.head): {"label": each.label, "key": each.key, "weights": each.scores.get(each.label)}
        for each in patterns
    }
    roles = find_roles(subject, 0, pairs=sizes.pairs, grown=min(GROWN, sizes.pairs), random_sets=sizes.random_sets)
    redraws = measure_redraws(subject, number)
    return {
        "subject": subject.name,
        "labels": labels,
        **_flips(roles),
        "written": _patch_written(subject, sizes.pairs),
        **_ablate(subject, sizes.sums),
        "profiles": None if redraws is None else [_profile_to_json(draw) for draw in redraws],
    }


def _flips(roles: Roles) -> Study:
    flips: dict[str, dict[str, Any]] = {}
    placebo: dict[str, float] = {}
    named: dict[str, list[str]] = {}
    for each in roles.table:
        if not each.at_answer:
            part = str(each.part)
            flips.setdefault(part, {})[each.contrast] = each.both.to_json()
            placebo[part] = max(placebo.get(part, 0.0), each.placebo.share or 0.0)
            if each.named:
                named.setdefault(part, []).append(each.contrast)
    swapped = {each.contrast: each.flips.directions() for each in roles.swapped}
    sets = [{**each.to_json(), "sound": each.sound} for each in roles.explained]
    return {"flips": flips, "placebo": placebo, "named": named, "swapped": swapped, "sets": sets}


def _patch_written(subject: Subject, pairs_each: int) -> dict[str, list[float] | None]:
    """Patches all parts of the decoder, and all but one, where only the written digits are swapped: the shares of
    flips in both directions."""
    assert subject.contrasts is not None
    contrasts = subject.contrasts(pairs_each, Split.REPORT.seed(0))
    pairs = Pairs(subject, [contrast for contrast in contrasts if contrast.name == WRITTEN])
    decoder = [site for site in subject.runner.sites if site.stack == "decoder"]
    sets: dict[str, frozenset[Head | Site]] = {"all parts": frozenset(decoder)}
    sets |= {f"all but {site}": frozenset(decoder) - {site} for site in decoder}
    counts = count_flips(pairs, [Patch(parts) for parts in sets.values()])
    return {name: counts.total(place, 0).directions() for place, name in enumerate(sets)}


def _ablate(subject: Subject, sums: int) -> Study:
    """Ablates every head, site and block under three kinds, and all heads that are cheap alone on other sums."""
    chosen, reported = (subject.draw(sums, Split.SELECT.seed(seed), False) for seed in (11, 12))
    parts = [*subject.heads, *subject.runner.sites]
    costs, cheap, right = {}, {}, 0.0
    for kind in KINDS:
        variants = Variants(subject, kind)
        whole, *effects = measure(variants, [chosen], [frozenset({part}) for part in parts])
        gone = frozenset(h for h, effect in zip(subject.heads, effects, strict=False) if effect.drop < MARGIN)
        cheap[kind] = {"heads": len(gone), "left": measure(variants, [reported], [gone])[1].accuracy}
        costs[kind] = {str(part): effect.drop for part, effect in zip(parts, effects, strict=True)}
        right = whole.accuracy
    return {"accuracy": right, "costs": costs, "cheap": cheap}


def _profile_to_json(profile: Profile) -> dict[str, dict[str, list[Any]]]:
    return {
        site: {name: [flips.flips, flips.pairs, flips.can] for name, flips in row.items()}
        for site, row in profile.counts.items()
    }


def _profile_from_json(subject: str, counts: dict[str, dict[str, list[Any]]]) -> Profile:
    return Profile(subject, {site: {name: Flips(*each) for name, each in row.items()} for site, row in counts.items()})


def study_many(home: Path, device: str, workers: int, sizes: Sizes) -> None:
    """Studies every run of a folder, several side by side, each with one thread; what is done already stays."""
    runs = [run.path for run in find_runs(home)]
    todo = [(number, path) for number, path in enumerate(runs) if not (path / FILE).exists()]
    with ProcessPoolExecutor(workers, get_context("spawn"), initializer=torch.set_num_threads, initargs=(1,)) as pool:
        for done in [pool.submit(_study_run, path, number, device, sizes) for number, path in todo]:
            done.result()


def _study_run(path: Path, number: int, device: str, sizes: Sizes) -> None:
    chosen = torch.device("cuda" if device == "auto" and torch.cuda.is_available() else device.replace("auto", "cpu"))
    disk.write_json(path / FILE, study_adder(subject_of(open_one(path, chosen)), number, sizes))


def summarize(studies: Sequence[Study]) -> dict[str, Any]:
    """Counts over adders, claim by claim."""
    return {
        "adders": len(studies),
        "accuracy": _spread(study["accuracy"] for study in studies),
        "1 cheap alone": {
            kind: {
                "heads": _spread(study["cheap"][kind]["heads"] for study in studies),
                "left": _spread(study["cheap"][kind]["left"] for study in studies),
                "below_half": sum(study["cheap"][kind]["left"] < 0.5 for study in studies),
            }
            for kind in KINDS
        },
        "3 diagonal": _labelled(studies, "diagonal"),
        "4 vertical": _labelled(studies, "vertical"),
        "5 needed by site": _needed(studies),
        "6 decoder": {
            part: _by_contrast(studies, part)
            for part in studies[0]["flips"]
            if part.startswith("decoder") and part.endswith(".self")
        },
        "6 swapped": {
            name: [_spread(s["swapped"][name][side] for s in studies if s["swapped"][name]) for side in (0, 1)]
            for name in studies[0]["swapped"]
        },
        "7 aligned": _labelled(studies, "aligned"),
        "9 carry source": _labelled(studies, "carry source"),
        "10 kinds": tell_kinds(studies),
        "11 blocks": {
            part: {
                **{kind: _spread(study["costs"][kind][part] for study in studies) for kind in KINDS},
                "flips": _by_contrast(studies, part),
            }
            for part in studies[0]["flips"]
            if part.endswith(".feed")
        },
        "sets": {each["contrast"]: _sets(studies, place) for place, each in enumerate(studies[0]["sets"])},
    }


def _spread(values: Iterable[float]) -> dict[str, float] | None:
    """Returns the median, a tenth on either side, and the ends."""
    ordered = sorted(values)
    if not ordered:
        return None
    tenth = (len(ordered) - 1) // 10
    return {
        "n": len(ordered),
        "least": ordered[0],
        "low": ordered[tenth],
        "median": statistics.median(ordered),
        "high": ordered[-1 - tenth],
        "most": ordered[-1],
    }


def _labelled(studies: Sequence[Study], label: str) -> dict[str, Any]:
    """Counts the heads with a label, beside all other heads of the same sites: which flip pairs by themselves."""
    counts: Counter[str] = Counter()
    per_adder = []
    for study in studies:
        own = [head for head, found in study["labels"].items() if found["label"] == label]
        sites = {head.rpartition(".")[0] for head in own}
        others = [head for head in study["labels"] if head.rpartition(".")[0] in sites and head not in own]
        per_adder.append(len(own))
        for group, heads in (("labelled", own), ("others", others)):
            counts[f"{group}"] += len(heads)
            counts[f"{group}_named"] += sum(head in study["named"] for head in heads)
            counts[f"{group}_half"] += sum(_most(study, head) >= 0.5 for head in heads)
            needed = [head for head in heads if all(study["costs"][kind][head] >= MARGIN for kind in KINDS)]
            counts[f"{group}_needed"] += len(needed)
    return {"per_adder": _spread(per_adder), "adders_with": sum(map(bool, per_adder)), **counts}


def _most(study: Study, part: str) -> float:
    return max((share for share in study["flips"][part].values() if isinstance(share, float)), default=0.0)


def _needed(studies: Sequence[Study]) -> dict[str, Any]:
    """Counts for each site the adders with a head that costs the margin or more under every kind of ablation."""
    sites = list(dict.fromkeys(head.rpartition(".")[0] for head in studies[0]["labels"]))

    def costs(study: Study, head: str, kinds: Sequence[str]) -> bool:
        return all(study["costs"][kind][head] >= MARGIN for kind in kinds)

    def adders(site: str, kinds: Sequence[str]) -> int:
        return sum(any(costs(s, head, kinds) for head in s["labels"] if head.startswith(site)) for s in studies)

    return {
        site: {
            "all_kinds": adders(site, KINDS),
            **{kind: adders(site, [kind]) for kind in KINDS},
            "whole": {kind: _spread(study["costs"][kind][site] for study in studies) for kind in KINDS},
        }
        for site in sites
    }


def _by_contrast(studies: Sequence[Study], part: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in studies[0]["flips"][part]:
        shares = [study["flips"][part][name] for study in studies]
        known = [share for share in shares if isinstance(share, float)]
        if CANNOT in shares:
            found[name] = CANNOT
        else:
            found[name] = {
                **(_spread(known) or {}),
                "over_2": sum(share > 0.02 for share in known),
                "over_50": sum(share >= 0.5 for share in known),
            }
    return found


def tell_kinds(studies: Sequence[Study]) -> dict[str, Any]:
    profiles = [
        None
        if study["profiles"] is None
        else tuple(_profile_from_json(study["subject"], draw) for draw in study["profiles"])
        for study in studies
    ]
    found = count_kinds(profiles)
    told = found.to_json()
    wanted = ("runs", "left_out", "distinguishable", "kinds", "silhouette", "same_cluster", "distances", "flips")
    return {
        "findings": found.findings(),
        "signatures": len(told["signatures"]),
        "commonest": told["signatures"][:3],
        **{name: told[name] for name in wanted},
    }


def _sets(studies: Sequence[Study], place: int) -> dict[str, Any]:
    """Sums up the sets that were grown for one contrast: how many hold, and how random sets compare."""
    own = [study["sets"][place] for study in studies]
    grown = [each for each in own if each["heads"] and each["controls"] is not None]

    def spread(of: Callable[[Any], float | None]) -> dict[str, float] | None:
        return _spread(value for each in grown if (value := of(each)) is not None)

    return {
        "grown": len(grown),
        "sound": sum(each["sound"] for each in own),
        "controls_passed": sum(each["controls"]["passed"] for each in grown),
        "necessity_holds": sum(each["necessity"]["holds"] for each in grown),
        "heads": spread(lambda each: len(each["heads"])),
        "flips": spread(lambda each: each["flips"]),
        "random_all": spread(lambda each: each["controls"]["all_heads"]["mean"]),
        "random_all_95": spread(lambda each: each["controls"]["all_heads"]["percentile_95"]),
        "random_same_sites_95": spread(lambda each: each["controls"]["same_sites"]["percentile_95"]),
        "without_chosen": spread(lambda each: each["controls"]["without_chosen"]["mean"]),
        "different_sets": len({tuple(each["heads"]) for each in grown}),
    }
