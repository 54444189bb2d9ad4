"""The diagnosis of a length failure: measurements at the first length that a model fails, and a sentence about them.

Nothing here is a guess. Each possible cause has a number at the failing length and, where that makes sense, the same
number at the longest training length; the sentence names those that changed. The task itself describes the errors in
the answers.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from headway.compare.curves import FAILS, CurvePoint, decide, follow
from headway.lengths.probes import ProbeResult, write_answers
from headway.models import Model, Trace
from headway.tasks import Problems, Task
from headway.tasks.problems import Neighbours

SAME = 1e-12  # logits that differ by no more count as equal, in float64
MAP_CELLS, MOST_TOKENS = 60_000_000, 2_000_000  # attention-map cells and tokens in memory at a time
ROWS, WRITTEN = 64, 512  # problems for attention maps, and for answers
FELL = 0.5  # a number below this share of its value in range counts as changed


@dataclass(frozen=True)
class Diagnosis:
    probe: str
    length: int
    sentence: str
    causes: tuple[str, ...]
    evidence: dict[str, Any]
    examples: tuple[str, ...]

    @staticmethod
    def from_json(raw: dict[str, Any]) -> Diagnosis:
        return Diagnosis(**{**raw, "causes": tuple(raw["causes"]), "examples": tuple(raw["examples"])})


def diagnose(
    model: Model, task: Task, measured: Sequence[ProbeResult], device: torch.device, examples: int = WRITTEN
) -> list[Diagnosis]:
    """Diagnoses, for each probe, the first length that fails; if none does, the first past its reach with errors."""
    results = {(each.probe, each.length): each for each in measured}
    failing = first_failures([each.point for each in measured])
    return [_diagnose_at(model, task, results[each.probe, each.length], device, examples) for each in failing]


def first_failures(points: Sequence[CurvePoint]) -> list[CurvePoint]:
    """Returns, for each probe, the first point that fails; if none does, the first past its reach with errors."""
    tests, first = max(1, len(points)), dict[str, CurvePoint]()
    reached = {each.probe: follow(points, each.probe, tests).reach for each in points}
    rising = sorted((each for each in points if each.examples), key=lambda each: each.length)
    failing = [each for each in rising if decide(each.examples, each.errors, tests) == FAILS]
    for each in [*failing, *rising]:
        if each.length > reached[each.probe] and each.errors:  # without errors, the problems are merely too few
            first.setdefault(each.probe, each)
    return [first[probe] for probe in reached if probe in first]


def diagnose_divergence(measured: Sequence[ProbeResult]) -> Diagnosis:
    """Returns the diagnosis of a run whose weights are not finite: there is nothing to measure."""
    first = measured[0]
    words = f"At length {first.length:,} (probe {first.probe}): training diverged, the loss is not finite."
    return Diagnosis(first.probe, first.length, words, ("diverged",), {}, ())


@torch.inference_mode()
def _diagnose_at(model: Model, task: Task, failing: ProbeResult, device: torch.device, examples: int) -> Diagnosis:
    """Measures what has changed at a length at which a model fails."""
    trained, length = task.lengths[1], failing.length
    source, answer = task.source_tokens(length), task.answer_tokens(length)
    positions, count = model.ranges(source, answer)[0]
    unseen = positions.unseen(count)
    evidence: dict[str, Any] = {"accuracy": failing.accuracy, "unseen": None if unseen is None else asdict(unseen)}
    if task.classes is not None:
        pooling, rate = model.config.pooling, failing.positive_rate
        evidence |= {"pooling": pooling, "positive_rate": rate, "constant": failing.constant}
    if isinstance(task.local, Neighbours):
        evidence |= _measure_blindness(model, task, device)
        head, in_range = _measure_attention(model, task, trained, device)
        evidence |= {"attention_in_range": in_range}
        evidence |= {"attention": _measure_attention(model, task, length, device, head)[1]}
    if (twins := task.twin_probe) is not None:
        evidence |= {"twin_gap_in_range": _measure_twin_gap(model, task, twins, trained, device)}
        evidence |= {"twin_gap": _measure_twin_gap(model, task, twins, length, device)}
    rows = max(1, min(examples, MOST_TOKENS // (source + answer)))
    problems = task.independent(5, rows, probe=failing.probe, length=length, device=device)
    errors = task.describe_errors(problems, write_answers(model, problems))
    symptoms: list[tuple[str | None, str]] = [*find_symptoms(task, evidence, failing), *errors.symptoms]
    causes = tuple(cause for cause, _ in symptoms if cause is not None)
    if errors.summary is not None and not causes:
        nothing = f"none of the measured causes stands out ({errors.summary})"
        symptoms.append((None, nothing if length > trained else f"in range: {errors.summary}"))
    where = f"{length:,} {task.counted}" if task.counted else f"length {length:,}"
    opening = f"At {where} (probe {failing.probe}) accuracy is {failing.accuracy:.3f} (n = {failing.examples:,})"
    sentence = opening + (": " if symptoms else "") + "; ".join(words for _, words in symptoms)
    return Diagnosis(failing.probe, length, f"{sentence}.", causes, evidence | errors.evidence, errors.examples)


def find_symptoms(task: Task, evidence: dict[str, Any], failing: ProbeResult) -> Iterator[tuple[str, str]]:
    """Yields each cause that the measurements show, with the words for it."""
    trained, unseen = task.lengths[1], evidence["unseen"]
    permuted, backwards = evidence.get("permuted"), evidence.get("reversed")
    if permuted is not None and permuted <= SAME:
        yield "blind to order", f"no logit changes by more than {permuted:.0e} when a sequence is permuted"
    elif backwards is not None and backwards <= SAME:
        yield "blind to direction", f"no logit changes by more than {backwards:.0e} when a sequence is reversed"
    if failing.constant:
        yield "constant answer", f"every answer is '{task.class_names[int(failing.positive_rate or 0)]}'"
    if failing.length <= trained:
        return
    if unseen is not None:
        yield "unseen positions", f"{unseen['count']} of {unseen['of']} {unseen['what']}"
    if "attention" in evidence:
        before, now = (evidence[when]["neighbour"] for when in ("attention_in_range", "attention"))
        if before > 2 / trained and now < FELL * before:  # more than uniform attention gives it
            head = f"the head that attends most to a neighbour ({evidence['attention']['head']})"
            yield "dispersion", f"{head} gives it {now:.3f} of its attention, down from {before:.3f} at {trained}"
    if task.twin_probe is not None and evidence["twin_gap"] < FELL * evidence["twin_gap_in_range"]:
        twin, before, now = task.twin_probe.replace("-", " "), evidence["twin_gap_in_range"], evidence["twin_gap"]
        cause = "dilution" if evidence["pooling"] == "mean" else f"deaf to {twin}"
        yield cause, f"{twin} changes the logit difference by {now:.2f}, down from {before:.2f} at {trained}"


def _measure_blindness(model: Model, task: Task, device: torch.device) -> dict[str, float | None]:
    """Measures the largest change of a logit, in float64, when the sequence is permuted or reversed; None if the
    index is drawn from the sequence, and so would change as well."""
    if model.config.index != "sequential":
        return {"permuted": None, "reversed": None}
    source = task.independent(2, ROWS, device=device).source  # blind at the training length is blind everywhere
    order = torch.randperm(source.shape[1], generator=torch.Generator().manual_seed(0)).to(device)
    exact = copy.deepcopy(model).double()
    plain, permuted, backwards = (exact(each, None) for each in (source, source[:, order], source.flip(1)))
    return {"permuted": float((permuted - plain).abs().max()), "reversed": float((backwards - plain).abs().max())}


def _measure_attention(
    model: Model, task: Task, length: int, device: torch.device, head: tuple[int, ...] | None = None
) -> tuple[tuple[int, ...], dict[str, str | float]]:
    """Measures one head's attention to a neighbour: the given (site, number, direction), or the head with the most.
    `neighbour` is the mean weight that it gives to that neighbour; `entropy` is the mean over all heads, as a share of
    the entropy of uniform attention."""
    rows = max(1, min(ROWS, MAP_CELLS // (model.config.layers * model.config.heads * length**2)))
    trace, problems = Trace(), task.independent(3, rows, length=length, device=device)
    model(problems.source, problems.answer, trace=trace)
    return weigh_neighbours({str(site): each.float() for site, each in trace.maps.items()}, head)


def weigh_neighbours(
    named: Mapping[str, Tensor], head: tuple[int, ...] | None = None
) -> tuple[tuple[int, ...], dict[str, str | float]]:
    """Measures in these maps, by site, how much attention one head gives to a neighbour, as `_measure_attention`."""
    maps = list(named.values())
    sides = [[each.diagonal(side, 2, 3).mean((0, 2)) for side in (-1, 1)] for each in maps]
    weight = torch.stack([torch.stack(both, dim=1) for both in sides])  # site head direction
    spread = torch.stack([-(each * each.clamp(min=1e-30).log()).sum(-1).mean() for each in maps]).mean()
    entropy = float(spread / torch.tensor(float(max(maps[0].shape[-1], 2))).log())
    head = head or tuple(map(int, torch.unravel_index(weight.argmax(), weight.shape)))
    name = f"{list(named)[head[0]]}.{head[1]}"
    return head, {"head": name, "neighbour": float(weight[head]), "entropy": entropy}


def _measure_twin_gap(model: Model, task: Task, probe: str, length: int, device: torch.device) -> float:
    def logits(problems: Problems) -> Tensor:
        some = max(2, 2_000_000 // length**2)
        pieces = [problems[start : start + some] for start in range(0, len(problems), some)]
        return torch.cat([model(piece.source, piece.answer) for piece in pieces])

    return measure_twin_gap(logits, task, probe, length, device)


def measure_twin_gap(
    logits_of: Callable[[Problems], Tensor], task: Task, probe: str, length: int, device: torch.device
) -> float:
    """Measures how much one change moves the output: the median change of the logit difference within a pair."""
    logits = logits_of(task.testing(4, 2 * ROWS, probe=probe, length=length, device=device))[:, 0]
    gap = (logits[:, 1] - logits[:, 0]).view(-1, 2)
    return float((gap[:, 0] - gap[:, 1]).abs().median())
