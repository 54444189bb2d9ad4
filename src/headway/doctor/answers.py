"""Checks of the answers: whether the model has learned anything, whether the answers are its own (how decoding starts,
what it is fed and what it writes), and how right answers are counted."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from headway.doctor.check import Checked, check, failed, passed, skipped, warned
from headway.doctor.patient import LEARNED, Patient, widen
from headway.errors import HeadwayError
from headway.evaluation.intervals import wilson
from headway.evaluation.verdicts import best_constant, largest
from headway.tasks import Problems

ENOUGH = 100  # examples; with fewer, even all right does not show that it has learned
MOST_STARTS = 64  # tokens to try as the start token
NO_DECODE = "it needs the logits after a given prefix: Subject(decode=lambda source, written: …, start=TOKEN)"
ONE_CLASS = "it is a classifier; there is nothing to decode"


@check("converged", forbids=("heads", "lengths"), explains=("floor", "constant", "greedy"))
def converged(patient: Patient) -> Checked:
    """Checks that in-range accuracy is above chance and above 0.95; for a user's model, above chance."""
    if patient.subject.runner.is_attached:
        return _above_chance(patient)
    accuracy, low, n = patient.accuracy, patient.interval.low, len(patient.problems)
    chance = best_constant(patient.problems)
    numbers = {"accuracy": accuracy, "interval": patient.interval.to_json(), "examples": n, "chance": chance}
    shown = f"accuracy {accuracy:.4f} (n = {n:,}) at the training lengths"
    if low >= LEARNED and low > chance:
        return passed(f"{shown}; a constant answer gets {chance:.3f}", **numbers)
    if accuracy >= LEARNED and n < ENOUGH:
        meaning = f"{shown}: {n} are too few, the interval starts at {low:.3f}"
        return warned(meaning, f"give at least {ENOUGH} examples", **numbers)
    if low <= chance:
        meaning = f"{shown}, no better than a constant answer ({chance:.3f})"
        return failed(meaning, "train until it is right in range before studying heads or lengths", **numbers)
    meaning = f"{shown}; the lower end of the interval, {low:.3f}, is below {LEARNED}"
    return failed(meaning, "train longer, with warm-up or another learning rate, and report the interval", **numbers)


def _above_chance(patient: Patient) -> Checked:
    """Checks that a model that Headway did not train, which need not be nearly perfect, gets more tokens right than
    always answering the commonest one."""
    scored = patient.scored(patient.problems)
    right = (patient.logits.argmax(-1) == patient.problems.answer)[scored]
    chance = float(patient.problems.answer[scored].bincount().max()) / len(right)
    interval, accuracy = wilson(int(right.sum()), len(right)), float(right.float().mean())
    numbers = {"examples": len(right), "accuracy": accuracy, "interval": interval.to_json(), "chance": chance}
    shown = f"accuracy {accuracy:.4f} (n = {len(right):,} answer tokens), the commonest has a share of {chance:.4f}"
    if interval.low > chance:
        return passed(shown, **numbers)
    meaning = f"{shown}: no better than a constant answer"
    return failed(meaning, "study it on problems that it can partly solve", **numbers)


@check("constant", forbids=("heads",), explains=("floor",))
def constant(patient: Patient) -> Checked:
    """Checks that no evaluated set gets the same answer to every problem."""
    found = {}
    for name, problems in patient.sets.items():
        logits = patient.run(problems)
        if logits.shape[-1] == 1:
            return skipped("it returns 1 logit; return two, 0 and the logit, so that the class can be read")
        answers = logits.argmax(-1)
        if len(answers.unique(dim=0)) == 1 and len(problems.answer.unique(dim=0)) > 1:
            found[name] = answers[0].tolist()
    if not found:
        return passed(f"more than one answer on each of {len(patient.sets)} evaluated sets")
    answer, where = next(iter(found.values())), f"{len(found)} of {len(patient.sets)} sets ({', '.join(found)})"
    meaning = f"one answer, {answer}, to every problem of {where}: its score there is that answer's share"
    return failed(meaning, "report the share of each answer beside every accuracy", constant=found)


@check("greedy", forbids=("heads", "lengths"))
def greedy(patient: Patient) -> Checked:
    """Compares greedy decoding with the teacher-forced verdict, problem by problem."""
    if patient.answers_with_class:
        return skipped(ONE_CLASS)
    if patient.subject.generate is None:
        return skipped("it needs your decoding: Subject(generate=lambda problems: …)")
    problems = patient.few
    logits, expected = patient.logits[: len(problems)], patient.right[: len(problems)]
    written = patient.generate(problems)
    needed = int(patient.scored(problems).any(0).nonzero().max()) + 1
    if needed > written.shape[1]:
        meaning = f"decoding wrote {written.shape[1]} of the {problems.answer.shape[1]} tokens of an answer"
        return failed(meaning, "write every token of the answer", shape=list(written.shape))
    written = widen(written, problems)  # as an evaluation that compares token by token does
    if (forced := patient.predict_whole(problems)) is not None:  # the verdict of the user's teacher-forced pass
        expected = patient.judge_tokens(forced, problems)
    best = logits.topk(min(2, logits.shape[-1]), dim=-1).values
    near = ((best[..., 0] - best[..., -1]) < patient.tolerance).any(-1)
    differ = (patient.judge_tokens(written, problems) != expected) & ~near
    if not (count := int(differ.sum())):
        return passed(f"greedy decoding and teacher forcing agree on {len(problems)} of {len(problems)} problems")
    row = int(differ.nonzero()[0, 0])
    place = int((written[row] != logits[row].argmax(-1)).int().argmax())
    why, remedy = explain(patient, problems, written)
    example = {"written": written[row].tolist(), "right": problems.answer[row].tolist()}
    numbers = {"mismatches": count, "checked": len(problems), "first_token": place, "hypothesis": why}
    what = f"decoding and teacher forcing disagree on {count} of {len(problems)} problems, first at token {place}"
    return failed(f"{what}: {why}", remedy, **numbers, example=example)


def explain(patient: Patient, problems: Problems, written: Tensor) -> tuple[str, str]:
    """Finds a hypothesis under which our decoding writes exactly what theirs wrote, and how to fix it."""
    start = patient.subject.start
    if patient.subject.decode is None:
        return "the cause cannot be searched for without Subject(decode=…, start=…)", NO_DECODE
    remedy = "use a separate start token" if start is None else f"begin every answer with the start token {start}"
    if start is not None and reproduces(patient, problems, written, [start]):
        if measure_leak(patient, problems) > patient.tolerance or measure_forced_leak(patient, problems):
            return "the teacher-forced pass has no causal mask; decoding needs none", "use a causal mask in evaluation"
        return f"decoding is right; the teacher-forced pass is fed other tokens than {start} and the answer", remedy
    first = int(written[0, 0])
    if bool((written[:, 0] == first).all()):  # every answer starts with the same token
        for before in ([first], [] if start is None else [start, first]):
            if before and reproduces(patient, problems, written[:, 1:], before):
                return _explain_first_token(patient, problems, first, remedy)
    vocabulary = min(patient.logits.shape[-1], MOST_STARTS)
    for token in range(vocabulary):
        if reproduces(patient, problems, written, [token]):
            return f"it starts with token {token}, training with {start}", remedy
    return f"none of {vocabulary + 4} prefixes that were tried reproduces it", "compare the two step by step"


def _explain_first_token(patient: Patient, problems: Problems, token: int, remedy: str) -> tuple[str, str]:
    """Explains why every answer has this token first."""
    share = float((problems.answer[:, 0] == token).float().mean())
    if not share:
        return "the start token is kept in the output, so every token is one place late", "drop the first token"
    if any(int(patient.generate(single)[0, 0]) != token for single in patient.singles):
        return f"every answer starts with {token}, the commonest first token of the batch", remedy
    return f"it always writes {token} as the first token, which is right in {share:.0%}", remedy


def reproduces(patient: Patient, problems: Problems, written: Tensor, before: Sequence[int]) -> bool:
    """Tells whether greedy decoding with the subject's `decode` writes the same after these first tokens; false if the
    model does not accept them."""
    ours = torch.tensor([before], device=problems.answer.device).expand(len(problems), -1)
    try:
        for _ in range(written.shape[1]):
            ours = torch.cat((ours, patient.decode(problems.source, ours)[:, -1:].argmax(-1)), dim=1)
    except HeadwayError:
        return False
    return torch.equal(written, ours[:, len(before) :])


def _replace_later(tokens: Tensor, at: int) -> Tensor:
    return torch.cat((tokens[:, :at], tokens[:, at:].roll(1, dims=0)), dim=1)


def measure_leak(patient: Patient, problems: Problems) -> float:
    """Measures how much an earlier logit changes when later tokens are replaced by another problem's."""
    written, worst = patient.decoder_input(problems), 0.0
    before = patient.decode(problems.source, written)
    for at in range(1, written.shape[1]):
        now = patient.decode(problems.source, _replace_later(written, at))
        worst = max(worst, largest(now[:, :at] - before[:, :at]))
    return worst


def measure_forced_leak(patient: Patient, problems: Problems) -> float:
    """Measures the share of the user's teacher-forced predictions that change with later tokens."""
    before, worst = patient.predict_whole(problems), 0.0
    if before is None:
        return worst
    for at in range(problems.answer.shape[1]):
        now = patient.predict(replace(problems, answer=_replace_later(problems.answer, at)))
        worst = max(worst, float((now[:, : at + 1] != before[:, : at + 1]).float().mean()))
    return worst


@check("start token", forbids=("heads", "lengths"), explains=("greedy", "converged", "floor", "metric"))
def start_token(patient: Patient) -> Checked:
    """Checks that the start token is not also a token of an answer."""
    start = patient.subject.start
    if start is None:
        return skipped("answers have no start token" if patient.answers_with_class else "give Subject(start=TOKEN)")
    inside = (patient.problems.answer == start) & patient.scored(patient.problems)
    share = float(inside.any(1).float().mean())
    if not share:
        return passed(f"token {start} begins every answer and occurs in none of {len(patient.problems):,}")
    what = f"token {start} begins every answer and also occurs inside {share:.1%} of them, so it is ambiguous"
    return failed(what, "use a separate start token and train again", start=start, share=share)


@check("given digits", forbids=("heads", "lengths"), explains=("greedy", "metric", "converged", "floor"))
def given_digits(patient: Patient) -> Checked:
    """Checks that no answer token is given instead of predicted."""
    subject, problems = patient.subject, patient.few
    if patient.answers_with_class:
        return skipped(ONE_CLASS)
    if subject.generate is None and subject.forced is None:
        return skipped("it needs your decoding or your teacher-forced pass: Subject(generate=…) or Subject(forced=…)")
    length = problems.answer.shape[1]
    missing = 0 if subject.forced is None else length - patient.predict(problems).shape[1]
    if missing > 0:
        by_value = {} if subject.generate is None else _score_given(problems, patient.generate_wide(problems), missing)
        split = ", ".join(f"{value}: {share:.2f}" for value, share in list(by_value.items())[:3])
        meaning = f"the teacher-forced pass predicts {length - missing} of {length} tokens, the first {missing} given"
        meaning += f"; decoding accuracy by given token: {split}" if split else ""
        remedy = "begin with a start token and predict every token of the answer"
        return failed(meaning, remedy, given=list(range(missing)), by_value=by_value)
    if subject.generate is None:
        return passed(f"the teacher-forced pass predicts all {length} tokens")
    other = problems.answer.roll(1, dims=0)
    plain, swapped = patient.generate_wide(problems), patient.generate_wide(replace(problems, answer=other))
    moved = [float((plain[:, at] != swapped[:, at]).float().mean()) for at in range(length)]
    if not any(moved):
        return passed(f"decoding does not depend on the right answers ({len(problems)} swapped)")
    fed = [at for at, share in enumerate(moved) if share and bool((swapped[:, at] == other[:, at]).all())]
    what = f"token {fed[0]} is given, not predicted" if fed else "it reads something from them"
    meaning = f"decoding changes with the right answers it is given ({max(moved):.0%} of them): {what}"
    return failed(meaning, "decode from the source alone; count every token of the answer", given=fed, moved=moved)


def _score_given(problems: Problems, written: Tensor, tokens: int) -> dict[str, float]:
    """Measures the accuracy of decoding, by the tokens that were given."""
    right = (written == problems.answer).all(1)
    keys = [" ".join(map(str, row)) for row in problems.answer[:, :tokens].tolist()]
    shares = {key: [bool(right[row]) for row, given in enumerate(keys) if given == key] for key in sorted(set(keys))}
    return {key: sum(each) / len(each) for key, each in shares.items()}


@check("metric", forbids=("heads", "lengths"), explains=("converged", "floor"))
def metric(patient: Patient) -> Checked:
    """Checks that the reported accuracy counts whole answers."""
    score, problems = patient.subject.score, patient.problems
    if score is None:
        return skipped("it needs the accuracy as you report it: Subject(score=lambda problems: …)")
    value = patient.call("score", score, problems)
    if not isinstance(value, int | float) and not (isinstance(value, Tensor) and value.numel() == 1):
        raise patient.bad_return("score", value, "; return one number")
    reported = float(value) / 100 if float(value) > 1 else float(value)  # it may be in percent
    answers = [patient.logits.argmax(-1)]
    if patient.decodes:
        answers.append(patient.generate_wide(problems))
    if (forced := patient.predict_whole(problems)) is not None:
        answers.append(forced)
    others = [float(patient.judge_tokens(tokens, problems).float().mean()) for tokens in answers[1:]]
    near = 0.5 / len(problems) + 1e-6
    if any(abs(reported - each) <= near for each in (patient.accuracy, *others)):
        return passed(f"the reported {reported:.4f} is the accuracy over whole answers", reported=reported)
    counts = [count for tokens in answers for count in _other_counts(patient, tokens, problems).items()]
    named = [name for name, value in counts if abs(value - reported) <= near]
    what = f"it is accuracy {named[0]}" if named else "it is neither that nor accuracy over tokens"
    meaning = f"reported {reported:.4f}, but accuracy over whole answers is {patient.accuracy:.4f}: {what}"
    numbers = {"reported": reported, "exact_match": patient.accuracy, "candidates": dict(reversed(counts))}
    return failed(meaning, "count an answer as right only if all of its tokens are", **numbers)


def _other_counts(patient: Patient, tokens: Tensor, problems: Problems) -> dict[str, float]:
    """Computes the accuracies that people report instead of the one over whole answers."""
    same, length = tokens == problems.answer, problems.answer.shape[1]
    counts = {"over tokens": float(same.float().mean())}
    for token in dict.fromkeys((patient.subject.pad, 0)):
        if token is not None and bool((counted := problems.answer != token).any()):
            counts[f"over tokens other than {token}"] = float(same[counted].float().mean())
            counts[f"over answers, whose tokens {token} do not count"] = float((same | ~counted).all(1).float().mean())
    for first in range(1, length):
        counts[f"over the last {length - first} tokens of an answer"] = float(same[:, first:].float().mean())
        counts[f"over answers without their first {first} tokens"] = float(same[:, first:].all(1).float().mean())
    return counts | {f"over token {at} alone": float(same[:, at].float().mean()) for at in range(length)}
