"""The diagnosis of a user's model where it fails: what can be measured without knowing how the model is built.

Whether it sees order at all (permuting the source), whether its answers are constant, whether rows of a position table
are used that its training lengths never use (by gradients), and whether its most focused head still focuses. Where the
problems are a task's, the task describes the errors and diagnosis.py measures what it knows of them. What cannot be
looked into is left out.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from headway.attach.watching import watch_maps
from headway.attach.whole import ReaderRunner
from headway.errors import HeadwayError
from headway.evaluation.verdicts import largest
from headway.lengths.diagnosis import (
    FELL,
    MAP_CELLS,
    ROWS,
    SAME,
    WRITTEN,
    Diagnosis,
    find_symptoms,
    measure_twin_gap,
    weigh_neighbours,
)
from headway.lengths.drawn import DEFAULT, DrawnProblems
from headway.lengths.points import SubjectPoint
from headway.models import Trace
from headway.subjects.subject import Subject
from headway.subjects.tables import find_used_rows
from headway.tasks import Problems
from headway.tasks.problems import Errors, Neighbours

ROUNDED = 1e-5  # logits that differ by no more, as a share of the largest, count as equal in float32
ALONE = 4  # problems whose rows of a table are found one by one: all of them use the same positions
LOOKED_AT, LARGEST_TABLE = 3, 200_000  # seed of the problems looked at, and the most rows of a table
Measured = str | int | float | bool | None
Evidence = dict[str, Measured | Mapping[str, Measured]]


@dataclass(frozen=True)
class SubjectView:
    """A user's model as the diagnosis sees it."""

    subject: Subject  # prepared
    runner: ReaderRunner
    drawn: DrawnProblems
    trained: Sequence[int]  # training lengths that were tested

    def logits(self, problems: Problems) -> Tensor:
        with torch.no_grad():
            return torch.cat(self.runner.map_pieces(lambda rows: self.runner.run(problems[rows]), problems))

    def measure_blindness(self, length: int) -> tuple[float, float, float]:
        """Measures the largest change of a logit when the source is permuted or reversed, and the largest change that
        counts as none; in float64 if the model runs in it."""
        some = self.drawn.draw(DEFAULT, length, ROWS, LOOKED_AT)
        order = torch.randperm(some.source.shape[1], generator=torch.Generator().manual_seed(0))
        run = self.runner
        try:
            exact = ReaderRunner(copy.deepcopy(self.subject.model).double(), self.runner.reader)
            with torch.no_grad():
                run = exact if exact.run(some[:1]).dtype == torch.float64 else run
        except Exception:  # a user's model may raise anything
            run = self.runner

        def change(source: Tensor) -> float:
            with torch.no_grad():
                return largest(run.run(Problems(source, some.answer)) - plain)

        with torch.no_grad():
            plain = run.run(some)
        same = SAME if plain.dtype == torch.float64 else ROUNDED
        permuted, backwards = some.source[:, order.to(some.source.device)], some.source.flip(1)
        return change(permuted), change(backwards), same * max(1.0, float(plain.abs().max()))

    def maps(self, probe: str, length: int) -> dict[str, Tensor]:
        """Returns the attention maps of a few problems, by site; none where they cannot be read."""
        runner = self.subject.runner
        heads = sum(runner.width.values()) or 8
        some = self.drawn.draw(probe, length, max(1, min(ROWS, MAP_CELLS // (heads * length**2))), LOOKED_AT)
        try:
            if runner.is_attached:
                trace = Trace()
                with torch.no_grad():
                    runner.run(some, trace=trace)
                if trace.maps:
                    return {str(site): each.float() for site, each in trace.maps.items()}
            watched = watch_maps(lambda: self.runner.run(some), some.source.shape[1])
        except Exception:  # a user's model may raise anything while it is watched
            return {}
        return {f"attention {number}": each for number, each in enumerate(watched, 1)}

    @cached_property
    def tables(self) -> Mapping[str, Tensor]:
        """The tables that may hold positions, by name: those given, or the embeddings and bare parameters that have a
        row for each place of the longest training length."""
        if self.subject.tables:
            return {f"table {number}": each for number, each in enumerate(self.subject.tables, 1)}
        most, found = self.drawn.tokens[max(self.trained)][0], dict[str, Tensor]()
        for path, module in self.subject.model.named_modules():
            for name, each in module.named_parameters(prefix=path, recurse=False):
                bare = type(module).__module__.partition(".")[0] != "torch"
                rows = each.shape[1] if each.ndim == 3 and len(each) == 1 else len(each) if each.ndim == 2 else 0
                if (bare or isinstance(module, nn.Embedding)) and most <= rows <= LARGEST_TABLE:
                    found[name] = each
        return found

    @cached_property
    def used_in_range(self) -> list[set[int]]:
        sets = [self.drawn.draw(DEFAULT, length, ROWS, LOOKED_AT) for length in self.trained]
        return find_used_rows(self.runner.run, list(self.tables.values()), sets, self.subject.name)

    def find_untrained(self, length: int) -> dict[str, str | int] | None:
        """Finds the rows of a table that every problem of a length uses and no training length does."""
        tables = list(self.tables.values())
        if not tables:
            return None
        some = self.drawn.draw(DEFAULT, length, ALONE, LOOKED_AT)
        try:
            before = self.used_in_range
            each = [find_used_rows(self.runner.run, tables, [some[n : n + 1]], "") for n in range(ALONE)]
        except Exception:  # it answers without gradients, or writes in place
            return None
        for place, name in enumerate(self.tables):
            untrained = set.intersection(*(rows[place] for rows in each)) - before[place]
            if untrained and before[place]:
                of = f"rows of {name} that it uses were never used at the training lengths"
                used = len(set.union(*(rows[place] for rows in each)))
                return {"table": name, "count": len(untrained), "of": used, "what": of}
        return None


def diagnose_subject(view: SubjectView, failing: SubjectPoint, learned: bool) -> Diagnosis:
    """Measures what has changed at a length at which a user's model fails; `learned` says whether it holds in range."""
    evidence: Evidence = {"accuracy": failing.accuracy, "unseen": None}
    symptoms = [*_measure_symptoms(view, failing, learned, evidence)]
    errors, described = _describe_by_task(view, failing, evidence)
    symptoms += [each for each in described if each[0] is None or each[0] not in {cause for cause, _ in symptoms}]
    causes = tuple(dict.fromkeys(cause for cause, _ in symptoms if cause is not None))
    if not causes:
        summary = f" ({errors.summary})" if errors.summary else ""
        in_range = failing.length <= max(view.trained)
        nothing = f"in range{summary}" if in_range and summary else f"none of the measured causes stands out{summary}"
        symptoms.append((None, nothing))
    opening = f"At length {failing.length:,} (probe {failing.probe}) accuracy is {failing.accuracy or 0:.3f}"
    words = "; ".join(dict.fromkeys(words for _, words in symptoms))
    sentence = f"{opening} (n = {failing.examples:,}): {words}."
    return Diagnosis(failing.probe, failing.length, sentence, causes, evidence | errors.evidence, errors.examples)


def _measure_symptoms(
    view: SubjectView, failing: SubjectPoint, learned: bool, evidence: Evidence
) -> Iterator[tuple[str | None, str]]:
    """Yields each cause that the measurements show, with the words for it; fills in the evidence."""
    trained = max(view.trained)
    if not learned or failing.length <= trained:
        permuted, backwards, same = view.measure_blindness(trained)
        evidence |= {"permuted": permuted, "reversed": backwards}
        if permuted <= same:
            yield "blind to order", f"no logit changes by more than {permuted:.0e} when a sequence is permuted"
        elif backwards <= same:
            yield "blind to direction", f"no logit changes by more than {backwards:.0e} when a sequence is reversed"
    if failing.not_numbers:
        share = failing.not_numbers / failing.examples
        yield "not a number", f"the logits of {share:.1%} of the problems are not numbers (NaN)"
    if failing.shares is not None and (constancy := failing.shares.constancy) != "no":
        name = "constant answer" if constancy == "constant" else "nearly constant answer"
        evidence |= {"constancy": constancy}
        yield name, failing.shares.describe()
    if failing.length <= trained:
        return
    evidence["unseen"] = unseen = view.find_untrained(failing.length)
    if unseen is not None:
        yield "unseen positions", f"{unseen['count']} of {unseen['of']} {unseen['what']}"
    yield from _measure_focus(view, failing, evidence)


def _measure_focus(view: SubjectView, failing: SubjectPoint, evidence: Evidence) -> Iterator[tuple[str, str]]:
    """Yields dispersion where the head that is most focused at the training length no longer is."""
    trained = max(view.trained)
    before, now = view.maps(failing.probe, trained), view.maps(failing.probe, failing.length)
    if not before or list(before) != list(now):
        return
    peaks = [
        {f"{site}.{head}": float(each) for site, maps in named.items() for head, each in enumerate(_peak(maps))}
        for named in (before, now)
    ]
    if peaks[0].keys() != peaks[1].keys():
        return
    name = max(peaks[0], key=peaks[0].__getitem__)
    focus, left = peaks[0][name], peaks[1][name]
    evidence |= {"focused_head": name, "focus_in_range": focus, "focus": left}
    evidence |= {"entropy_in_range": _entropy(before), "entropy": _entropy(now)}
    if focus > 2 / trained and left < FELL * focus:  # more than uniform attention gives it
        words = f"its most focused head ({name}) gives one token {left:.3f} of its attention on average"
        yield "dispersion", f"{words}, down from {focus:.3f} at {trained}"


def _peak(maps: Tensor) -> Tensor:
    """Returns, for each head, the largest weight of a query, averaged over queries and problems."""
    return maps.amax(-1).mean((0, 2))


def _entropy(named: Mapping[str, Tensor]) -> float:
    """Returns the mean entropy of all heads, as a share of that of uniform attention."""
    each = [
        -(m * m.clamp(min=1e-30).log()).sum(-1).mean() / torch.tensor(float(m.shape[-1])).log() for m in named.values()
    ]
    return float(torch.stack(each).mean())


def _describe_by_task(
    view: SubjectView, failing: SubjectPoint, evidence: Evidence
) -> tuple[Errors, list[tuple[str | None, str]]]:
    """Returns a task's description of the errors, and the symptoms that it knows how to measure."""
    task = view.drawn.task
    if task is None or failing.probe in view.subject.probes:
        return Errors({}), []
    device, trained = view.subject.device, max(view.trained)
    found: list[tuple[str | None, str]] = []
    known: Evidence = {"unseen": None, "pooling": None, **evidence}
    if isinstance(task.local, Neighbours) and failing.length > trained:
        maps = view.maps(failing.probe, trained), view.maps(failing.probe, failing.length)
        if all(maps) and list(maps[0]) == list(maps[1]) and all(m.shape[-1] == m.shape[-2] for m in maps[0].values()):
            head, known["attention_in_range"] = weigh_neighbours(maps[0])
            known["attention"] = weigh_neighbours(maps[1], head)[1]
    if (twins := task.twin_probe) is not None:
        for name, length in (("twin_gap_in_range", trained), ("twin_gap", failing.length)):
            known[name] = measure_twin_gap(view.logits, task, twins, length, device)
        found += find_symptoms(task, known, failing.as_result())
    evidence |= {key: value for key, value in known.items() if key not in ("unseen", "pooling")}
    rows = min(WRITTEN, view.drawn.rows_at(failing.length))
    problems = task.independent(5, rows, probe=failing.probe, length=failing.length, device=device)
    errors = task.describe_errors(problems, view.logits(problems).argmax(-1))
    return errors, [*found, *errors.symptoms]


def describe_unrunnable(point: SubjectPoint) -> Diagnosis:
    """Returns the diagnosis of a length at which a model cannot run."""
    words = f"At length {point.length:,} (probe {point.probe}) it cannot run: {point.cannot_run}."
    return Diagnosis(point.probe, point.length, words, ("cannot run",), {}, ())


def check_reading(view: SubjectView, length: int) -> str | None:
    """Says so where a model sees the answer that it should give: replacing an answer's tokens must not move the logits
    of the tokens up to the first that was replaced."""
    some = view.drawn.draw(DEFAULT, length, ROWS, LOOKED_AT)
    others = some.answer.roll(1, 0)
    with torch.no_grad():
        plain = view.runner.run(some)
        for place in sorted({0, some.answer.shape[1] // 2, some.answer.shape[1] - 1}):
            answer = torch.cat((some.answer[:, :place], others[:, place:]), dim=1)
            try:
                logits = view.runner.run(Problems(some.source, answer, some.scored))
            except HeadwayError:
                return None
            moved = largest((logits - plain)[:, : place + 1])
            if moved > 1e-4 * max(1.0, float(plain.abs().max())):
                return (
                    f"it sees the answer that it should give: replacing the answer's tokens from place {place + 1} on "
                    f"moves the logits up to there by up to {moved:.2g}"
                )
    return None
