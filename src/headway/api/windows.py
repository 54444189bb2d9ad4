"""`headway prune --windows` as a function: saves a model of transformers with its budget, and says what the windows
cost."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from headway.attach.from_transformers import load
from headway.attach.opening import SubjectLike, open_for_study
from headway.attach.whole import ReaderRunner
from headway.errors import HeadwayError
from headway.evaluation.verdicts import losses_of, right
from headway.flags import parse_memory, parse_numbers
from headway.heads.question import PruneQuestion
from headway.machine import choose_device
from headway.report.windows import windows_figure
from headway.subjects.naming import kind_of
from headway.subjects.own import Run
from headway.subjects.splits import Split, draw_split
from headway.subjects.subject import Subject
from headway.tasks import Problems
from headway.windows.budget import Budget
from headway.windows.exporting import check_export

if TYPE_CHECKING:
    from headway.lengths.language.narrow import LengthRow

EXAMPLES = 10_000
REPORT = "windows.json"


def save_windows(subject: SubjectLike, question: PruneQuestion) -> SavedWindows:
    """Writes a model with its budget of windows and says what it saves; with examples also what it costs in accuracy,
    on those that a study of heads does not select on."""
    for name in ("heads", "recover", "max_drop", "max_loss_increase"):
        if getattr(question, name):
            raise HeadwayError(f"with `windows` the budget says what is narrowed; leave out `{name}`")
    budget = question.windows if isinstance(question.windows, Budget) else Budget.read(str(question.windows))
    if isinstance(subject, Run) or (
        isinstance(subject, str | Path) and kind_of(subject, question.hub) in ("run", "runs")
    ):
        name = subject.config.name if isinstance(subject, Run) else subject
        raise HeadwayError(
            f"{name} is a model of Headway's own, not a causal language model of transformers; budgets of windows are "
            "saved only with these"
        )
    if isinstance(subject, str | Path) and question.file is None and kind_of(subject, question.hub) == "transformers":
        model, tokenizer = load(subject, question.hub)
        return _save(model.to(choose_device(question.device)).eval(), tokenizer, None, budget, question)
    with open_for_study(subject, question) as ready:
        return _save(ready.model, ready.tokenizer, ready, budget, question)


@dataclass(frozen=True)
class SavedWindows:
    """A model that was saved with its budget: what the windows save and what they cost."""

    run: str
    heads_before: int
    heads_after: int
    parameters_before: int
    parameters_after: int
    groups: int
    full_groups: int
    cache_share: float
    """at `length` tokens, of what the full cache of the model keeps there"""
    length: int
    exact_match_before: float | None
    """on fresh examples; None where none were given"""
    exact_match_after: float | None
    loss_increase: float | None
    examples: int | None
    by_length: tuple[LengthRow, ...]
    exported: str | None
    budget: Budget

    def to_json(self) -> Mapping[str, Any]:
        content = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        content |= {"budget": self.budget.to_json(), "by_length": [row.to_json() for row in self.by_length]}
        return {**content, "speedup": None, "findings": self.findings()}  # a bench measures speed, not a prune

    def findings(self) -> list[str]:
        narrow = ", ".join(f"{window:,}" for window in self.budget.ladder if window is not None)
        words = [
            f"{self.full_groups} of {self.groups} key-value groups see everything"
            + (f", the others {self.budget.sink} first tokens and the last {narrow}" if narrow else "")
            + f"; at {self.length:,} tokens the cache takes {self.cache_share:.1%} of the full one"
        ]
        if self.examples is not None:
            words.append(
                f"accuracy {self.exact_match_before:.3f} before, {self.exact_match_after:.3f} with the windows, loss "
                f"{self.loss_increase:+.4f} (n = {self.examples:,} examples)"
            )
        for row in self.by_length:
            kind = "loss" if row.what == "loss" else f"recall ({row.what})"
            words.append(
                f"{kind} at {row.length:,} tokens: {row.full:.3f}, with the windows {row.windows:.3f} (n = "
                f"{row.count:,}), with {row.cache_share:.1%} of the cache"
            )
        return words


def _save(model: Any, tokenizer: Any, subject: Subject | None, budget: Budget, question: PruneQuestion) -> SavedWindows:
    from headway.windows.saving import save_with_budget
    from headway.windows.switching import check_family, switch_of

    check_family(model)
    out, config = Path(question.out), model.config.get_text_config(decoder=True)
    with switch_of(model).make(budget) as cache:  # raises if the budget does not fit
        length = question.length or _longest(config)
        share = cache.predict_bytes(length) / cache.predict_bytes(length, full=True)
    check_export(budget, question.export)
    heads = config.num_attention_heads * config.num_hidden_layers
    parameters = sum(parameter.numel() for parameter in model.parameters())
    saved = SavedWindows(
        str(out),
        *(heads, heads, parameters, parameters),
        budget.groups,
        budget.full,
        share,
        length,
        *_judge(subject, budget, question.seed),
        by_length=_by_length(model, tokenizer, budget, question),
        exported=question.export,
        budget=budget,
    )
    save_with_budget(model, tokenizer, budget, out, saved.to_json())
    windows_figure(out / REPORT, out)
    return saved


def _longest(config: Any) -> int:
    longest = getattr(config, "max_position_embeddings", None)
    if not longest:
        raise HeadwayError("the model's config names no longest length; give the one to state the cache at as `length`")
    return longest


def _judge(
    subject: Subject | None, budget: Budget, seed: int
) -> tuple[float | None, float | None, float | None, int | None]:
    """Measures exact match on fresh examples before and after, and the rise of the loss; None without examples."""
    if subject is None:
        return None, None, None, None
    problems = draw_split(subject, Split.REPORT, EXAMPLES, seed)
    before, after = _measure(subject, problems, None), _measure(subject, problems, budget)
    return before[0], after[0], after[1] - before[1], len(problems)


@torch.no_grad()
def _measure(subject: Subject, problems: Problems, budget: Budget | None) -> tuple[float, float]:
    """Returns exact match and mean loss, of the model as it is or with windows."""
    from headway.windows.switching import narrowed

    runner, correct, lost = subject.runner, 0, 0.0
    if not isinstance(runner, ReaderRunner):
        raise HeadwayError(f"{subject.name} does not say how its model reads; give Subject(reader=…), or no examples")
    with nullcontext() if budget is None else narrowed(subject.model, budget):
        for batch in runner.batches(problems):
            logits = runner.reader(subject.model, batch.source, batch.answer)
            correct += int(right(logits, batch).sum())
            lost += float(losses_of(logits, batch).sum())
    return correct / len(problems), lost / len(problems)


def _by_length(model: Any, tokenizer: Any, budget: Budget, question: PruneQuestion) -> tuple[LengthRow, ...]:
    from headway.lengths.language.narrow import measure_lengths

    lengths = parse_numbers("lengths", question.lengths)
    if not lengths:
        return ()
    memory = parse_memory(question.memory)
    return tuple(measure_lengths(model, tokenizer, budget, lengths, question.text, memory, question.seed))
