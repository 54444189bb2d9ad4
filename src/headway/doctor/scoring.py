"""The check of the metric: what the reported accuracy counts.

A model that is always right hides it: tokens, whole answers and the last digits alone all give 1. So the score is also
computed with noise on the weights, and with some answers replaced: there are then mistakes, which every way of counting
counts differently.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Bool
from torch import Tensor

from headway.doctor.alignment import Aligned, align, place_at
from headway.doctor.check import Checked, check, failed, hidden, passed, skipped, warned
from headway.doctor.decoding import BATCHES
from headway.doctor.patient import Patient
from headway.doctor.randomness import add_noise
from headway.doctor.readings import depends_on_answers
from headway.tasks import Problems

NOISE = (0.15, 0.3, 0.6, 1.2)  # standard deviations to try, as shares of each weight's own
PROBED = 200  # problems to score with noise
SOME_WRONG = 0.9  # the largest share of right tokens that the noise should leave
EXACT = 1e-5  # up to which two accuracies of the same answers are equal
REPLACED = 0.25  # the share of answer tokens that are then replaced
WHOLE = "over whole answers"
LATE = "of tokens that are one place late"
FORCED = " (teacher-forced)"
FIRST_ROW = "of the first problem's prediction, compared with every answer"
REMEDY = "count whole answers: (predicted == answer).all(1)"


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
    counting = Counting(patient)
    plain = counting.count_all(problems)
    named, more = _match(plain, value, len(problems), [name for name, _ in plain]), ""
    for counts, probe, rows in _probe(counting, value):
        if both := _match(counts, probe, rows, named):  # what agrees again is what it counts
            named = both
            more = f"; with mistakes made on purpose it is {probe:.4f}, not {_whole(counts):.4f}"
    whole = [name for name in named if name.startswith(WHOLE)]
    skips = [name for name in named if name.startswith("over answers without their first")]
    if whole and skips and more and (patient.leaks.given or patient.once(depends_on_answers)):
        why = "the first token is given and always right, so whether the score leaves it out cannot be told"
        return hidden("given digits", why, "predict every token of the answer, and examine again")
    if whole:
        source = whole[0].removeprefix(WHOLE)
        meaning = f"the reported {reported.value:.4f} is the accuracy over whole answers{source}"
        return passed(meaning, **numbers, counts=whole[0])
    what = f"it is accuracy {named[0]}" if named else "it is neither that nor accuracy over tokens"
    beside = f"reported {reported.value:.4f}, but accuracy over whole answers is {_whole(plain):.4f}"
    if _same(_whole(plain), value, len(problems)):
        beside = f"the reported {reported.value:.4f} does not count whole answers"
        what += more
    result = failed(f"{beside}: {what}", REMEDY, **numbers, counts=named[0] if named else None)
    if not named:
        return result.because_of("evaluation mode", "given digits", "greedy", "causality", "start token")
    follows = ("evaluation mode",) if named[0].startswith(FIRST_ROW) and WHOLE in named[0] else ()
    return result.with_found(named[0].partition(" (")[0]).because_of(*follows)


def _whole(counts: list[tuple[str, float]]) -> float:
    """Returns the accuracy over whole answers of the first way of answering."""
    return next(share for name, share in counts if name.startswith(WHOLE))


def _same(share: float, value: float, rows: int) -> bool:
    return abs(share - value) <= 0.5 / rows + 1e-6


def _match(counts: list[tuple[str, float]], value: float, rows: int, names: list[str]) -> list[str]:
    """Returns the names, of these, whose accuracy is the value: exactly or, if none is, up to the rounding of a score
    that is printed with few digits."""
    some = [(name, share) for name, share in counts if name in names]
    exact = [name for name, share in some if abs(share - value) <= EXACT]
    return exact or [name for name, share in some if _same(share, value, rows)]


def _probe(counting: "Counting", value: float) -> Iterator[tuple[list[tuple[str, float]], float, int]]:
    """Scores some problems with noise on the weights, little and more; yields what each way of counting gives, what the
    score says, and the number of problems. Yields nothing if the score does not depend on the weights."""
    patient, left = counting.patient, 2
    few, problems = patient.problems[: PROBED // 4], patient.problems[:PROBED]
    scored, broken = patient.scored(few), dict(patient.broken)
    for scale in NOISE:
        with add_noise(patient.subject.model, scale):
            right = float((patient.run(few).argmax(-1) == few.answer)[scored].float().mean())
            if right > SOME_WRONG and scale != NOISE[-1]:
                continue
            score = patient.score(problems)
            counts = None if score is None else counting.count_all(problems)
        patient.broken.clear()  # noise may break what works without it
        patient.broken.update(broken)
        if score is None or counts is None:
            return
        if abs(score - value) <= 1e-9:
            continue  # too little noise, or it does not depend on the weights
        yield counts, score, len(problems)
        left -= 1
        if not left:
            break
    yield from _probe_answers(counting, problems)


def _probe_answers(counting: "Counting", problems: Problems) -> Iterator[tuple[list[tuple[str, float]], float, int]]:
    """Scores some problems of which a quarter of the answer tokens were replaced: what is decoded stays the same, so
    that a wrong first token does not make the later ones wrong."""
    patient, answer = counting.patient, problems.answer
    dice, broken = torch.Generator().manual_seed(0), dict(patient.broken)
    wrong = (torch.rand(answer.shape, generator=dice) < REPLACED).to(answer.device) & patient.scored(problems)
    probe = replace(problems, answer=torch.where(wrong, answer.roll(1, dims=0), answer))
    before, score = patient.score(problems), patient.score(probe)
    counts = None if score is None or score == before else counting.count_all(probe)
    patient.broken.clear()
    patient.broken.update(broken)
    if score is not None and counts is not None:
        yield counts, score, len(problems)


@dataclass(frozen=True)
class Counting:
    """Computes the accuracies that people report, by each way of answering."""

    patient: Patient
    offsets: dict[str, int] = field(default_factory=dict)
    """how each output was aligned when it was seen first, without noise"""

    def count_all(self, problems: Problems) -> list[tuple[str, float]]:
        """Returns the accuracies with their names; those over whole answers come first, those of odd comparisons
        last."""
        plain, odd = [], []
        for source, aligned in self._answers(problems):
            is_odd = source.startswith((LATE, FIRST_ROW))
            for name, share in _count(self.patient, aligned, aligned.tokens == problems.answer, problems).items():
                (odd if is_odd else plain).append((f"{source}, {name}" if is_odd else f"{name}{source}", share))
        return [*sorted(plain, key=lambda each: not each[0].startswith(WHOLE)), *odd]

    def _answers(self, problems: Problems) -> Iterator[tuple[str, Aligned]]:
        """Yields the answers to count, with how they were obtained."""
        patient, length = self.patient, problems.answer.shape[1]
        tokens = (patient.logits if problems is patient.problems else patient.run(problems)).argmax(-1)
        yield "", place_at(tokens, 0, length)
        for source, output in self._outputs(problems):
            if source not in self.offsets:
                ends = source == FORCED
                self.offsets[source] = align(output, problems.answer, patient.scored(problems), ends=ends).offset
            aligned = place_at(output, self.offsets[source], length)
            yield source, aligned
            if output.shape[1] > length and aligned.offset:
                yield f"{LATE}{source}", place_at(output, 0, length)
            yield f"{FIRST_ROW}{source}", replace(aligned, tokens=aligned.tokens[:1].expand(len(output), -1))

    def _outputs(self, problems: Problems) -> Iterator[tuple[str, Tensor]]:
        patient = self.patient
        outputs = {FORCED: patient.predict(problems)}
        if patient.decodes:
            outputs[" (decoded)"] = patient.generate(problems)
            if patient.decoding_depends:
                for size in (1, *BATCHES):
                    if size < len(problems):
                        outputs[f" (decoded in batches of {size})"] = _write_in_batches(patient, problems, size)
        yield from ((source, output) for source, output in outputs.items() if output is not None)


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
            for size in BATCHES if ignored is None and kept == columns else ():
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
    if columns.start < kept.start and kept.stop < columns.stop:
        return f", of which token {kept.start} alone counts"
    end, count = (
        ("first", kept.start - columns.start) if kept.start > columns.start else ("last", columns.stop - kept.stop)
    )
    return f" without their {end} {count} tokens"


def _average(right: Bool[Tensor, "row ..."], size: int) -> float:
    """Averages the accuracies of batches, of which the last may be smaller."""
    return float(torch.stack([batch.float().mean() for batch in right.split(size)]).mean())
