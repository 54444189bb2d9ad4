"""The length study of a causal language model: recall at every length, untouched and under each cure, the loss on the
user's text, and what stops it.

Everything is asked of the model as it is; a cure changes it for one pass and is undone to the bit. Cells that were
measured before a study was killed are read from its record.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from headway.attach.cures import Setting, config_lines
from headway.attach.order import find_order
from headway.flags import parse_memory, parse_numbers
from headway.lengths.language.answer import LanguageLengths
from headway.lengths.language.causes import LanguageCause, Suspects
from headway.lengths.language.cells import RecallCell, corrected, gain
from headway.lengths.language.choice import CureRow
from headway.lengths.language.corpus import Material, prepare_material
from headway.lengths.language.effective import NONE, SHARE, find_effective, has_learned, share_interval
from headway.lengths.language.evidence import describe_positions
from headway.lengths.language.losses import LossCurve, longest_window, measure_losses
from headway.lengths.language.plan import TIMES, LanguagePlan, find_trained, make_plan
from headway.lengths.language.reading import LanguageReader
from headway.lengths.language.recall import RecallPrompts, draw_recall
from headway.lengths.language.sight import look_for_facts
from headway.lengths.question import LengthsQuestion
from headway.progress import Progress


@dataclass
class LanguageWork:
    """The steps of one study, with the cells that they share."""

    reader: LanguageReader
    material: Material
    plan: LanguagePlan
    progress: Progress
    cells: dict[tuple[str, int, str, int], RecallCell] = field(default_factory=dict)
    """by task, length, cure and the length that the cure is set for"""
    prompts: dict[tuple[str, int], RecallPrompts] = field(default_factory=dict)

    def ask(self, task: str, length: int, cure: str, target: int | None = None) -> RecallCell:
        """Asks the questions of a task at a length, under a cure that is set for `target` tokens; once."""
        target = (length if target is None else target) if cure != NONE else length
        key = (task, length, cure, target)
        if key not in self.cells:
            setting = Setting(self.plan.trained, target)
            self.cells[key] = self.reader.answer(self._prompts(task, length), cure, setting)
            self.progress(len(self.cells), max(len(self.cells), self.expected), f"{task} at {length:,}, {cure}")
        return self.cells[key]

    @property
    def expected(self) -> int:
        """The number of cells without those that look for causes."""
        cured = 2 * len(self.plan.beyond) * (len(self.plan.cures) - 1)
        return len(self.plan.tasks) * (len(self.plan.lengths) + cured)

    def _prompts(self, task: str, length: int) -> RecallPrompts:
        if (task, length) not in self.prompts:
            plan = self.plan
            own = next(each for each in plan.tasks if each.name == task)
            layout = replace(plan.layouts[task], length=length)
            each = layout.facts * (1 if own.in_words else layout.width - 1)  # answers of a prompt at each depth
            rows = max(4, math.ceil(plan.answers / each))
            self.prompts[task, length] = draw_recall(own, layout, self.material, rows, plan.seed)
        return self.prompts[task, length]

    def measure(self) -> None:
        """Measures every task at every length untouched, then under each cure, in range and beyond."""
        for task in self.plan.tasks:
            for length in self.plan.lengths:
                self.ask(task.name, length, NONE)
            if not self.plan.insists and not self.learned(task.name):
                continue
            for length in self.plan.beyond:
                for cure in self.plan.cures[1:]:
                    self.ask(task.name, length, cure)
                    self.ask(task.name, self.plan.trained, cure, length)

    def learned(self, task: str) -> bool:
        return has_learned(self.ask(task, self.plan.lengths[0], NONE))

    def failing(self, task: str) -> list[int]:
        """Returns the lengths past training at which the untouched model is shown to keep too little."""
        reference = self.ask(task, self.plan.lengths[0], NONE)
        found = []
        for length in self.plan.beyond:
            bounds = share_interval(self.ask(task, length, NONE), reference, self.plan.tests)
            if bounds is None or bounds.high < SHARE:
                found.append(length)
        return found

    def find_causes(self) -> list[LanguageCause]:
        """Finds what stops each task that was learned."""
        found, plan = [], self.plan
        for name in (task.name for task in plan.tasks):
            if not self.learned(name):
                cell = self.ask(name, plan.lengths[0], NONE)
                why = "nearly every answer is the same token" if cell.constant else ""
                found.append(
                    LanguageCause(
                        "not learned", name, cell.length, None, cell.accuracy, None, established=True, evidence=why
                    )
                )
                continue
            if not (failing := self.failing(name)):
                continue
            tests = 3 * len(plan.tasks) * len(plan.beyond) * max(1, len(plan.cures) - 1)
            evidence = partial(describe_positions, self.reader.model, self.reader.order, plan.trained)
            hidden = self._find_hidden(name, failing)
            own = Suspects(self.reader.order, name, failing, plan.trained, self.ask, tests, evidence).find(plan.cures)
            found += hidden + own
            if not any(each.established for each in hidden + own):
                cell = self.ask(name, failing[0], NONE)
                found.append(LanguageCause("unknown", name, failing[0], None, cell.accuracy, None))
        return found

    def _find_hidden(self, task: str, failing: Sequence[int]) -> list[LanguageCause]:
        """Proves for a model whose layers all have windows which facts it cannot see."""
        if self.reader.order.window is None:
            return []
        for length in failing:
            prompts, setting = self._prompts(task, length), Setting(self.plan.trained, length)
            seen = look_for_facts(self.reader, self.material, prompts, self.plan.depths, setting)
            blind = [each for each in seen if each.change == 0.0]
            if blind:
                nearest = min(each.nearest for each in blind)
                words = (
                    f"changing the facts at {len(blind)} of {len(seen)} depths, {nearest:,} tokens and more before "
                    "their questions, changes no logit by a single bit"
                )
                cell = self.ask(task, length, NONE)
                return [
                    LanguageCause(
                        "cannot see", task, length, None, cell.accuracy, None, established=True, evidence=words
                    )
                ]
        return []


def study_language(
    model: Any, tokenizer: Any, question: LengthsQuestion, asked: str, partial_file: Path | None = None
) -> LanguageLengths:
    """Finds how far a causal language model works, what stops it and which cure helps."""
    began, order = time.monotonic(), find_order(model)
    material = prepare_material(model, tokenizer, question.text)
    reader = LanguageReader(model, order, parse_memory(question.memory), partial_file)
    claimed, source = find_trained(order, question)
    most = question.to or max((*parse_numbers("lengths", question.lengths), TIMES * claimed))
    make_plan(question, order, material, claimed, source)  # rejects a wrong request before anything is measured
    with Progress(f"{type(model).__name__}: loss by position", question.quiet) as watch:
        losses = _measure_losses(reader, material, most, watch)
    if source == "config" and losses is not None and (rise := losses.rises_at) is not None and rise < claimed:
        claimed, source = rise, "loss"
    plan = make_plan(question, order, material, claimed, source)
    with Progress(f"{type(model).__name__}: recall", question.quiet) as watch:
        work = LanguageWork(reader, material, plan, watch)
        work.measure()
        causes = work.find_causes()
    effective = [
        find_effective(_cells_at_target(work), task.name, cure, plan.lengths, plan.tests)
        for task in plan.tasks
        for cure in plan.cures
        if cure == NONE or plan.insists or work.learned(task.name)
    ]
    reader.forget()
    return LanguageLengths(
        name=Path(asked).name or type(model).__name__,
        asked=asked,
        family=type(model).__name__,
        parameters=sum(each.numel() for each in model.parameters()),
        order=order,
        trained=plan.trained,
        trained_from=plan.trained_from,
        lengths=plan.lengths,
        depths=plan.depths,
        tasks=tuple(task.name for task in plan.tasks),
        seed=plan.seed,
        tests=plan.tests,
        cells=_cells_at_target(work),
        effective=tuple(effective),
        cures=tuple(_cure_rows(work)),
        causes=tuple(causes),
        losses=losses,
        text=None if question.text is None else str(question.text),
        seconds=round(time.monotonic() - began, 1),
    )


def _measure_losses(reader: LanguageReader, material: Material, most: int, watch: Progress) -> LossCurve | None:
    """Measures the loss by position on the user's text, where that is long enough."""
    limit = reader.order.longest
    window = longest_window(material, most if limit is None else min(most, limit))
    return None if window is None else measure_losses(reader, material, window, watch)


def _cells_at_target(work: LanguageWork) -> dict[tuple[str, int, str], RecallCell]:
    """Returns the cells of the table: at each length under the cure that is set for it."""
    return {
        (task, length, cure): cell
        for (task, length, cure, target), cell in work.cells.items()
        if target == length and (cure == NONE or length > work.plan.trained) and cure in work.plan.cures
    }


def _cure_rows(work: LanguageWork) -> list[CureRow]:
    """Puts the cures side by side: what each brings at a length, and what it costs in range."""
    rows, plan = [], work.plan
    for task in (task.name for task in plan.tasks):
        for length in plan.beyond:
            for cure in plan.cures:
                cell = work.cells.get((task, length, cure, length))
                if cell is None:
                    continue
                whole = work.ask(task, length, NONE)
                inside, untouched = work.ask(task, plan.trained, cure, length), work.ask(task, plan.trained, NONE)
                level = corrected(plan.tests)
                lines = config_lines(work.reader.model, work.reader.order, cure, Setting(plan.trained, length))
                rows.append(
                    CureRow(
                        cell,
                        None if cure == NONE else gain(replace(whole, cannot_run=None), cell, level),
                        inside.accuracy,
                        None if cure == NONE else gain(untouched, inside, level),
                        lines,
                    )
                )
    return rows
