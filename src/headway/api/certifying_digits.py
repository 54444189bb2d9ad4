"""`headway certify --digits N` as a function."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headway.certify.digits import Adder
from headway.certify.digits.own import adder_of_run
from headway.certify.digits.prove import prove_digits, refuse
from headway.certify.locality import NotLocal
from headway.certify.question import DigitsQuestion
from headway.errors import HeadwayError
from headway.output import Output
from headway.plugins import import_neighbours, is_plugin, load_function
from headway.progress import Progress
from headway.question import asks
from headway.subjects.own import open_one


@asks(DigitsQuestion)
def certify_digits(subject: str | Path, question: DigitsQuestion) -> dict[str, Any]:
    """Proves a one-layer adder right on all pairs of numbers with so many digits, finds a pair that it gets wrong, or
    says which share of the pairs was proved within the budget."""
    digits = question.digits
    if digits is None:
        raise HeadwayError("`digits` is missing; name the length of the numbers, such as `digits=10`")
    try:
        adder, about = _open(subject)
    except NotLocal as reason:
        return refuse(str(reason), digits).to_json()
    if (own := adder.description.digits) != digits:
        raise HeadwayError(f"{subject} adds numbers of {own} digits; ask for those, not {digits}")
    with Progress(f"all pairs of {digits} digits", question.quiet) as watch:
        verdict = prove_digits(adder, question.budget, watch)
    return {**verdict.to_json(), **about}


def show_digits(found: dict[str, Any]) -> Output:
    """Shows such a result with a sentence; the exit status is 1 where there is no proof."""
    shown = ("certified", "digits", "proved_share", "boxes", "open", "smallest_margin", "rounding_bound", "seconds")
    if not found["certified"]:
        return Output(
            found, "Proof by boxes", [found], words=[f"Not proved: {found['reason']}."], status=1, shown=shown
        )
    word = f"Proved for these weights in float32, in any order of summation: all {found['pairs']:,} pairs are right. "
    word += f"Rounding can change no lead by more than {found['rounding_bound']:.2g}."
    return Output(found, "Proof by boxes", [found], words=[word], shown=shown)


def _open(subject: str | Path) -> tuple[Adder, dict[str, Any]]:
    """Returns the adder that a SUBJECT names and what else to say about it."""
    name = str(subject)
    if not is_plugin(name):
        run = open_one(subject)
        about = {
            "parameters": sum(parameter.numel() for parameter in run.model.parameters()),
            "task": run.config.task,
            "options": run.config.options,
            "model": run.config.to_json()["model"],
            "weights_sha256": run.folder.training().weights_sha256,
        }
        return adder_of_run(run.model.eval(), run.task, run.config.name), about
    with import_neighbours(name):
        found = load_function(name)()
    if not isinstance(found, Adder):
        raise HeadwayError(f"{name} returned a {type(found).__name__}; return a headway.certify.digits.Adder")
    return found, {}
