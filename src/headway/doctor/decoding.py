"""How an evaluation decodes: hypotheses under which decoding with the subject's `decode` writes exactly what its own
decoding wrote.

A hypothesis is composed of what the decoder is given first (the start token, another token, a token of the right
answer, the commonest one of each batch, any token that was then put first), and of where the output begins (with what
the decoder was given, after it, or one place too late).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from jaxtyping import Int
from torch import Tensor

from headway.doctor.alignment import is_late
from headway.doctor.patient import Patient
from headway.doctor.readings import ONE_PASS, depends_on_answers, read_best
from headway.errors import HeadwayError
from headway.tasks import Problems

MOST_STARTS = 64  # tokens to try as the start token
BATCHES = (16, 32, 50, 64, 100, 128, 256, 512)  # sizes of the batches in which an evaluation may decode
SCREEN = 24  # problems on which a hypothesis is tried first
KNOWS = 0.2  # accuracy in one pass above which the start token means something to the model
ENOUGH = 0.99  # the share of problems that it must reproduce; the rest may be near-ties
NO_DECODE = "it needs the logits after a given prefix: Subject(decode=lambda source, written: …, start=TOKEN)"
SAME, KEPT, LOST, OTHER, FIRST, COMMONEST, GIVEN, UNKNOWN = (
    "same", "start token kept", "first token lost", "another start token", "first token put", "commonest of the batch",
    "given digits", "unknown",
)  # fmt: skip


@dataclass(frozen=True)
class Explanation:
    """Why decoding differs from the teacher-forced pass."""

    mechanisms: tuple[str, ...]
    why: str
    remedy: str
    follows_from: tuple[str, ...] = ()
    """the checks that find the same mistake, if decoding itself is not at fault"""


def explain_decoding(patient: Patient, problems: Problems, written: Int[Tensor, "row width"]) -> Explanation:
    """Finds a hypothesis that reproduces what was written, and says what it means."""
    subject, start, scored = patient.subject, patient.subject.start, patient.scored(problems)
    late = is_late(written, problems.answer, scored)
    if subject.decode is None:
        if late:
            return _explain_kept((KEPT,), "")
        return Explanation((UNKNOWN,), "the cause cannot be searched for without Subject(decode=…, start=…)", NO_DECODE)
    remedy = "use a separate start token" if start is None else f"begin every answer with the start token {start}"
    best, ties, tried = None, [], 0
    for group in _hypotheses(patient, problems, written):
        shares = [_reproduce(patient, problems, written, *each) for each in group]
        tried += len(shares)
        if shares and max(shares) >= ENOUGH:
            best = group[max(range(len(shares)), key=shares.__getitem__)]
            ties = [int(p[0, 0]) for (p, _), share in zip(group, shares, strict=True) if share == max(shares)]
            break
    if best is not None:
        found = _name(patient, problems, written, *best, remedy)
        if OTHER in found.mechanisms and len(ties) > 1 and start is not None:
            same = " and ".join(map(str, ties[:3]))
            return replace(found, why=f"it starts with another token than {start}: {same} give what it writes")
        return found
    copies = patient.once(depends_on_answers)
    if late:
        return replace(_explain_kept((KEPT,), ""), follows_from=("given digits",) if copies else ())
    why = f"none of {tried} ways to begin that were tried reproduces it"
    return Explanation((UNKNOWN,), why, "compare the two step by step", (*FOLLOWS, "evaluation mode"))


FOLLOWS = ("given digits", "causality")


def _hypotheses(patient: Patient, problems: Problems, written: Tensor) -> Iterator[list[tuple[Tensor, int]]]:
    """Yields groups of hypotheses, the simplest first: what the decoder may be given first, each with the place where
    the output then begins. The best of the first group in which one fits is the explanation."""
    start, answer, rows = patient.subject.start, problems.answer, len(problems)

    def constant(*tokens: int) -> Tensor:
        return torch.tensor([tokens], device=answer.device).expand(rows, -1)

    started = [] if start is None else [constant(start)]
    vocabulary = [token for token in range(min(patient.logits.shape[-1], MOST_STARTS)) if token != start]
    given: list[list[tuple[Tensor, int]]] = []
    for count in range(1, answer.shape[1]):
        after = [torch.cat((prefix, answer[:, :count]), 1) for prefix in started]
        given.append([(answer[:, :count], 0), *((prefix, begins) for prefix in after for begins in (1, 0))])
    yield [(prefix, 1) for prefix in started]
    copies = patient.once(depends_on_answers)
    yield from given if copies else ()
    for begins in (1, 0, 2):
        yield [(prefix, begins) for prefix in started] + [(constant(t), begins) for t in vocabulary if begins]
    yield [(written[:, :1], 0)]
    yield [(torch.cat((prefix, written[:, :1]), 1), 1) for prefix in started]
    sizes = [size for size in (rows, *reversed(BATCHES)) if size <= rows]
    yield [(commonest_by_batch(tokens, size), 1) for size in sizes for tokens in (answer[:, :1], answer)]
    yield from () if copies else given


def commonest_by_batch(tokens: Int[Tensor, "row token"], size: int) -> Int[Tensor, "row 1"]:
    """Returns the commonest token of each batch of that size, for each of its rows."""
    batches = tokens.split(size)
    return torch.cat([batch.flatten().mode().values.expand(len(batch), 1) for batch in batches])


def roll_out(patient: Patient, source: Tensor, prefix: Tensor, steps: int) -> Int[Tensor, "row all"]:
    """Decodes greedily with the subject's `decode`; returns the prefix and what follows."""
    written = prefix
    for _ in range(steps):
        written = torch.cat((written, patient.decode(source, written)[:, -1:].argmax(-1)), dim=1)
    return written


def _reproduce(patient: Patient, problems: Problems, written: Tensor, prefix: Tensor, begins: int) -> float:
    """Measures the share of problems for which decoding from this prefix writes the same; 0 if it is clearly not so, or
    the model does not accept it."""
    steps = written.shape[1] + begins - prefix.shape[1]
    if steps < 1:
        return 0.0
    screen = torch.linspace(0, len(problems) - 1, min(SCREEN, len(problems)), device=problems.answer.device).long()
    share = 0.0
    for rows in (screen, torch.arange(len(problems), device=screen.device)):
        try:
            ours = roll_out(patient, problems.source[rows], prefix[rows], steps)[:, begins:]
        except HeadwayError:
            return 0.0
        share = float((ours == written[rows]).all(1).float().mean())
        if share < 0.9:
            return 0.0
    return share


def _name(
    patient: Patient, problems: Problems, written: Tensor, prefix: Tensor, begins: int, remedy: str
) -> Explanation:
    """Names the mistakes of a hypothesis that reproduces what was written."""
    start, answer = patient.subject.start, problems.answer
    fed = prefix[:, 0]
    is_start = start is not None and bool((fed == start).all())
    if is_start and prefix.shape[1] == 1 and begins == 1:
        return _explain_forced(patient, remedy)
    if begins > prefix.shape[1]:
        why = "the first token of every answer is dropped, so every token is one place early"
        extra = () if is_start else (OTHER,)
        return Explanation((LOST, *extra), why, "drop only the start token from the output")
    if is_start and begins == 0 and prefix.shape[1] > 1:
        return _explain_kept((KEPT, GIVEN), "; the first token after it is taken from the right answer")
    if prefix.shape[1] == 1 and begins == 0 and bool((fed == fed[0]).all()):
        occurs = bool((answer == fed[0]).any())
        in_its_place = not is_start and start is not None and _knows_start(patient)
        if not occurs or in_its_place or is_late(written, answer, patient.scored(problems)):
            other = "" if is_start or start is None else f"; and it starts with {int(fed[0])}, training with {start}"
            return _explain_kept((KEPT,) if not other else (KEPT, OTHER), other)
    if begins < prefix.shape[1]:
        return _explain_first(patient, problems, written[:, : prefix.shape[1] - begins], remedy)
    if not bool((fed == fed[0]).all()):
        why = "decoding begins with the commonest token of each batch"
        return Explanation((COMMONEST,), why, remedy, ("evaluation mode",))
    if start is None:
        return Explanation((OTHER,), f"it starts with token {int(fed[0])}", remedy, FOLLOWS)
    return Explanation((OTHER,), f"it starts with token {int(fed[0])}, training with {start}", remedy)


def _knows_start(patient: Patient) -> bool:
    """Tells whether the model was trained with its start token, so that what stands there is no digit of an answer."""
    best = patient.once(read_best)
    return best.label == ONE_PASS and best.accuracy > KNOWS


def _explain_kept(mechanisms: tuple[str, ...], more: str) -> Explanation:
    why = f"the start token is kept in the output, so every token is one place late{more}"
    return Explanation(mechanisms, why, "drop the first token: written[:, 1:]")


def _explain_forced(patient: Patient, remedy: str) -> Explanation:
    """Explains a difference from the teacher-forced pass where decoding itself is as it should be."""
    if patient.leaks.in_forced or (patient.leaks.in_decode and not patient.leaks.only_in_decode):
        why = "the teacher-forced pass has no causal mask; decoding needs none"
        return Explanation((SAME,), why, "use a causal mask in evaluation", ("causality",))
    why = f"decoding is right; the teacher-forced pass is fed other tokens than {patient.subject.start} and the answer"
    return Explanation((SAME,), why, remedy, ("given digits", "evaluation mode", "causality"))


def _explain_first(patient: Patient, problems: Problems, first: Int[Tensor, "row put"], remedy: str) -> Explanation:
    """Explains first tokens that were put in front instead of being predicted."""
    token, right = int(first[0, 0]), first[:, 0] == problems.answer[:, 0]
    if bool((first == problems.answer[:, : first.shape[1]]).all()):
        many = "token is" if first.shape[1] == 1 else f"{first.shape[1]} tokens are"
        why = f"the first {many} taken from the right answer"
        return Explanation((GIVEN,), why, "predict every token of the answer", ("given digits", "evaluation mode"))
    constant = bool((first[:, 0] == token).all())
    singles = [patient.generate(single) for single in patient.singles]
    if constant and all(each is None or int(each[0, 0]) == token for each in singles):
        why = f"it always writes {token} as the first token, which is right in {float(right.float().mean()):.0%}"
        return Explanation((FIRST,), why, remedy, ("given digits", "start token"))
    for size in (len(problems), *(size for size in reversed(BATCHES) if size < len(problems))):
        for tokens in (problems.answer[:, :1], problems.answer):
            if torch.equal(commonest_by_batch(tokens, size)[:, 0], first[:, 0]):
                where = "the batch" if size >= len(problems) else f"each batch of {size}"
                what = f"every answer starts with {token}" if constant else "answers start with a token that is put"
                why = f"{what}, the commonest first token of {where}"
                return Explanation((COMMONEST,), why, remedy, ("evaluation mode", "given digits"))
    why = f"the first token is put there, not predicted, and is right in {float(right.float().mean()):.0%}"
    return Explanation((FIRST,), why, remedy, ("given digits", "evaluation mode"))
