"""`headway prune --windows` as a function: saves a model of transformers with its budget, and says what the windows
cost."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn

from headway.attach.from_transformers import load
from headway.attach.opening import SubjectLike, open_for_study
from headway.attach.whole import ReaderRunner
from headway.errors import HeadwayError
from headway.evaluation.verdicts import losses_of, right
from headway.flags import parse_memory, parse_numbers
from headway.heads.question import PruneQuestion
from headway.machine import choose_device
from headway.report.windows import windows_figure
from headway.runs import disk
from headway.subjects.naming import kind_of
from headway.subjects.own import Run
from headway.subjects.splits import Split, draw_split
from headway.subjects.subject import Subject
from headway.tasks import Problems
from headway.windows.budget import Budget
from headway.windows.exporting import export_budget

EXAMPLES = 10_000
FILE, SCHEMA = "windows.json", "headway.windows/1"


def save_windows(subject: SubjectLike, question: PruneQuestion) -> dict[str, Any]:
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


def _save(
    model: Any, tokenizer: Any, subject: Subject | None, budget: Budget, question: PruneQuestion
) -> dict[str, Any]:
    from headway.windows.saving import save_with_budget
    from headway.windows.switching import check_family, switch_of

    check_family(model)
    out = Path(question.out)
    with switch_of(model).make(budget) as cache:  # raises if the budget does not fit
        length = question.length or _longest(model)
        share = cache.predict_bytes(length) / cache.predict_bytes(length, full=True)
    exported = [] if question.export is None else [question.export]
    result: dict[str, Any] = {
        "run": str(out),
        **_describe(model, budget),
        "cache_share": share,
        "length": length,
        **_judge(model, subject, budget, question.seed),
        "by_length": _by_length(model, tokenizer, budget, question),
        "exported": exported,
    }
    save_with_budget(model, tokenizer, budget, out)
    for form in exported:
        export_budget(budget, form, out / form)
    result["findings"] = _findings(result, budget)
    disk.write_json(out / FILE, {"schema": SCHEMA, **result, "budget": budget.to_json()})
    windows_figure(out / FILE, out)
    return result


def _describe(model: Any, budget: Budget) -> dict[str, int]:
    """Counts what stays, all of it: heads, parameters, and the groups that see everything."""
    config = model.config.get_text_config(decoder=True)
    heads = config.num_attention_heads * config.num_hidden_layers
    parameters = sum(parameter.numel() for parameter in model.parameters())
    sizes = {"heads_before": heads, "heads_after": heads}
    sizes |= {"parameters_before": parameters, "parameters_after": parameters}
    return {**sizes, "groups": budget.groups, "full_groups": budget.full, "sink": budget.sink}


def _longest(model: Any) -> int:
    longest = getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", None)
    if not longest:
        raise HeadwayError("the model's config names no longest length; give the one to state the cache at as `length`")
    return longest


def _judge(model: nn.Module, subject: Subject | None, budget: Budget, seed: int) -> dict[str, float | int | None]:
    """Measures exact match and loss on fresh examples, before and after; None without examples."""
    if subject is None:
        return dict.fromkeys(("exact_match_before", "exact_match_after", "loss_increase", "examples"))
    problems = draw_split(subject, Split.REPORT, EXAMPLES, seed)
    before, after = _measure(subject, problems, None), _measure(subject, problems, budget)
    return {
        "exact_match_before": before[0],
        "exact_match_after": after[0],
        "loss_increase": after[1] - before[1],
        "examples": len(problems),
    }


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


def _by_length(model: Any, tokenizer: Any, budget: Budget, question: PruneQuestion) -> list[dict[str, Any]]:
    from headway.lengths.language.narrow import measure_lengths

    lengths = parse_numbers("lengths", question.lengths)
    if not lengths:
        return []
    memory = parse_memory(question.memory)
    rows = measure_lengths(model, tokenizer, budget, lengths, question.text, memory, question.seed)
    return [row.to_json() for row in rows]


def _findings(result: dict[str, Any], budget: Budget) -> list[str]:
    narrow = ", ".join(f"{window:,}" for window in budget.ladder if window is not None)
    words = [
        f"{budget.full} of {budget.groups} key-value groups see everything"
        + (f", the others {budget.sink} first tokens and the last {narrow}" if narrow else "")
        + f"; at {result['length']:,} tokens the cache takes {result['cache_share']:.1%} of the full one"
    ]
    if result["examples"] is not None:
        before, after = result["exact_match_before"], result["exact_match_after"]
        words.append(
            f"accuracy {before:.3f} before, {after:.3f} with the windows, the loss {result['loss_increase']:+.4f} (n = "
            f"{result['examples']:,} examples)"
        )
    for row in result["by_length"]:
        kind = "loss" if row["what"] == "loss" else f"recall ({row['what']})"
        words.append(
            f"{kind} at {row['length']:,} tokens: {row['full']:.3f}, with the windows {row['windows']:.3f} (n = "
            f"{row['count']:,}), with {row['cache_share']:.1%} of the cache"
        )
    return words
