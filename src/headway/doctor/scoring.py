"""The check of the metric: what the reported accuracy counts.

A model that is always right hides it: tokens, whole answers and the last digits alone all give 1. So the score is also
asked about answers in which some tokens were replaced, which every way of counting counts differently.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from headway.doctor.alignment import Aligned, align, place_at
from headway.doctor.check import Checked, check, failed, passed, skipped, warned
from headway.doctor.decoding import BATCHES
from headway.doctor.patient import Patient
from headway.doctor.readings import depends_on_answers
from headway.tasks import Problems

REPLACED = 0.25  # the share of answer tokens that are replaced to probe a score
WHOLE = "over whole answers"
LATE = "of tokens that are one place late"
FIRST_ROW = "of the first problem's prediction, compared with every answer"
REMEDY = "count an answer as right only if all of its tokens are: (predicted == answer).all(1)"


@check("metric", forbids=("heads", "lengths"))
def metric(patient: Patient) -> Checked:
    """Checks that the reported accuracy counts whole answers."""
    if patient.subject.score is None:
        return skipped("it needs the accuracy as you report it: Subject(score=lambda problems: …)")
    problems = patient.problems
    reported = patient.reported
    value = reported.value if reported and reported.rows == len(problems) else patient.score(problems)
    if reported is None or value is None:
        return warned(f"the score could not be computed: {patient.broken['score']}", "return one number", checked=0)
    numbers = {"reported": reported.value, "examples": reported.rows, "exact_match": patient.accuracy}
    plain = _count_all(patient, problems)
    named = {name for name, share in plain if _same(share, value, problems)}
    whole = {name for name in named if name.startswith(WHOLE)}
    probed = _probe(patient, value)
    if probed is not None:
        counts, answer = probed
        matching = [name for name, share in counts if _same(share, answer, problems)]
        both = [name for name in matching if name in named]
        if whole & set(both) or (whole and not both):
            return _pass(reported.value, numbers, next(iter(sorted(whole & set(both) or whole))))
        if both:
            return _fail(
                patient,
                reported.value,
                numbers,
                both[0],
                plain,
                f"; with {REPLACED:.0%} of the tokens of "
                f"the answers replaced it is {answer:.4f}, and that over whole answers {_whole(counts):.4f}",
            )
    if whole:
        return _pass(reported.value, numbers, sorted(whole)[0])
    first = next((name for name, share in plain if name in named), None)
    return _fail(patient, reported.value, numbers, first, plain, "")


def _pass(reported: float, numbers: Mapping[str, float], name: str) -> Checked:
    source = name.removeprefix(WHOLE)
    return passed(f"the reported {reported:.4f} is the accuracy over whole answers{source}", **numbers, counts=name)


def _fail(
    patient: Patient,
    reported: float,
    numbers: Mapping[str, float],
    name: str | None,
    counts: list[tuple[str, float]],
    more: str,
) -> Checked:
    what = f"it is accuracy {name}" if name else "it is neither that nor accuracy over tokens"
    meaning = f"reported {reported:.4f}, but accuracy over whole answers is {_whole(counts):.4f}: {what}{more}"
    result = failed(meaning, REMEDY, **numbers, candidates=dict(reversed(counts)))
    if name is None:
        return result.because_of("evaluation mode", "given digits", "greedy", "causality", "start token")
    return result.with_found(name.partition(" (")[0]).because_of()


def _whole(counts: list[tuple[str, float]]) -> float:
    """Returns the accuracy over whole answers of the first way of answering."""
    return next(share for name, share in counts if name.startswith(WHOLE))


def _same(share: float, value: float, problems: Problems) -> bool:
    return abs(share - value) <= 0.5 / len(problems) + 1e-6


def _probe(patient: Patient, value: float) -> tuple[list[tuple[str, float]], float] | None:
    """Scores answers in which some tokens were replaced; returns what each way of counting gives, and what the score
    says. None if the score does not look at them."""
    problems, scored = patient.problems, patient.scored(patient.problems)
    answer = problems.answer
    dice = torch.Generator().manual_seed(0)
    wrong = (torch.rand(answer.shape, generator=dice) < REPLACED).to(answer.device) & scored
    shifts = torch.randint(1, len(answer), (answer.shape[1],), generator=dice).tolist()
    other = torch.stack([answer[:, at].roll(shift) for at, shift in enumerate(shifts)], dim=1)
    probe = replace(problems, answer=torch.where(wrong, other, answer))
    given = patient.attempt("score of other answers", lambda: patient.score(probe))
    if given is None or abs(given - value) <= 1e-9:
        patient.broken.pop("score", None)
        return None
    return _count_all(patient, probe), given


def _count_all(patient: Patient, problems: Problems) -> list[tuple[str, float]]:
    """Computes the accuracies that people report, by each way of answering; those over whole answers come first."""
    found: list[tuple[str, float]] = []
    for source, aligned in _answers(patient, problems):
        same = aligned.tokens == problems.answer
        is_odd = source.startswith((LATE, FIRST_ROW))
        for name, share in _count(patient, aligned, same, problems).items():
            found.append((f"{source}, {name}" if is_odd else f"{name}{source}", share))
    return sorted(found, key=lambda each: not each[0].startswith(WHOLE))


def _answers(patient: Patient, problems: Problems) -> Iterator[tuple[str, Aligned]]:
    """Yields the answers to count, with how they were obtained."""
    scored = patient.scored(problems)
    length = problems.answer.shape[1]
    tokens = (patient.logits if problems is patient.problems else patient.run(problems)).argmax(-1)
    yield "", place_at(tokens, 0, length)
    outputs: list[tuple[str, Tensor | None]] = []
    if patient.decodes:
        reuse = not patient.once(depends_on_answers)
        outputs.append((" (decoded)", patient.generate(patient.problems if reuse else problems)))
        if patient.decoding_depends:
            sizes = [size for size in (1, *BATCHES) if size < len(problems)]
            outputs += [
                (f" (decoded in batches of {size})", _write_in_batches(patient, problems, size)) for size in sizes
            ]
    if patient.subject.forced is not None:
        outputs.append((" (teacher-forced)", patient.predict(problems)))
    for source, output in outputs:
        if output is not None:
            aligned = align(output, problems.answer, scored)
            yield source, aligned
            if output.shape[1] > length and aligned.offset:
                yield f"{LATE}{source}", place_at(output, 0, length)
            yield f"{FIRST_ROW}{source}", replace(aligned, tokens=aligned.tokens[:1].expand(len(output), -1))


def _write_in_batches(patient: Patient, problems: Problems, size: int) -> Tensor | None:
    parts = [patient.generate(problems[at : at + size]) for at in range(0, len(problems), size)]
    whole = [part for part in parts if part is not None]
    return torch.cat(whole) if len(whole) == len(parts) and len({part.shape[1] for part in whole}) == 1 else None


def _count(
    patient: Patient, aligned: Aligned, same: Bool[Tensor, "row answer"], problems: Problems
) -> dict[str, float]:
    """Computes the accuracies that people report; those that count whole answers begin with `WHOLE`."""
    answer, length, columns = problems.answer, problems.answer.shape[1], list(aligned.columns)
    if aligned.is_whole:
        right = patient.judge_tokens(aligned.tokens, problems)
    else:
        right = aligned.verdict(answer, patient.scored(problems))
    part = "" if aligned.is_whole else f", as far as it has them ({len(columns)} of {length} tokens)"
    counts = {f"{WHOLE}{part}": float(right.float().mean())}
    for size in BATCHES:
        if len(right) % size and size < len(right):
            counts[f"{WHOLE}{part}, averaged over batches of {size}"] = _mean_of_batches(right, size)
    counts["over tokens"] = float(same[:, columns].float().mean())
    for size in (64, 128):
        if len(same) % size and size < len(same):
            counts[f"over tokens, averaged over batches of {size}"] = _mean_of_batches(same[:, columns], size)
    for token in dict.fromkeys((patient.subject.pad, 0, patient.subject.start)):
        if token is not None and bool((counted := answer != token)[:, columns].any()) and not bool(counted.all()):
            counts[f"over tokens other than {token}"] = float(same[:, columns][counted[:, columns]].float().mean())
            ignored = (same | ~counted)[:, columns].all(1)
            counts[f"over answers, whose tokens {token} do not count"] = float(ignored.float().mean())
    for first in range(aligned.columns.start + 1, length):
        counts[f"over the last {length - first} tokens of an answer"] = float(same[:, first:].float().mean())
        counts[f"over answers without their first {first} tokens"] = float(same[:, first:].all(1).float().mean())
        counts[f"over answers without their last {length - first} tokens"] = float(
            same[:, aligned.columns.start : first].all(1).float().mean()
        )
    return counts | {f"over token {at} alone": float(same[:, at].float().mean()) for at in columns}


def _mean_of_batches(right: Int[Tensor, "row ..."] | Bool[Tensor, "row ..."], size: int) -> float:
    return float(torch.stack([batch.float().mean() for batch in right.split(size)]).mean())
