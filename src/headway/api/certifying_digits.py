"""`headway certify --digits N` as a function."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import torch

from headway.certify.assumptions import ALGORITHMS, OUTSIDE, Assumptions, hash_code
from headway.certify.digits import Adder
from headway.certify.digits.own import adder_of_run
from headway.certify.digits.prove import DigitsVerdict, prove_digits, refuse
from headway.certify.locality import NotLocal
from headway.certify.question import DigitsQuestion
from headway.certify.rounding import EXP_ULPS, RSQRT_ULPS
from headway.errors import HeadwayError
from headway.machine import environment
from headway.output import Output
from headway.plugins import import_neighbours, is_plugin, load_function
from headway.progress import Progress
from headway.question import asks
from headway.subjects.own import open_one


@asks(DigitsQuestion)
def certify_digits(subject: str | Path, question: DigitsQuestion) -> DigitsVerdict:
    """Proves a one-layer adder right on all pairs of numbers with so many digits, finds a pair that it gets wrong, or
    says which share of the pairs was proved within the budget."""
    digits, name = question.digits, str(subject)
    if digits is None:
        raise HeadwayError("`digits` is missing; name the length of the numbers, such as `digits=10`")
    try:
        adder, sha256 = _open_plugin(name) if is_plugin(name) else _open_run(subject)
    except NotLocal as reason:
        return refuse(str(reason), digits)
    if (own := adder.description.digits) != digits:
        raise HeadwayError(f"{subject} adds numbers of {own} digits; ask for those, not {digits}")
    with Progress(f"all pairs of {digits} digits", question.quiet) as watch:
        verdict = prove_digits(adder, question.budget, watch)
    return replace(verdict, name=adder.name, parameters=adder.parameters, weights_sha256=sha256)


def show_digits(verdict: DigitsVerdict) -> Output:
    """Shows a verdict as a table and a sentence; the exit status is 1 where there is no proof."""
    shown = ("certified", "digits", "proved_share", "boxes", "open", "smallest_margin", "rounding_bound", "seconds")
    share = verdict.proved_pairs / verdict.pairs if verdict.pairs else None
    head = {"certified": verdict.certified, "contexts": verdict.boxes}
    content = {**head, **asdict(verdict), "proved_share": share, "assumes": assume_digits().to_json()}
    words, status = f"Not proved: {verdict.reason}.", 1
    if verdict.certified:
        words = (
            f"Proved for these weights in float32, in any order of summation: all {verdict.pairs:,} pairs are right."
        )
        words, status = f"{words} Rounding can change no lead by more than {verdict.rounding_bound:.2g}.", 0
    return Output(content, "Proof by boxes", [content], words=[words], status=status, shown=shown)


def assume_digits() -> Assumptions:
    """Returns what a proof by boxes assumes."""
    here = environment(torch.device("cpu"))
    versions = {name: str(here[name]) for name in ("headway", "torch", "python")}
    ulps = {"exp": EXP_ULPS, "erf": EXP_ULPS, "rsqrt": RSQRT_ULPS}
    return Assumptions("float32", ulps, ALGORITHMS, OUTSIDE, "enumerated", versions, hash_code())


def _open_run(subject: str | Path) -> tuple[Adder, str]:
    """Opens a run of Headway's, with the hash of its weights."""
    run = open_one(subject)
    return adder_of_run(run.model.eval(), run.task, run.config.name), run.folder.training().weights_sha256


def _open_plugin(name: str) -> tuple[Adder, None]:
    """Calls a user's function."""
    with import_neighbours(name):
        found = load_function(name)()
    if not isinstance(found, Adder):
        raise HeadwayError(f"{name} returned a {type(found).__name__}; return a headway.certify.digits.Adder")
    return found, None
