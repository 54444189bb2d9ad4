"""The accuracies of one subject, each with a label: reported, decoded, teacher-forced, and over whole answers in one
pass; and which way of reading the model shows what it has learned."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from headway.doctor.alignment import Aligned, place_at
from headway.doctor.leaks import continue_answers
from headway.doctor.patient import LEARNED, Patient
from headway.errors import HeadwayError
from headway.evaluation.intervals import wilson
from headway.tasks import Problems

ONE_PASS, STEPWISE, FORCED, DECODED, WITHOUT_START = (
    "over whole answers in one pass", "prefix by prefix", "teacher-forced, as your own pass predicts", "decoded",
    "without a start token",
)  # fmt: skip


@dataclass(frozen=True)
class Reading:
    """The answers by one way of running the model."""

    label: str
    tokens: Aligned
    right: Bool[Tensor, " row"]

    @property
    def accuracy(self) -> float:
        return float(self.right.float().mean())

    @property
    def low(self) -> float:
        """The lower end of the interval of the accuracy."""
        return wilson(int(self.right.sum()), len(self.right)).low


def read_one_pass(patient: Patient) -> Reading:
    tokens = patient.logits.argmax(-1)
    return Reading(ONE_PASS, place_at(tokens, 0, tokens.shape[1]), patient.right)


def read_forced(patient: Patient) -> Reading | None:
    """Reads the subject's own teacher-forced pass, as far as it predicts; each problem alone if others change it."""
    problems = patient.few if patient.subject.forced is not None and patient.forced_depends else patient.problems
    aligned = patient.align_forced(problems)
    return None if aligned is None else Reading(FORCED, aligned, judge_aligned(patient, aligned, problems))


def read_stepwise(patient: Patient) -> Reading | None:
    """Reads the model prefix by prefix, where `decode` in one pass sees later tokens."""
    if not patient.can_decode or patient.reads_stepwise or not patient.leaks.in_decode:
        return None
    tokens = patient.run_stepwise(patient.problems).argmax(-1)
    aligned = place_at(tokens, 0, tokens.shape[1])
    return Reading(STEPWISE, aligned, judge_aligned(patient, aligned, patient.problems))


def read_decoded(patient: Patient) -> Reading | None:
    """Reads what the subject's own evaluation decodes."""
    aligned = patient.align_decoded(patient.problems) if patient.decodes else None
    return None if aligned is None else Reading(DECODED, aligned, judge_aligned(patient, aligned, patient.problems))


def read_without_start(patient: Patient) -> Reading | None:
    """Reads the model as one that was trained to continue an answer: it is given the answer without its last token and
    predicts it without its first."""
    problems, length = patient.problems, patient.problems.answer.shape[1]
    if patient.subject.decode is None or length < 2:
        return None
    try:
        aligned = _continue_answers(patient, problems)
    except HeadwayError:
        return None
    return Reading(WITHOUT_START, aligned, judge_aligned(patient, aligned, problems))


def _continue_answers(patient: Patient, problems: Problems) -> Aligned:
    """Predicts each token but the first from those before it: prefix by prefix, or in one pass if that is better."""
    stepwise, at_once = [], []
    for some in (problems[rows] for rows in patient.subject.runner.pieces(problems)):
        stepwise.append(continue_answers(patient, some).argmax(-1))
        at_once.append(patient.decode(some.source, some.answer[:, :-1]).argmax(-1))
    aligned = [place_at(torch.cat(outputs), 1, problems.answer.shape[1]) for outputs in (stepwise, at_once)]
    scored = patient.scored(problems)
    return max(aligned, key=lambda each: float(each.verdict(problems.answer, scored).float().mean()))


def judge_aligned(patient: Patient, aligned: Aligned, problems: Problems) -> Bool[Tensor, " row"]:
    """Decides which problems are right, on the tokens that an output has."""
    if aligned.is_whole:
        return patient.judge_tokens(aligned.tokens, problems)
    return aligned.verdict(problems.answer, patient.scored(problems))


def read_all(patient: Patient) -> list[Reading]:
    """Reads the model in every way in which it may have been trained; the one pass comes first."""
    if patient.answers_with_class:
        return [read_one_pass(patient)]
    others = [patient.once(read) for read in (read_stepwise, read_forced, read_without_start)]
    if patient.decodes and not patient.once(depends_on_answers):
        others.append(patient.once(read_decoded))
    return [read_one_pass(patient), *(each for each in others if each is not None)]


def read_best(patient: Patient) -> Reading:
    """Chooses the reading that shows most of what the model has learned: the one pass, unless another is better."""
    if patient.interval.low >= LEARNED:
        return read_one_pass(patient)
    first, *others = patient.once(read_all)
    best = max((first, *others), key=lambda each: each.low)
    return best if best.low > first.low else first


def judge_best(patient: Patient, problems: Problems) -> Bool[Tensor, " row"]:
    """Decides which of other problems are right, by the reading that shows most of what the model has learned."""
    label = patient.once(read_best).label
    aligned = None
    if label == FORCED:
        aligned = patient.align_forced(problems)
    elif label == DECODED:
        aligned = patient.align_decoded(problems)
    elif label == STEPWISE:
        return patient.judge(patient.run_stepwise(problems), problems)
    elif label == WITHOUT_START:
        aligned = _continue_answers(patient, problems)
    if aligned is not None:
        return judge_aligned(patient, aligned, problems)
    return patient.judge(patient.run(problems), problems)


def compare_swapped(patient: Patient) -> tuple[Aligned, Aligned, Int[Tensor, "row answer"]] | None:
    """Decodes a few problems as they are and with each other's right answers; returns both and those answers."""
    problems = patient.few
    other = problems.answer.roll(1, dims=0)
    plain = patient.align_decoded(problems)
    written = None if plain is None else patient.generate(replace(problems, answer=other))
    if plain is None or written is None:
        return None
    return plain, place_at(written, plain.offset, other.shape[1]), other


def depends_on_answers(patient: Patient) -> bool:
    """Tells whether decoding changes with the right answers that it is given."""
    swapped = patient.once(compare_swapped) if patient.decodes else None
    return swapped is not None and not torch.equal(swapped[0].tokens, swapped[1].tokens)


def label_accuracies(patient: Patient) -> dict[str, dict[str, Any]]:
    """Returns each accuracy with the number of problems and a sentence that says what it is."""
    found: dict[str, dict[str, Any]] = {}
    if (reported := patient.reported) is not None:
        what = "as your own score computes it, on " + (
            f"all {reported.rows:,} of your examples" if reported.whole else f"{reported.rows:,} that were drawn"
        )
        found["reported"] = {"value": reported.value, "examples": reported.rows, "what": what}
    decoded, forced = patient.once(read_decoded), patient.once(read_forced)
    if decoded is not None and not patient.answers_with_class:
        found["decoded"] = _describe(decoded, "whole answers right, as your own decoding writes them")
    if forced is not None:
        columns, length = len(forced.tokens.columns), patient.problems.answer.shape[1]
        part = "whole answers right" if columns == length else f"right in the {columns} of {length} tokens it predicts"
        found["forced"] = _describe(forced, f"{part}, as your own teacher-forced pass predicts them")
    whole = read_one_pass(patient)
    found["whole"] = _describe(whole, "whole answers right, in one pass given the right tokens before each")
    return found


def _describe(reading: Reading, what: str) -> dict[str, Any]:
    return {"value": reading.accuracy, "examples": len(reading.right), "what": what}
