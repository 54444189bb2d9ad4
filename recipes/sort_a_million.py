"""Runs a certified sorter whose attention masks no key on sequences of 1,000,000 elements.

    python recipes/sort_a_million.py runs/global/seed-0 [--length 1000000]

Attention to everything costs the square of the length. But the certificate names a distance from which on every key
weighs exactly 0 in float32, so a sequence can be cut into parts that overlap by that distance, and every place sees all
that weighs anything. First that is compared with the whole product on short sequences. Then come long ones: sorted,
with ties, with one violation at the beginning, in the middle, at the end or at a random place, and in reverse.
"""

import argparse
import time
from collections.abc import Iterator

import torch
from torch import Tensor

from headway.api import certify_run
from headway.models import Classifier
from headway.subjects.own import open_one

PART, BATCH = 200, 64  # places of a part, and parts at a time
COMPARED = (2, 10, 77, 500)  # lengths at which the whole product is computed too


@torch.no_grad()
def report_in_parts(model: Classifier, tokens: Tensor, distance: int, part: int = PART) -> Tensor:
    """Returns what each place of one sequence reports; each is computed with all keys up to this distance."""
    count = len(tokens)
    width = min(count, part + 2 * distance)
    first = torch.arange(0, count, part)  # the first place that each part reports
    start = (first - distance).clamp(0, count - width)
    found = torch.empty(count)
    for some in torch.arange(len(first)).split(BATCH):
        shown = start[some, None] + torch.arange(width)  # part place
        reports = model.violations(tokens[shown])
        mine = (shown >= first[some, None]) & (shown < first[some, None] + part)
        found[shown[mine]] = reports[mine]
    return found


def draw_long(values: int, length: int, dice: torch.Generator) -> Iterator[tuple[str, Tensor]]:
    """Yields named sequences of this length."""
    ordered = torch.randint(values, (length,), generator=dice).sort().values
    yield "sorted", ordered
    yield "all equal", torch.full((length,), values // 2)
    yield "sorted, two values", torch.randint(2, (length,), generator=dice).sort().values * (values - 1)
    steps = (ordered[1:] != ordered[:-1]).nonzero()[:, 0]
    for name, step in (("first", 0), ("middle", len(steps) // 2), ("last", -1)):
        place = int(steps[step])
        swapped = ordered.clone()
        swapped[[place, place + 1]] = ordered[[place + 1, place]]
        yield f"neighbours swapped at the {name} step, place {place:,}", swapped
    for name, place in (("first", 0), ("last", length - 1), ("random", int(torch.randint(length, (), generator=dice)))):
        changed = torch.full((length,), values // 2)
        changed[place] += 1 if place == 0 else -1
        yield f"all equal but the {name} element, place {place:,}", changed
    yield "reversed", ordered.flip(0)


def compare_whole(model: Classifier, values: int, distance: int, dice: torch.Generator) -> float:
    """Returns how far the parts are from the whole product at most, where that is affordable."""
    most = 0.0
    for length in COMPARED:
        tokens = torch.randint(values, (length,), generator=dice)
        for each in (tokens, tokens.sort().values):
            with torch.no_grad():
                whole = model.violations(each[None])[0]
            most = max(most, float((whole - report_in_parts(model, each, distance, 50)).abs().max()))
    return most


def main() -> None:
    parser = argparse.ArgumentParser(description="Runs a certified sorter on very long sequences.")
    parser.add_argument("subject", help="a run folder")
    parser.add_argument("--length", type=int, default=1_000_000)
    asked = parser.parse_args()
    found = certify_run(asked.subject, device="cpu")
    if not found["certified"] or found["outside"] is None:
        raise SystemExit(f"{asked.subject} is not certified with attention to all keys: {found['reason']}")
    run, dice = open_one(asked.subject), torch.Generator().manual_seed(0)
    model, values, distance = run.model.eval(), run.task.vocabulary, found["outside"]["distance"]
    assert isinstance(model, Classifier)
    print(f"From distance {distance} on every key weighs exactly 0 in float32.")
    print(f"Parts and the whole product differ by at most {compare_whole(model, values, distance, dice):.2g}.")
    right, total, start = 0, 0, time.perf_counter()
    for name, tokens in draw_long(values, asked.length, dice):
        reports = report_in_parts(model, tokens, distance)
        is_sorted = bool((tokens[1:] >= tokens[:-1]).all())
        said = not bool((reports > 0).any())
        right, total = right + (said == is_sorted), total + 1
        verdict = "right" if said == is_sorted else "WRONG"
        strongest, word = float(reports.max()), "sorted" if said else "not sorted"
        print(f"{asked.length:,} elements, {name}: {word}, {verdict} (strongest report {strongest:.1f})")
    print(f"{right} of {total} right, {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
