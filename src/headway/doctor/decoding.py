"""Is the answer the model's own? Checks of how answers are begun, fed and written."""

from collections.abc import Sequence

import torch
from torch import Tensor

from headway.doctor.check import Checked, check, failed, passed, skipped
from headway.doctor.patient import Patient, widen
from headway.errors import HeadwayError
from headway.evaluation.verdicts import largest
from headway.tasks import Problems

MOST_STARTS = 64
"""tokens that are tried as the beginning of an answer"""
ALONE = 20
"""problems that are decoded one by one"""
NO_DECODE = "it needs the logits after a given beginning: Subject(decode=lambda source, written: …, start=TOKEN)"
ONE_CLASS = "it answers with a class; there is nothing to decode"


@check("greedy", forbids=("heads", "lengths"))
def greedy(patient: Patient) -> Checked:
    """Token-by-token decoding against the teacher-forced verdict, problem by problem."""
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
    written = widen(written, problems)  # as an evaluation that compares place by place does
    by_decoding = patient.judge_tokens(written, problems)
    forced = patient.predict(problems)
    if forced is not None and forced.shape == problems.answer.shape:  # the verdict of their own one pass
        expected = patient.judge_tokens(forced, problems)
    best = logits.topk(min(2, logits.shape[-1]), dim=-1).values
    near = ((best[..., 0] - best[..., -1]) < patient.same).any(-1)
    differ = (by_decoding != expected) & ~near
    if not differ.any():
        return passed(f"decoding token by token and the one pass agree on {len(problems)} of {len(problems)} problems")
    row = int(differ.nonzero()[0, 0])
    place = int((written[row] != logits[row].argmax(-1)).int().argmax())
    why, remedy = explain(patient, problems, written)
    return failed(
        f"decoding and the one pass disagree on {int(differ.sum())} of {len(problems)} problems, first at token "
        f"{place}: {why}",
        remedy,
        mismatches=int(differ.sum()), checked=len(problems), first_token=place, hypothesis=why,
        example={"written": written[row].tolist(), "right": problems.answer[row].tolist()},
    )  # fmt: skip


def explain(patient: Patient, problems: Problems, written: Tensor) -> tuple[str, str]:
    """The hypothesis under which our own decoding writes exactly what theirs wrote, and how to mend it."""
    start = patient.subject.start
    if patient.subject.decode is None:
        return "what explains it cannot be tried without Subject(decode=…, start=…)", NO_DECODE
    own = "give the start a token of its own" if start is None else f"begin every answer with the start token {start}"
    if start is not None and fits(patient, problems, written, [start]):
        if sees_later(patient, problems) > patient.same or forced_sees_later(patient, problems):
            return "the one pass has no causal mask; decoding needs none", "pass the causal mask in evaluation"
        return f"decoding is right, and the one pass is fed other tokens than {start} and the answer", own
    first = int(written[0, 0])
    if bool((written[:, 0] == first).all()):  # one token is written first, whatever the problem
        for before in ([first], [] if start is None else [start, first]):
            if before and fits(patient, problems, written[:, 1:], before):
                return _put_first(patient, problems, first, own)
    vocabulary = min(patient.logits.shape[-1], MOST_STARTS)
    for token in range(vocabulary):
        if fits(patient, problems, written, [token]):
            return f"it begins with token {token}, training with {start}", own
    return f"none of {vocabulary + 4} beginnings that were tried writes the same", "compare the two step by step"


def _put_first(patient: Patient, problems: Problems, token: int, own: str) -> tuple[str, str]:
    """What it means that every answer has this token first."""
    share = float((problems.answer[:, 0] == token).float().mean())
    if not share:
        return "the start token is kept in what is decoded, so all is one place late", "drop the first token"
    if any(int(patient.generate(problems[row : row + 1])[0, 0]) != token for row in range(min(ALONE, len(problems)))):
        return f"every answer begins with {token}, the commonest first token of the batch", own
    return f"it writes {token} as the answer's first token, which it is in {share:.0%}", own


def fits(patient: Patient, problems: Problems, written: Tensor, before: Sequence[int]) -> bool:
    """Whether our own decoding writes the same after these first tokens; not where the model does not take them."""
    try:
        return torch.equal(written, decode_after(patient, problems, before, written.shape[1]))
    except HeadwayError:
        return False


def decode_after(patient: Patient, problems: Problems, before: Sequence[int], tokens: int) -> Tensor:
    """Our own decoding by the subject's `decode`, after the given first tokens, a prefix at a time."""
    given = len(before)
    written = torch.tensor([before], device=problems.answer.device).expand(len(problems), -1)
    for _ in range(tokens):
        written = torch.cat((written, patient.decode(problems.source, written)[:, -1:].argmax(-1)), dim=1)
    return written[:, given:]


def sees_later(patient: Patient, problems: Problems) -> float:
    """By how much an earlier logit moves when later tokens are exchanged."""
    written, worst = patient.decoder_input(problems), 0.0
    before = patient.decode(problems.source, written)
    for at in range(1, written.shape[1]):
        changed = written.clone()
        changed[:, at:] = changed[:, at:].roll(1, dims=0)
        worst = max(worst, largest(patient.decode(problems.source, changed)[:, :at] - before[:, :at]))
    return worst


def forced_sees_later(patient: Patient, problems: Problems) -> float:
    """The share of what their own one pass predicts that changes when later tokens are exchanged."""
    before, worst = patient.predict(problems), 0.0
    if before is None or before.shape != problems.answer.shape:
        return worst
    for at in range(problems.answer.shape[1]):
        answer = problems.answer.clone()
        answer[:, at:] = answer[:, at:].roll(1, dims=0)
        now = patient.predict(Problems(problems.source, answer, problems.scored))
        assert now is not None
        worst = max(worst, float((now[:, : at + 1] != before[:, : at + 1]).float().mean()))
    return worst


@check("start token", forbids=("heads", "lengths"), explains=("greedy", "converged", "floor", "metric"))
def start_token(patient: Patient) -> Checked:
    """Whether the token that begins an answer is also a token of content."""
    start = patient.subject.start
    if start is None:
        return skipped("no answer is begun by a token" if patient.answers_with_class else "give Subject(start=TOKEN)")
    inside = (patient.problems.answer == start) & patient.scored(patient.problems)
    share = float(inside.any(1).float().mean())
    if not share:
        return passed(f"token {start} begins every answer and is in none of {len(patient.problems):,}")
    return failed(
        f"token {start} begins every answer and stands inside {share:.1%} of them: a beginning cannot be told from it",
        "give the start a token of its own and train again",
        start=start, share=share,
    )  # fmt: skip


@check("given digits", forbids=("heads", "lengths"), explains=("greedy", "metric", "converged", "floor"))
def given_digits(patient: Patient) -> Checked:
    """Answer tokens that are fed and never predicted."""
    subject, problems = patient.subject, patient.few
    if patient.answers_with_class:
        return skipped(ONE_CLASS)
    if subject.generate is None and subject.forced is None:
        return skipped("it needs your decoding or your one pass: Subject(generate=…) or Subject(forced=…)")
    length = problems.answer.shape[1]
    forced = patient.predict(problems)
    missing = 0 if forced is None else length - forced.shape[1]
    if missing > 0:
        by_value = {} if subject.generate is None else _by_first(problems, patient.generate_wide(problems), missing)
        split = ", ".join(f"{value}: {share:.2f}" for value, share in list(by_value.items())[:3])
        return failed(
            f"the one pass predicts {length - missing} of {length} tokens, the first {missing} given"
            + (f"; decoded right, by what is given: {split}" if split else ""),
            "begin with a start token and predict every token of the answer",
            given=list(range(missing)), by_value=by_value,
        )  # fmt: skip
    if subject.generate is None:
        return passed(f"the one pass predicts all {length} tokens")
    other = problems.answer.roll(1, dims=0)
    plain = patient.generate_wide(problems)
    swapped = patient.generate_wide(Problems(problems.source, other, problems.scored))
    moved = [float((plain[:, at] != swapped[:, at]).float().mean()) for at in range(length)]
    if not any(moved):
        return passed(f"what is decoded does not depend on the right answers ({len(problems)} exchanged)")
    fed = [at for at, share in enumerate(moved) if share and bool((swapped[:, at] == other[:, at]).all())]
    what = f"token {fed[0]} is given, not predicted" if fed else "something is taken from them"
    return failed(
        f"decoding changes with the right answers that it is handed ({max(moved):.0%} of them): {what}",
        "decode from the source alone; count every token of the answer",
        given=fed, moved=moved,
    )  # fmt: skip


def _by_first(problems: Problems, written: Tensor, tokens: int) -> dict[str, float]:
    """How many answers are decoded right, by the tokens that were given."""
    right = (written == problems.answer).all(1)
    keys = [" ".join(map(str, row)) for row in problems.answer[:, :tokens].tolist()]
    shares = {key: [bool(right[row]) for row, own in enumerate(keys) if own == key] for key in sorted(set(keys))}
    return {key: sum(each) / len(each) for key, each in shares.items()}
