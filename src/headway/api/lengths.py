"""`headway lengths` as a function."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from headway.doctor.examination import forbidden
from headway.errors import HeadwayError, unknown
from headway.lengths.answer import LEAST_EXAMPLES, Entry, LengthsPlan, LengthStudy
from headway.lengths.extrapolation import study_lengths as study
from headway.machine import choose_device
from headway.positions import find_index, find_positions
from headway.report.lengths import lengths_figures
from headway.runs.config import Overrides
from headway.subjects.own import subject_of
from headway.tasks import create_task
from headway.training.tracks import find_track

TRIO = ("sinusoidal", "learned", "none")
LENGTHS = (32, 64, 128, 256)
DIGITS = (40, 80, 120, 160)
"""test lengths of sums, where none are asked for"""
POOLINGS = ("mean", "max", "violation")


def study_lengths(
    task: str = "sortedness",
    *,
    positions: Sequence[str] = TRIO,
    index: Sequence[str] = ("sequential",),
    pooling: Sequence[str] = (),
    track: str = "plain",
    rates: Sequence[float] | None = None,
    train_lengths: tuple[int, int] | None = None,
    seeds: Sequence[int] = (0,),
    lengths: Sequence[int] | None = None,
    probes: Sequence[str] = (),
    examples: int = LEAST_EXAMPLES,
    options: dict[str, Any] | None = None,
    out: str | Path | None = None,
    seed: int = 0,
    device: str = "auto",
    precision: str = "auto",
    quiet: bool = True,
    **overrides: Any,
) -> LengthStudy:
    """Trains each encoding with each index on short problems and tests it on long ones.

    Everything is in `out`; what is there already is not made again.
    """
    chosen, found = choose_device(device), find_track(track)
    if rates is not None:
        if not rates or not all(0 < rate < 1000 for rate in rates) or len(set(rates)) < len(rates):
            raise HeadwayError(f"rates {list(rates)}: multiples above 0 and below 1,000, each once")
        found = replace(found, rates=tuple(map(float, rates)), chooses=found.chooses or list(rates) != [1])
    if train_lengths is not None:
        shortest, longest = train_lengths
        options = {**(options or {}), "shortest": shortest, "digits" if task == "addition" else "longest": longest}
    options = {**found.options.get(task, {}), **(options or {})}
    own = create_task(task, options)
    lengths = lengths or (DIGITS if own.classes is None else LENGTHS)
    for probe in probes:
        own.find_probe(probe)
    if examples < LEAST_EXAMPLES:
        raise HeadwayError(f"--examples {examples}: at least {LEAST_EXAMPLES:,}")
    for name in positions:
        find_positions(name)
    for name in pooling:
        if name not in POOLINGS:
            raise unknown("pooling", name, POOLINGS)
    if pooling and own.classes is None:
        raise HeadwayError("--pooling has no effect here: only a classifier pools; leave it out")
    entries = [
        Entry(name, number, pool)
        for name in positions
        for number in index
        for pool in pooling or (found.overrides(own).pooling,)
        if _combine(name, number, len(index))
    ]
    named = {"positions": positions, "index": index, "pooling": pooling, "lengths": lengths, "probes": probes}
    for what, values in named.items():
        if len(set(values)) < len(values):
            raise HeadwayError(f"--{what} names one twice")
    if not entries:
        raise HeadwayError(f"{', '.join(positions)} uses no index; add sequential to --index {','.join(index)}")
    asked = LengthsPlan(
        task=task,
        entries=tuple(entries),
        track=found,
        seeds=tuple(seeds),
        lengths=tuple(sorted(lengths)),
        probes=tuple(probes or own.probes),
        options=options,
        overrides=Overrides(**overrides),
        examples=examples,
        test_seed=seed,
    )
    home = Path(out or Path("runs") / f"lengths-{task.replace(':', '.')}-{track}")
    result = study(asked, home, chosen, precision, quiet, lambda run: forbidden(subject_of(run), "lengths"))
    lengths_figures(home / "lengths.json", home)
    return result


def _combine(positions: str, index: str, indices: int) -> bool:
    """Whether an index makes a difference; of several, those that make none are passed over."""
    kind, _ = find_index(index)
    return indices == 1 or find_positions(positions).kind.uses_index or kind.name == "sequential"
