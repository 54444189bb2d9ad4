"""The check of the metric: what the reported accuracy counts.

A model that is always right hides it: tokens, whole answers and the last digits alone all give 1. So the score is also
asked about answers in which some tokens were replaced, which every way of counting counts differently.
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from jaxtyping import Bool
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
    named = [name for name, share in plain if _same(share, value, problems)]
    whole = [name for name in named if name.startswith(WHOLE)]
    probed, more = _probe(patient, value), ""
    if probed is not None:
        counts, probe = probed
        both = [name for name, share in counts if name in named and _same(share, probe, problems)]
        if both:  # what agrees twice is what it counts
            named, whole = both, [name for name in both if name.startswith(WHOLE)]
            more = f"; where {REPLACED:.0%} of the right tokens were replaced it gives {probe:.4f}, "
            more += f"whole answers {_whole(counts):.4f}"
    if whole:
        source = whole[0].removeprefix(WHOLE)
        meaning = f"the reported {reported.value:.4f} is the accuracy over whole answers{source}"
        return passed(meaning, **numbers, counts=whole[0])
    what = f"it is accuracy {named[0]}" if named else "it is neither that nor accuracy over tokens"
    beside = f"reported {reported.value:.4f}, but accuracy over whole answers is {_whole(plain):.4f}"
    if _same(_whole(plain), value, problems):
        beside = f"the reported {reported.value:.4f} does not count whole answers"
    result = failed(f"{beside}: {what}{more}", REMEDY, **numbers, counts=named[0] if named else None)
    if not named:
        return result.because_of("evaluation mode", "given digits", "greedy", "causality", "start token")
    follows = ("evaluation mode",) if named[0].startswith(FIRST_ROW) else ()
    return result.with_found(named[0].partition(" (")[0]).because_of(*follows)


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
    """Computes the accuracies that people report, the simplest first: over whole answers or over tokens, without some
    tokens of each answer, without a token that is taken for padding, averaged over batches. Those that count whole
    answers begin with `WHOLE`."""
    answer, columns = problems.answer, aligned.columns
    right = patient.judge_tokens(aligned.tokens, problems) if aligned.is_whole else None
    part = "" if aligned.is_whole else f", as far as it has them ({len(columns)} of {answer.shape[1]} tokens)"
    counts: dict[str, float] = {}
    ignorable = [t for t in dict.fromkeys((patient.subject.pad, 0, patient.subject.start)) if t is not None]
    for ignored in (None, *(token for token in ignorable if bool((answer == token).any()))):
        counted = torch.ones_like(same) if ignored is None else answer != ignored
        for kept in _choose_columns(columns):
            some, these = same[:, kept], counted[:, kept]
            whole = (some | ~these).all(1) if right is None or ignored is not None or kept != columns else right
            left_out = _name_columns(columns, kept)
            names = (
                (f"{WHOLE}{part}", "over tokens")
                if ignored is None and kept == columns
                else (
                    f"over answers{left_out}" + ("" if ignored is None else f", whose tokens {ignored} do not count"),
                    ("over tokens" if ignored is None else f"over tokens other than {ignored}") + left_out,
                )
            )
            counts |= zip(names, (float(whole.float().mean()), float(some[these].float().mean())), strict=True)
            for size in BATCHES if ignored is None else ():
                if len(some) % size and size < len(some):
                    averaged = f", averaged over batches of {size}"
                    counts[names[0] + averaged], counts[names[1] + averaged] = map(_average, (whole, some), (size,) * 2)
    return counts


def _choose_columns(columns: range) -> Iterator[range]:
    """Yields the answer tokens that may be counted: all, without the first ones, without the last ones, one alone."""
    yield columns
    for left_out in range(1, len(columns)):
        yield columns[left_out:]
        yield columns[:-left_out]
    yield from (range(at, at + 1) for at in columns[1:-1])


def _name_columns(columns: range, kept: range) -> str:
    """Says which tokens of an answer are left out."""
    if kept == columns:
        return ""
    if len(kept) == 1:
        return f", of which token {kept.start} alone counts"
    end, count = (
        ("first", kept.start - columns.start) if kept.start > columns.start else ("last", columns.stop - kept.stop)
    )
    return f" without their {end} {count} tokens"


def _average(right: Bool[Tensor, "row ..."], size: int) -> float:
    """Averages the accuracies of batches, of which the last may be smaller."""
    return float(torch.stack([batch.float().mean() for batch in right.split(size)]).mean())
