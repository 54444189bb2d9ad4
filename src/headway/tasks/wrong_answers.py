"""What can be said about wrong answers of any task: which tokens are wrong, or which classes are missed."""

from jaxtyping import Int
from torch import Tensor

from headway.tasks.problems import Errors, Problems

SHOWN = 3  # problems that are given as examples


def token_errors(
    problems: Problems,
    written: Int[Tensor, "row answer"],
    trained: int,
    nouns: tuple[str, str, str],
    ends: bool = False,
    backwards: bool = False,
) -> Errors:
    """Wrong tokens among the first `trained`, which training has shown, and past them. Answers that end by a token of
    their own have no such places; `backwards` counts places from the last token."""
    whole, tokens, place = nouns
    wrong = written != problems.answer
    if problems.scored is not None:
        wrong &= problems.scored
    if backwards:
        wrong = wrong.flip(1)
    bad = wrong.any(1)
    share, inside = float(wrong.float().mean()), float(wrong[:, :trained].float().mean())
    past = float(wrong[:, trained:].float().mean()) if wrong.shape[1] > trained else None
    first = int(wrong[bad].int().argmax(1).median()) + 1 if bad.any() else None
    symptoms: list[tuple[str | None, str]] = []
    if ends or past is None:
        symptoms.append((None, f"{share:.1%} of all {tokens} are wrong"))
    elif past > 2 * inside:
        words = f"{past:.1%} of the {tokens} past {place} {trained} are wrong, {inside:.1%} of those up to it"
        symptoms.append((f"{place}s past training", words))
    elif wrong.any():
        words = f"{inside:.1%} of the {tokens} up to {place} {trained} are wrong, {past:.1%} of those past it"
        symptoms.append((None, words))
    if first is not None and not ends:
        symptoms.append((None, f"a wrong {whole} goes wrong first in {place} {first} (median)"))
    evidence: dict[str, float | dict[str, float | None] | None] = {
        f"{tokens}_wrong": share,
        f"{tokens}_wrong_in_trained_{place}s": inside,
        f"{tokens}_wrong_past_them": past,
        f"first_wrong_{place}": first,
    }
    rows = bad.nonzero()[:SHOWN, 0].tolist()
    examples = tuple(_show_difference(problems.answer[row], written[row], tokens[:-1]) for row in rows)
    return Errors(evidence, tuple(symptoms), None, examples)


def _show_difference(answer: Tensor, written: Tensor, token: str) -> str:
    """The tokens around the first wrong one, as they are written."""
    place = int((answer != written).int().argmax())
    near = slice(max(0, place - 3), place + 4)
    right, wrong = (" ".join(map(str, each[near].tolist())) for each in (answer, written))
    return f"from {token} {near.start} of the answer as written: {right}; said {wrong}"


def class_errors(problems: Problems, written: Int[Tensor, "row 1"], classes: int) -> Errors:
    """The share of wrong answers among the problems of each class."""
    wrong, right = (written != problems.answer)[:, 0], problems.answer[:, 0]
    by_class = {str(n): share(wrong, right == n) for n in range(classes) if (right == n).any()}
    words = ", ".join(f"{percent(value)} of class {name}" for name, value in by_class.items())
    more = " …" if problems.source.shape[1] > 12 else ""
    examples = tuple(
        f"{' '.join(map(str, problems.source[row, :12].tolist()))}{more}: class {right[row]}, not {written[row, 0]}"
        for row in wrong.nonzero()[:SHOWN, 0].tolist()
    )
    return Errors({"wrong_by_class": by_class}, summary=f"wrong on {words}", examples=examples)


def share(part: Tensor, of: Tensor) -> float | None:
    """The share of the rows `of` that are in `part` as well; None where there are none."""
    return float((part & of).sum() / of.sum()) if of.any() else None


def percent(value: float | None) -> str:
    return "none" if value is None else f"{100 * value:.1f}%"
