"""Why it stops: what is measured where a model first falls short, and the sentence that the numbers allow.

Nothing here guesses. Each possible cause has a number at the failing length and, where that makes sense, the same
number at the longest training length; the sentence names those that changed.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from headway.lengths.digits import wrong_digits
from headway.lengths.probes import Measured, reach
from headway.models import Classifier, Decoder, EncoderDecoder, Model, Trace
from headway.positions import used
from headway.tasks import Addition, Problems, Sortedness, Task

SAME = 1e-12
"""logits that differ by no more are the same, in float64"""
MAP_CELLS = 60_000_000
"""cells of attention maps kept at a time"""
ROWS = 64
FELL = 0.5
"""a number that fell below this share of what it was in range has changed"""
SHOWN = 3


@dataclass(frozen=True)
class Looking:
    """How attention is spread."""

    head: str
    """the head that looks most at a neighbour in range"""
    neighbour: float
    """the mean weight it gives to that neighbour"""
    entropy: float
    """mean over all heads, as a share of the entropy of looking everywhere alike"""


@dataclass(frozen=True)
class Diagnosis:
    probe: str
    length: int
    sentence: str
    causes: tuple[str, ...]
    evidence: dict[str, Any]
    examples: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(raw: dict[str, Any]) -> Diagnosis:
        return Diagnosis(**{**raw, "causes": tuple(raw["causes"]), "examples": tuple(raw["examples"])})


def diagnose(model: Model, task: Task, measured: Sequence[Measured], device: torch.device) -> list[Diagnosis]:
    """For each probe, what is different at the first length that is not reached."""
    found = []
    for probe in dict.fromkeys(each.probe for each in measured):
        reached = reach(measured, probe)
        failing = [each for each in measured if each.probe == probe and each.length > reached]
        first = min((each for each in failing if each.errors), key=lambda each: each.length, default=None)
        if first is None:  # none wrong: only too few to be sure
            continue
        if isinstance(model, Classifier) and isinstance(task, Sortedness):
            found.append(_of(model, task, first, device))
        elif isinstance(model, Decoder | EncoderDecoder) and isinstance(task, Addition):
            causes, sentence, evidence, examples = wrong_digits(model, task, first, device)
            found.append(Diagnosis(probe, first.length, sentence, tuple(causes), evidence, tuple(examples)))
    return found


def diverged(measured: Sequence[Measured]) -> Diagnosis:
    """Of a run whose weights are no numbers: there is nothing to measure."""
    first = measured[0]
    words = "its training diverged: the loss is no number, and so is nothing that it says"
    return Diagnosis(
        first.probe, first.length, f"At {first.length:,} on {first.probe}: {words}.", ("diverged",), {}, ()
    )


@torch.inference_mode()
def _of(model: Classifier, task: Sortedness, failing: Measured, device: torch.device) -> Diagnosis:
    trained, length = task.lengths[1], failing.length
    unseen = model.positions.unseen(used(type(model.positions), model.index, length, 0))
    evidence: dict[str, Any] = {
        "accuracy": failing.accuracy,
        "pooling": model.config.pooling,
        "positive_rate": failing.positive_rate,
        "constant": failing.constant,
        "unseen": None if unseen is None else asdict(unseen),
        **_blindness(model, task, device),
    }
    head, before = _looking(model, task, trained, device)
    _, now = _looking(model, task, length, device, head)
    evidence |= {"attention_in_range": asdict(before), "attention": asdict(now)}
    evidence |= {"twin_gap_in_range": _twin_gap(model, task, trained, device)}
    evidence |= {"twin_gap": _twin_gap(model, task, length, device)}
    wrong, examples = _misses(model, task, failing.probe, length, device)
    evidence |= wrong
    causes, sentence = _said(evidence, failing, trained, before, now)
    return Diagnosis(failing.probe, length, sentence, tuple(causes), evidence, tuple(examples))


def _blindness(model: Classifier, task: Sortedness, device: torch.device) -> dict[str, float | None]:
    """The largest change of a logit, in float64, when the sequence is permuted, and when it is reversed; None where the
    index is drawn by the sequence, and so would change as well."""
    length = task.lengths[1]  # what cannot be seen there is not seen anywhere
    source = task.independent(2, ROWS, length=length, device=device).source
    order = torch.randperm(length, generator=torch.Generator().manual_seed(0)).to(device)
    if model.config.index != "sequential":
        return {"permuted": None, "reversed": None}
    exact = copy.deepcopy(model).double()
    plain = exact(source)
    return {
        "permuted": float((exact(source[:, order]) - plain).abs().max()),
        "reversed": float((exact(source.flip(1)) - plain).abs().max()),
    }


def _looking(
    model: Classifier, task: Sortedness, length: int, device: torch.device, head: tuple[int, int, int] | None = None
) -> tuple[tuple[int, int, int], Looking]:
    """How one head looks at a neighbour: the one that does so most, or the given (site, number, direction)."""
    rows = max(1, min(ROWS, MAP_CELLS // (model.config.layers * model.config.heads * length**2)))
    trace = Trace()
    model(task.independent(3, rows, length=length, device=device).source, trace=trace)
    sites, maps = list(trace.maps), list(trace.maps.values())
    weight = torch.stack(
        [
            torch.stack([m.diagonal(side, 2, 3).float().mean((0, 2)) for side in (-1, 1)], dim=1)  # head direction
            for m in maps
        ]
    )  # site head direction
    spread = [-(m.float() * m.float().clamp(min=1e-30).log()).sum(-1).mean() for m in maps]
    entropy = float(torch.stack(spread).mean() / torch.tensor(float(max(length, 2))).log())
    if head is None:
        place = int(weight.flatten().argmax())
        heads = weight.shape[1]
        head = (place // (2 * heads), place // 2 % heads, place % 2)
    site, number, _ = head
    return head, Looking(f"{sites[site]}.{number}", float(weight[head]), entropy)


def _twin_gap(model: Classifier, task: Sortedness, length: int, device: torch.device) -> float:
    """By how much one inversion moves the answer: the median difference of the logits' gap within a pair."""
    problems = task.testing(4, 2 * ROWS, probe="one-inversion", length=length, device=device)
    logits = torch.cat([model(some) for some in problems.source.split(max(2, 2_000_000 // length**2))])[:, 0]
    gap = (logits[:, 1] - logits[:, 0]).view(-1, 2)
    return float((gap[:, 0] - gap[:, 1]).abs().median())


def _misses(
    model: Classifier, task: Sortedness, probe: str, length: int, device: torch.device
) -> tuple[dict[str, Any], list[str]]:
    """Which violations are missed, by the place and the size of the first one; and which sorted ones are refused."""
    problems = task.independent(5, 8 * ROWS, probe=probe, length=length, device=device)
    said = torch.cat([model(some) for some in problems.source.split(max(1, 4_000_000 // length**2))])[:, 0].argmax(-1)
    ordered = problems.answer[:, 0] == 1
    descent = problems.source[:, :-1] - problems.source[:, 1:]  # above 0 where the order is broken
    place = (descent > 0).int().argmax(1)
    size = descent.gather(1, place[:, None])[:, 0]
    missed = ~ordered & (said == 1)

    def share(of: Tensor) -> float | None:
        of = of & ~ordered
        return float((missed & of).sum() / of.sum()) if of.any() else None

    third = 3 * place // max(1, length - 1)
    evidence = {
        "false_alarms": float((said[ordered] == 0).float().mean()) if ordered.any() else None,
        "missed": float(missed.sum() / (~ordered).sum()) if (~ordered).any() else None,
        "missed_by_place": {name: share(third == n) for n, name in enumerate(("first third", "middle", "last third"))},
        "missed_by_size": {
            "1": share(size == 1), "2 to 5": share((size > 1) & (size <= 5)), "above 5": share(size > 5),
        },
    }  # fmt: skip
    wrong = (said != problems.answer[:, 0]).nonzero()[:SHOWN, 0].tolist()
    return evidence, [_shown(problems, row, int(place[row])) for row in wrong]


def _shown(problems: Problems, row: int, place: int) -> str:
    """A failing sequence; of a long one the part around its first violation, or its beginning."""
    values, is_sorted = problems.source[row].tolist(), bool(problems.answer[row, 0])
    start = 0 if is_sorted else max(0, place - 5)
    part = values[start : start + 12]
    dots = ("… " if start else "") + " ".join(map(str, part)) + (" …" if start + 12 < len(values) else "")
    return f"{dots} is {'sorted' if is_sorted else f'not sorted (place {place})'}; answered the other way"


def _said(
    evidence: dict[str, Any], failing: Measured, trained: int, before: Looking, now: Looking
) -> tuple[list[str], str]:
    """The causes that the numbers name, and the sentence."""
    causes, words = [], []
    permuted, turned = evidence["permuted"], evidence["reversed"]
    if permuted is not None and permuted <= SAME:
        causes.append("blind to order")
        words.append(f"no logit changes by more than {permuted:.0e} when a sequence is permuted")
    elif turned is not None and turned <= SAME:
        causes.append("blind to direction")
        words.append(f"no logit changes by more than {turned:.0e} when a sequence is reversed")
    if failing.constant:
        causes.append("constant answer")
        words.append(f"every answer is '{'sorted' if failing.positive_rate else 'not sorted'}'")
    if evidence["unseen"] is not None and failing.length > trained:
        unseen = evidence["unseen"]
        causes.append("unseen positions")
        words.append(f"{unseen['count']} of {unseen['of']} {unseen['what']}")
    looked = before.neighbour > 2 / trained  # more than by looking everywhere alike
    if failing.length > trained and looked and now.neighbour < FELL * before.neighbour:
        causes.append("dispersion")
        words.append(
            f"the head that looks most at a neighbour ({before.head}) gives it {now.neighbour:.3f} of its attention, "
            f"{before.neighbour:.3f} at {trained}"
        )
    if failing.length > trained and evidence["twin_gap"] < FELL * evidence["twin_gap_in_range"]:
        causes.append("dilution" if evidence["pooling"] == "mean" else "deaf to one inversion")
        words.append(
            f"one inversion moves the answer by {evidence['twin_gap']:.2f}, by {evidence['twin_gap_in_range']:.2f} at "
            f"{trained}"
        )
    if not causes:
        missed, alarms = evidence["missed"], evidence["false_alarms"]
        where = "in range" if failing.length <= trained else "none of the measured causes stands out"
        shares = f"{_percent(missed)} of the violations missed, {_percent(alarms)} of the sorted refused"
        words.append(f"{where}: {shares}" if failing.length <= trained else f"{where} ({shares})")
    opening = f"At {failing.length:,} on {failing.probe} it is right on {failing.accuracy:.3f}"
    return causes, f"{opening}: {'; '.join(words)}."


def _percent(share: float | None) -> str:
    return "none" if share is None else f"{100 * share:.1f}%"


def weight_of_one_key(gap: float, keys: int) -> Float[Tensor, ""]:
    """The weight that a softmax gives one key whose score lies `gap` above that of all the others."""
    return 1 / (1 + (keys - 1) * torch.exp(-torch.tensor(gap)))
