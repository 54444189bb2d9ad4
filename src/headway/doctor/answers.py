"""Checks of the answers: whether the model has learned anything, and whether the answers are its own (how decoding
starts, what it is fed and what it writes)."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from headway.doctor.alignment import Aligned, is_late
from headway.doctor.check import Checked, check, failed, hidden, passed, skipped, warned
from headway.doctor.decoding import (
    GIVEN,
    KEPT,
    LOST,
    OTHER,
    SAME,
    UNKNOWN,
    Explanation,
    explain_decoding,
    roll_out,
)
from headway.doctor.patient import LEARNED, Patient
from headway.doctor.randomness import add_noise
from headway.doctor.readings import (
    ONE_PASS,
    compare_swapped,
    judge_aligned,
    read_all,
    read_best,
    read_one_pass,
)
from headway.evaluation.intervals import wilson
from headway.evaluation.verdicts import best_constant
from headway.tasks import Problems

ENOUGH = 100  # examples; with fewer, even all right does not show that it has learned
OFTEN = 20  # times that a token must occur before it counts as never said
NEARLY = 0.97  # with a larger share for one answer, the answers are nearly constant
SAME_BUT_TIES = 0.01  # the share of problems whose wrong tokens may differ by near-ties
NOISY, NOISE, NOISY_TIES = 100, 0.3, 0.03
"""problems to decode with noise on the weights, its standard deviation as a share of theirs, and the share of problems
that may differ by near-ties"""
BEYOND = 0.1  # by how much that share must exceed the answer's own
ONE_CLASS = "it is a classifier; there is nothing to decode"


@check("converged", forbids=("heads", "lengths"), explains=("floor", "constant"))
def converged(patient: Patient) -> Checked:
    """Checks that in-range accuracy is above chance and above 0.95; for a user's model, above chance."""
    if patient.subject.runner.is_attached and patient.subject.decode is None:
        return _above_chance(patient)
    best = patient.once(read_best) if patient.interval.low < LEARNED else None
    if best is None or best.label == ONE_PASS:
        accuracy, low, n, label = patient.accuracy, patient.interval.low, len(patient.problems), ""
    else:
        accuracy, low, n, label = best.accuracy, best.low, len(best.right), f" {best.label}"
    chance = best_constant(patient.problems)
    interval = wilson(round(accuracy * n), n).to_json()
    numbers = {"accuracy": accuracy, "interval": interval, "examples": n, "chance": chance}
    shown = f"accuracy {accuracy:.4f}{label} (n = {n:,}) at the training lengths"
    if low >= LEARNED and low > chance:
        return passed(f"{shown}; a constant answer gets {chance:.3f}", **numbers)
    if accuracy >= LEARNED and n < ENOUGH:
        meaning = f"{shown}: {n} are too few, the interval starts at {low:.3f}"
        return warned(meaning, f"give at least {ENOUGH} examples", **numbers)
    by_class = ("balance",) if patient.answers_with_class else ()
    causes = ("blindness", *by_class, *_find_what_keeps_it_low(patient))
    if low <= chance:
        meaning = f"{shown}, no better than a constant answer ({chance:.3f})"
        remedy = "train until it is right in range before studying heads or lengths"
        return failed(meaning, remedy, **numbers).because_of(*causes)
    meaning = f"{shown}; the lower end of the interval, {low:.3f}, is below {LEARNED}"
    remedy = "train longer, with warm-up or another learning rate, and report the interval"
    return failed(meaning, remedy, **numbers).because_of(*causes)


def _find_what_keeps_it_low(patient: Patient) -> list[str]:
    """Finds the checks whose problems, left aside, leave an accuracy above 0.95 by some reading of the model."""
    from headway.doctor.data import UNEVEN, find_seen  # the checks of the data

    rows = {"never said": _lacks(patient, patient.once(find_never_said)[0]), "overlap": find_seen(patient)}
    if not patient.answers_with_class and best_constant(patient.problems) > UNEVEN:
        different, counts = patient.problems.answer.unique(dim=0, return_counts=True)
        rows["balance"] = (patient.problems.answer != different[counts.argmax()]).any(1)
    marked = {name: kept for name, kept in rows.items() if kept is not None}
    for names in (*([name] for name in marked), list(marked)) if marked else ():  # one alone, or all of them together
        kept = torch.stack([marked[name] for name in names]).all(0)
        for right in (reading.right for reading in patient.once(read_all)):
            some = right[kept[: len(right)]]
            if len(some) >= OFTEN and wilson(int(some.sum()), len(some)).high >= LEARNED:
                return names
    return []


def _lacks(patient: Patient, tokens: list[int]) -> Tensor | None:
    """Marks the problems whose answers have none of these tokens."""
    if not tokens:
        return None
    some = torch.tensor(tokens, device=patient.problems.answer.device)
    return ~torch.isin(patient.problems.answer, some).any(1)


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
    """Checks that no evaluated set gets the same answer to every problem, or to nearly every one."""
    found, shares = {}, {}
    for name, problems in patient.sets.items():
        logits = patient.run(problems)
        if logits.shape[-1] == 1:
            return skipped("it returns 1 logit; return two, 0 and the logit, so that the class can be read")
        answers, counts = logits.argmax(-1).unique(dim=0, return_counts=True)
        commonest, share = answers[counts.argmax()], float(counts.max()) / len(problems)
        own = float((problems.answer == commonest).all(1).float().mean())
        varied = len(problems.answer.unique(dim=0)) > 1
        if varied and (len(answers) == 1 or (share >= NEARLY and share > own + BEYOND)):
            found[name], shares[name] = commonest.tolist(), share
    if "sets" in patient.broken:
        return warned(f"your sets could not be used: {patient.broken['sets']}", "return Problems by name", checked=0)
    if not found:
        return passed(f"more than one answer on each of {len(patient.sets)} evaluated sets")
    answer, where = next(iter(found.values())), f"{len(found)} of {len(patient.sets)} sets ({', '.join(found)})"
    least = min(shares.values())
    every = "every problem" if least == 1 else f"{least:.1%} of the problems or more"
    meaning = f"one answer, {answer}, to {every} of {where}: its score there is that answer's share"
    result = failed(meaning, "report the share of each answer beside every accuracy", constant=found, shares=shares)
    in_range = patient.logits.argmax(-1).unique(dim=0, return_counts=True)[1].max() / len(patient.problems)
    everywhere = ("converged", "blindness", "balance") if float(in_range) >= NEARLY else ()
    return result.because_of("positions", *everywhere)


@dataclass(frozen=True)
class Decoding:
    """What was decoded beside what the teacher-forced passes predict."""

    aligned: Aligned
    written: Tensor
    differ: int
    """problems whose verdicts differ"""
    row: int
    """the first of them"""
    explanation: Explanation | None
    noisy: int = 0
    """problems that differ only with noise on the weights"""


def compare_decoding(patient: Patient) -> Decoding | None:
    """Compares the verdicts of decoding with those of the one pass, and of the subject's own teacher-forced pass: on a
    few problems, and on all where they agree on these."""
    found = _compare_on(patient, patient.few)
    if found is None or found.explanation is not None:
        return found
    if len(patient.problems) > len(patient.few):
        found = _compare_on(patient, patient.problems) or found
    return found if found.explanation is not None else _compare_with_noise(patient, found)


def _compare_with_noise(patient: Patient, found: Decoding) -> Decoding:
    """Compares decoding with that of `decode` while there is noise on the weights: a model that is always right may
    write the same whatever it begins with."""
    problems = patient.few[:NOISY]
    if not patient.can_decode or found.aligned.offset or patient.leaks.in_decode or patient.decoding_depends:
        return found
    with add_noise(patient.subject.model, NOISE):
        written = patient.generate(problems)
        if written is None:
            patient.broken.pop("generate", None)
            return found
        ours = roll_out(patient, problems.source, patient.decoder_input(problems)[:, :1], written.shape[1])[:, 1:]
        count = int((written != ours).any(1).sum())
        if count <= NOISY_TIES * len(problems):
            return found
        explanation = explain_decoding(patient, problems, written)
    if UNKNOWN in explanation.mechanisms or explanation.mechanisms == (SAME,):
        return found
    return replace(found, noisy=count, explanation=explanation)


def _compare_on(patient: Patient, problems: Problems) -> Decoding | None:
    aligned, written = patient.align_decoded(problems), patient.generate(problems)
    if aligned is None or written is None:
        return None
    verdict = judge_aligned(patient, aligned, problems)
    alone = patient.forced_depends and len(problems) > len(patient.few)  # too many to predict one by one
    forced = None if alone else patient.align_forced(problems)
    expected = [patient.right[: len(problems)]]
    if forced is not None and forced.is_whole:
        own = patient.judge_tokens(forced.tokens, problems)
        expected = [own] if patient.leaks.only_in_decode else [own, *expected]
    logits = patient.logits[: len(problems)]
    best = logits.topk(min(2, logits.shape[-1]), dim=-1).values
    near = ((best[..., 0] - best[..., -1]) < patient.tolerance).any(-1)
    differ = torch.stack([verdict != each for each in expected]).any(0) & ~near
    differ |= _write_other_tokens(patient, problems, aligned, ~verdict & ~expected[-1])
    if not differ.any() and not is_late(written, problems.answer, patient.scored(problems)):
        return Decoding(aligned, written, 0, 0, None)
    rows = torch.arange(len(problems), device=differ.device)
    if len(problems) > len(patient.few):  # those that differ, and some others
        rows = torch.cat((differ.nonzero()[:, 0], (~differ).nonzero()[:, 0]))[: len(patient.few)]
    explanation = explain_decoding(patient, problems[rows], written[rows])
    row = int(differ.nonzero()[0, 0]) if differ.any() else 0
    return Decoding(aligned, written, int(differ.sum()), row, explanation)


def _write_other_tokens(patient: Patient, problems: Problems, aligned: Aligned, wrong: Tensor) -> Tensor:
    """Marks the problems, among those that are wrong either way, for which decoding with `decode` from the start token
    writes other tokens; none if they are so few that they may be near-ties."""
    other, rows = torch.zeros_like(wrong), wrong.nonzero()[:, 0]
    if patient.can_decode and len(rows) and aligned.is_whole:
        start = patient.decoder_input(problems)[rows, :1]
        ours = roll_out(patient, problems.source[rows], start, problems.answer.shape[1])[:, 1:]
        other[rows] = (aligned.tokens[rows] != ours).any(1)
    return other if int(other.sum()) > SAME_BUT_TIES * len(problems) else torch.zeros_like(wrong)


@check("greedy", forbids=("heads", "lengths"))
def greedy(patient: Patient) -> Checked:
    """Compares greedy decoding with the teacher-forced verdict, problem by problem."""
    if patient.answers_with_class:
        return skipped(ONE_CLASS)
    if patient.subject.generate is None:
        return skipped("it needs your decoding: Subject(generate=lambda problems: …)")
    compared = patient.once(compare_decoding)
    if compared is None:
        return warned(
            f"decoding could not run: {patient.broken['generate']}", "return a row of tokens for each problem"
        )
    problems = patient.problems[: len(compared.written)]
    aligned, needed = compared.aligned, int(patient.scored(problems).any(0).nonzero().max()) + 1
    if aligned.offset <= 0 and aligned.columns.stop < needed:
        meaning = f"decoding wrote {aligned.width} of the {problems.answer.shape[1]} tokens of an answer"
        also = compared.explanation
        if also is not None and {OTHER, KEPT} & set(also.mechanisms):
            meaning += f"; {also.why}"
        return failed(meaning, "write every token of the answer", shape=list(compared.written.shape)).because_of()
    why, count = compared.explanation, compared.differ
    if why is None:
        return passed(f"greedy decoding and teacher forcing agree on {len(problems):,} of {len(problems):,} problems")
    row = compared.row
    if patient.leaks.only_in_decode and why.mechanisms == ("unknown",):
        return hidden(
            "causality",
            "decode sees later tokens, so what decoding should write is not known",
            "pass the causal mask in decode, as your training does, and examine again",
        )
    tokens, predicted = aligned.tokens[row], patient.logits[row].argmax(-1)
    place = int((tokens != predicted).int().argmax())
    example = {"written": compared.written[row].tolist(), "right": problems.answer[row].tolist()}
    numbers = {"mismatches": count, "checked": len(problems), "first_token": place, "hypothesis": why.why}
    what = f"decoding and teacher forcing disagree on {count} of {len(problems)} problems, first at token {place}"
    if compared.noisy:
        what = f"decoding is right, but with noise on the weights differs on {compared.noisy} of {NOISY} problems"
    result = failed(f"{what}: {why.why}", why.remedy, **numbers, example=example)
    return result.with_found(*why.mechanisms).because_of(*why.follows_from)


@check("start token", forbids=("heads", "lengths"))
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
    compared = patient.once(compare_decoding) if patient.decodes else None
    why = None if compared is None else compared.explanation
    agree = why is None or set(why.mechanisms) <= {KEPT, LOST, GIVEN}
    if agree and _count_missing(patient) == 0:
        rest = "; decoding and the one pass agree, so findings stand" if compared is not None else ""
        return warned(f"{what}{rest}", "use a separate start token and train again", start=start, share=share)
    return failed(what, "use a separate start token and train again", start=start, share=share).because_of()


def _count_missing(patient: Patient) -> int:
    """Counts the first answer tokens that the teacher-forced pass is given instead of predicting them."""
    forced = patient.align_forced(patient.few)
    return 0 if forced is None else max(forced.missing_first, len(patient.leaks.given))


@check("given digits", forbids=("heads", "lengths"))
def given_digits(patient: Patient) -> Checked:
    """Checks that no answer token is given instead of predicted."""
    subject, problems = patient.subject, patient.few
    if patient.answers_with_class:
        return skipped(ONE_CLASS)
    if subject.generate is None and subject.forced is None:
        return skipped("it needs your decoding or your teacher-forced pass: Subject(generate=…) or Subject(forced=…)")
    length, missing = problems.answer.shape[1], _count_missing(patient)
    if subject.forced is not None and "forced" in patient.broken:
        return warned(f"your teacher-forced pass could not run: {patient.broken['forced']}", "return rows of tokens")
    if missing > 0:
        decoded = patient.align_decoded(problems)
        by_value = {} if decoded is None else _score_given(problems, decoded.tokens, missing)
        split = ", ".join(f"{value}: {share:.2f}" for value, share in list(by_value.items())[:3])
        meaning = f"the teacher-forced pass predicts {length - missing} of {length} tokens, the first {missing} given"
        meaning += f"; decoding accuracy by given token: {split}" if split else ""
        remedy = "begin with a start token and predict every token of the answer"
        return failed(meaning, remedy, given=list(range(missing)), by_value=by_value).because_of()
    swapped = patient.once(compare_swapped) if patient.decodes else None
    if swapped is None:
        return passed(f"the teacher-forced pass predicts all {length} tokens")
    return _judge_swapped(patient, *swapped)


def _judge_swapped(patient: Patient, plain: Aligned, swapped: Aligned, other: Tensor) -> Checked:
    """Judges decoding of the same problems with other right answers given to it."""
    length = other.shape[1]
    if plain.missing_first:
        meaning = f"decoding writes {length - plain.missing_first} of {length} tokens; the first are left out"
        return failed(meaning, "predict every token of the answer", given=list(range(plain.missing_first))).because_of()
    moved = [float((plain.tokens[:, at] != swapped.tokens[:, at]).float().mean()) for at in range(length)]
    if not any(moved):
        return passed(f"decoding does not depend on the right answers ({len(other)} swapped)")
    fed = [at for at in plain.columns if moved[at] and _follows(plain.tokens, swapped.tokens, other, at)]
    what = f"token {fed[0]} is given, not predicted" if fed else "it reads something from them"
    meaning = f"decoding changes with the right answers it is given ({max(moved):.0%} of them): {what}"
    remedy = "decode from the source alone; count every token of the answer"
    result = failed(meaning, remedy, given=fed, moved=moved)
    return result.because_of() if fed else result.because_of("evaluation mode")


def _follows(plain: Tensor, swapped: Tensor, other: Tensor, at: int) -> bool:
    """Tells whether a token, here or one place late, is always the one of the right answer that was given."""
    for before in (at, at - 1):
        if before >= 0 and torch.equal(swapped[:, at], other[:, before]):
            return torch.equal(plain[:, at], other.roll(-1, dims=0)[:, before])
    return False


def _score_given(problems: Problems, written: Tensor, tokens: int) -> dict[str, float]:
    """Measures the accuracy of decoding, by the tokens that were given."""
    right = (written == problems.answer).all(1)
    keys = [" ".join(map(str, row)) for row in problems.answer[:, :tokens].tolist()]
    shares = {key: [bool(right[row]) for row, given in enumerate(keys) if given == key] for key in sorted(set(keys))}
    return {key: sum(each) / len(each) for key, each in shares.items()}


def find_never_said(patient: Patient) -> tuple[list[int], float]:
    """Finds the tokens that occur in right answers and are never predicted, and the accuracy over all other tokens, by
    the reading of the model in which that is highest."""
    found: list[tuple[list[int], float]] = []
    learned = patient.interval.low >= LEARNED
    for reading in [read_one_pass(patient)] if learned else patient.once(read_all):
        rows, columns = len(reading.right), list(reading.tokens.columns)
        expected, counted = (t[:rows, columns] for t in (patient.problems.answer, patient.scored(patient.problems)))
        said = reading.tokens.tokens[:, columns]
        often = (expected[counted].clamp(min=0).bincount() >= OFTEN).nonzero()[:, 0]
        never = [int(token) for token in often if not bool((said == token).any())]
        others = counted & ~torch.isin(expected, torch.tensor(never, dtype=torch.long, device=expected.device))
        found.append((never, float((said == expected)[others].float().mean()) if others.any() else 0.0))
    return max(found, key=lambda each: each[1])


@check("never said", forbids=("heads", "lengths"), explains=("floor",))
def never_said(patient: Patient) -> Checked:
    """Checks that every token of the right answers is predicted at least once."""
    if patient.answers_with_class:
        return skipped("it is a classifier; `constant` checks its answers")
    if patient.subject.runner.is_attached and patient.subject.decode is None:
        return skipped("it is checked where answers are decoded: give Subject(decode=…, start=TOKEN)")
    never, accuracy = patient.once(find_never_said)
    answer = patient.problems.answer[patient.scored(patient.problems)]
    if not never:
        return passed(f"every token of {len(patient.problems):,} right answers is predicted somewhere")
    if accuracy < 0.5:
        why = f"it never predicts {len(never)} of the answers' tokens, and is right on {accuracy:.2f} of the others"
        return hidden("converged", why, "train until most tokens are right, and examine again")
    token = never[0]
    share = float((answer == token).float().mean())
    others = f" (nor {', '.join(map(str, never[1:]))})" if len(never) > 1 else ""
    meaning = (
        f"token {token}{others}, {share:.1%} of the right ones, is never predicted; {accuracy:.1%} of the others are "
    )
    meaning += "right: the loss ignores it, or training never shows it"
    remedy = f"remove ignore_index={token} from the loss, and train again"
    return failed(meaning, remedy, never=never, share=share, others=accuracy).because_of()
