"""The answer of a length study of a language model: what was measured, how far it works, what stops it, which cure
helps, and the findings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from headway.attach.order import TokenOrder
from headway.lengths.language.causes import LanguageCause
from headway.lengths.language.cells import RecallCell, corrected
from headway.lengths.language.choice import CureChoice, CureRow, choose_cures
from headway.lengths.language.effective import NONE, SHARE, EffectiveLength, share_interval
from headway.lengths.language.losses import LossCurve
from headway.output import Output, as_csv, as_html

SCHEMA = "headway.lengths-of-language/1"
KNOWN_FROM = {"given": "as given", "config": "by its config", "loss": "where its loss begins to rise"}
Json = str | int | float | bool | Sequence["Json"] | Mapping[str, "Json"] | None
JsonRow = dict[str, Json]


@dataclass(frozen=True, kw_only=True)
class LanguageLengths:
    """How far a causal language model works."""

    name: str
    asked: str
    family: str
    parameters: int
    order: TokenOrder
    trained: int
    trained_from: str
    lengths: tuple[int, ...]
    depths: int
    tasks: tuple[str, ...]
    seed: int
    tests: int
    """cells that are decided together"""
    cells: Mapping[tuple[str, int, str], RecallCell]
    effective: tuple[EffectiveLength, ...]
    cures: tuple[CureRow, ...]
    causes: tuple[LanguageCause, ...]
    losses: LossCurve | None
    text: str | None
    """the name of the text, if one was given"""
    seconds: float

    @cached_property
    def choices(self) -> list[CureChoice]:
        return choose_cures(self.cures, [each.task for each in self.untouched if each.learned])

    @property
    def untouched(self) -> list[EffectiveLength]:
        return [each for each in self.effective if each.cure == NONE]

    @property
    def places(self) -> list[float]:
        """The depths of facts: 0 is the beginning of the context, 1 its end."""
        return [n / (self.depths - 1) if self.depths > 1 else 0.5 for n in range(self.depths)]

    def findings(self) -> list[str]:
        """Returns how far it recalls, what stops it, which cure helps, and where its loss rises."""
        found = [self._describe_task(each) for each in self.untouched]
        found += [words for task in self.tasks if (words := self._describe_causes(task))]
        found += [each.sentence for each in self.choices]
        if self.losses is not None:
            found.append(self._describe_losses(self.losses))
        elif self.text is not None:
            found.append("The text is too short to measure the loss by position.")
        return found

    def _describe_task(self, reach: EffectiveLength) -> str:
        first = self.cells[reach.task, self.lengths[0], NONE]
        trained = f"trained on {self.trained:,} tokens, {KNOWN_FROM[self.trained_from]}"
        if not reach.learned:
            why = f"; {first.given:.0%} of its answers are token {first.commonest}" if first.constant else ""
            return (
                f"{self.name}, {reach.task}: not learned (accuracy {first.accuracy or 0.0:.3f} at {first.length:,} "
                f"tokens, n = {first.answers:,}, chance {first.chance:.3f}{why}), so it has no effective length."
            )
        opening = f"{self.name} ({trained}), {reach.task}: effective length {reach.length or 0:,}"
        later = [self.cells[reach.task, n, NONE] for n in self.lengths if n > (reach.length or 0)]
        if not later:
            return f"{opening}, the longest length tested (accuracy {self._accuracy(reach)})."
        first, next_one = self.cells[reach.task, self.lengths[0], NONE], later[0]
        bounds = share_interval(next_one, first, self.tests)
        short = "" if bounds is None or bounds.high < SHARE else ", too few answers or too little lost to decide"
        return f"{opening}; at {next_one.length:,} tokens {_describe_cell(next_one)}{short}."

    def _accuracy(self, reach: EffectiveLength) -> str:
        return f"{self.cells[reach.task, reach.length or self.lengths[0], NONE].accuracy or 0.0:.3f}"

    def _describe_causes(self, task: str) -> str:
        own = [each for each in self.causes if each.task == task and each.cause != "not learned"]
        said = [_describe_cause(each) for each in own if each.established]
        if not said and own:
            tried = ", ".join(each.cure for each in own if each.cure)
            said = [f"what stops it is unknown: no cure brings back more than its sham ({tried or 'none applies'})"]
        return f"What stops {task}: {'; '.join(said)}." if said else ""

    def _describe_losses(self, losses: LossCurve) -> str:
        about = f"in {losses.windows} passages of {losses.length:,} tokens"
        if (place := losses.rises_at) is None:
            return f"The loss on the text does not rise with the position ({about})."
        band = next(band for band in losses.bands if band.first == place)
        last = losses.bands[-1]
        return (
            f"The loss on the text begins to rise at position {place:,} (by {band.rise:.3f} nats over the best octave "
            f"before it, at least {band.rise_at_least:.3f}; {about}); over the last positions it is {last.loss:.3f}."
        )

    def table(self) -> list[JsonRow]:
        """Returns the accuracy at each length, for each task and cure."""
        names = dict.fromkeys((task, cure) for task, _, cure in self.cells)
        return [
            {
                "entry": f"{task}, {cure}",
                "task": task,
                "cure": cure,
                "accuracy": {
                    str(n): self.cells[task, n, cure].accuracy for n in self.lengths if (task, n, cure) in self.cells
                },
            }
            for task, cure in sorted(names, key=lambda each: self.tasks.index(each[0]))
        ]

    def rows(self) -> list[JsonRow]:
        """Returns every cell, with its depths."""
        level = corrected(self.tests)
        found: list[JsonRow] = []
        for cell in self.cells.values():
            bounds, strict = cell.interval(), cell.interval(level)
            found.append(
                {
                    "task": cell.task,
                    "length": cell.length,
                    "cure": cell.cure,
                    "examples": cell.answers,
                    "prompts": len(cell.right),
                    "accuracy": cell.accuracy,
                    "interval": None if bounds is None else bounds.to_json(),
                    "corrected": None if strict is None else strict.to_json(),
                    "chance": cell.chance,
                    "constant": cell.constant,
                    "commonest_token": cell.commonest,
                    "commonest_share": cell.given,
                    "cannot_run": cell.cannot_run,
                    "by_depth": self._by_depth(cell),
                }
            )
        return found

    def _by_depth(self, cell: RecallCell) -> list[Json]:
        if cell.cannot_run is not None:
            return []
        found: list[Json] = []
        for number, place in enumerate(self.places):
            answers, accuracy, bounds = cell.at_depth(number)
            found.append({"depth": place, "examples": answers, "accuracy": accuracy, "interval": bounds.to_json()})
        return found

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "subject": self.name,
            "asked": self.asked,
            "family": self.family,
            "parameters": self.parameters,
            "positions": {"kind": self.order.kind, "claimed": self.order.claimed, "window": self.order.window},
            "trained": self.trained,
            "trained_from": self.trained_from,
            "lengths": list(self.lengths),
            "depths": list(self.places),
            "tasks": list(self.tasks),
            "seed": self.seed,
            "text": self.text,
            "share": SHARE,
            "level": {"tests": self.tests, "confidence": corrected(self.tests), "corrected_over": "every cell"},
            "rows": self.rows(),
            "table": self.table(),
            "effective": [each.to_json() for each in self.effective],
            "cures": [each.to_json() for each in self.cures],
            "choices": [each.to_json() for each in self.choices],
            "causes": [each.to_json() for each in self.causes],
            "loss": None if self.losses is None else self.losses.to_json(),
            "findings": self.findings(),
            "withheld": [],
            "seconds": self.seconds,
        }

    def to_csv(self) -> str:
        """Returns every cell as a line, and every depth of it."""
        lines: list[Sequence[Json]] = [
            ("task", "cure", "length", "depth", "n", "accuracy", "low", "high", "chance", "cannot_run")
        ]
        for cell in self.cells.values():
            bounds = cell.interval()
            about = (cell.task, cell.cure, cell.length)
            ends = (None, None) if bounds is None else (bounds.low, bounds.high)
            lines.append((*about, "all", cell.answers, cell.accuracy, *ends, cell.chance, cell.cannot_run))
            if bounds is not None:
                for number, place in enumerate(self.places):
                    n, accuracy, own = cell.at_depth(number)
                    lines.append((*about, f"{place:.2f}", n, accuracy, own.low, own.high, cell.chance, None))
        return as_csv(lines)

    def to_output(self) -> Output:
        """Returns what the command prints."""
        reach = [{"task": each.task, "cure": each.cure, "effective length": each.length} for each in self.effective]
        table = [{"task": row["task"], "cure": row["cure"], **row["accuracy"]} for row in self.table()]  # pyright: ignore[reportGeneralTypeIssues]
        more = [("Accuracy by length", table)]
        words = self.findings()
        for each in self.choices:
            if each.config:
                words += ["", f"To use {each.cure} at {each.length:,} tokens:", "", each.config]
        return Output(self.to_json(), f"Effective length of {self.name}", reach, more, words)

    def _repr_html_(self) -> str:
        """Shows the findings and the effective lengths in a notebook."""
        return as_html(self.findings(), [each.to_json() for each in self.effective])


def _describe_cell(cell: RecallCell) -> str:
    if cell.cannot_run is not None:
        return f"it cannot run ({cell.cannot_run})"
    bounds = cell.interval()
    assert bounds is not None
    flat = f"; {cell.given:.0%} of the answers are token {cell.commonest}" if cell.constant else ""
    return (
        f"accuracy is {cell.accuracy:.3f} (95% interval {bounds.low:.3f} to {bounds.high:.3f}, n = {cell.answers:,}, "
        f"chance {cell.chance:.3f}{flat})"
    )


def _describe_cause(each: LanguageCause) -> str:
    why = f" ({each.evidence})" if each.evidence else ""
    if each.cure is None:
        return f"{each.cause} at {each.length:,} tokens{why}"
    before = "where untouched it cannot run" if each.before is None else f"from {each.before:.2f}"
    sham = "" if each.sham_accuracy is None else f", its sham ({each.sham}) {each.sham_accuracy:.2f}"
    bounds = "" if each.gain is None else f", a gain of {each.gain.low:.2f} to {each.gain.high:.2f}"
    brought = f"at {each.length:,} tokens {each.cure} brings {each.after or 0.0:.2f} {before}"
    return f"{each.cause}{why}: {brought}{bounds}{sham}"
