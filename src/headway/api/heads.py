"""`headway heads` and `headway prune` as functions."""

import sys
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import save
from torch import nn

from headway.api.windows import save_windows
from headway.attach.opening import SubjectLike, open_for_study
from headway.attach.zeroing import save_without
from headway.causes.kinds import count_kinds
from headway.causes.maps import average_maps, maps_of, maps_of_several, spread_over, worked_examples
from headway.causes.profiles import measure_redraws
from headway.doctor.examination import find_vetoes
from headway.errors import HeadwayError
from headway.evaluation.exact import Evaluation, device_of, evaluate_chunks
from headway.evaluation.metrics import METRICS
from headway.heads.ablation import TooWeak, measure
from headway.heads.ablations import find_ablation
from headway.heads.members import study_stack
from headway.heads.optimum import check_searchable
from headway.heads.population import FILE, Member, PopulationStudy, RefusedMember
from headway.heads.pruning import compare, remove_heads
from headway.heads.question import HeadsQuestion, PruneQuestion, RemovalQuestion
from headway.heads.result import HeadStudy
from headway.heads.screening import Screening, screen
from headway.heads.study import add_search, study_subject
from headway.heads.units import leave_out_cross
from headway.heads.variants import Ledger, Variants
from headway.machine import choose_device, environment, full_precision_matmul, threads
from headway.models import Head, Model
from headway.models.sites import HeadNames, find_heads
from headway.progress import Progress
from headway.question import asks
from headway.report.heads import heads_figures, population_figures
from headway.report.maps import drawing_several, problem_figure
from headway.report.page import Inline
from headway.runs import disk
from headway.runs.folder import RunFolder
from headway.subjects.naming import find_runs, kind_of
from headway.subjects.own import Run, can_be_stacked, open_one, open_run, open_stack, subject_of
from headway.subjects.splits import Split, draw_split
from headway.subjects.subject import Subject
from headway.tasks import Problems
from headway.training.loop import recover as train_pruned
from headway.windows.budget import FILE as BUDGET

COMPARED, MAPPED, WORKED, ROUNDING = 10_000, 1_000, 6, 1e-3
MOST_WEIGHTS = 400_000  # attention weights in all worked examples
PROBLEMS, MOST_MAPPED, MOST_TOKENS = (
    12,
    4,
    24,
)  # in the figure of several problems: problems, heads, tokens of a problem


@asks(HeadsQuestion)
def study_heads(subject: SubjectLike, question: HeadsQuestion) -> HeadStudy:
    """Finds which heads a model needs, and which can be removed together. Numbers, maps and figures are saved in `out`,
    or else in the run's folder."""
    if question.kinds:
        raise HeadwayError("`kinds` compares the runs of a folder; leave it out for one run")
    with open_for_study(subject, question) as ready:
        question = _with_margin(question, ready)
        home = Path(question.out) if question.out is not None else None if ready.folder is None else ready.folder.path
        ledger = Ledger(home / "heads.partial.json") if home is not None and _can_resume(ready, question) else None
        study = study_subject(ready, question, ledger, veto=lambda subject: find_vetoes(subject, "heads"))
        if home is not None:
            _save(study, ready, home, question.seed)
        if ledger is not None:
            ledger.path.unlink(missing_ok=True)
    return replace(study, view=lambda problem: view(study, ready, problem))


def _with_margin(question: HeadsQuestion, subject: Subject) -> HeadsQuestion:
    """Sets the margin of the question to the default of the subject's metric, if none is given."""
    metric = subject.measured_by
    if metric is None or question.max_loss_increase is not None:
        return question
    return replace(question, max_loss_increase=metric.margin)


def _can_resume(subject: Subject, question: HeadsQuestion) -> bool:
    """Tells whether a study of a user's model may be resumed; not if it uses a user's function, which may change."""
    metric = subject.measured_by
    known = metric is None or METRICS.get(metric.name) is metric
    fixed = ":" not in question.ablation and not find_ablation(question.ablation).varies
    return subject.runner.is_attached and known and fixed


def _save(study: HeadStudy, subject: Subject, home: Path, seed: int) -> None:
    """Writes heads.json, heads.csv, maps.json and the figures, and budget.json where there are windows."""
    if study.windows is not None:
        study.windows.chosen.budget.write(home / BUDGET)
    RunFolder(home).record("heads", study.to_json())
    disk.write_bytes(home / "heads.csv", study.to_csv().encode())
    problems = subject.runner.select_one_length(draw_split(subject, Split.REPORT, MAPPED, seed))
    tokens = problems.source.shape[1] + problems.answer.shape[1]
    fitting = MOST_WEIGHTS // (len(subject.heads) * tokens**2)  # a page holds the maps of all heads
    maps = {
        "average": average_maps(subject, problems),
        "problem": maps_of(subject, problems[:1]),
        "examples": worked_examples(subject, problems[: max(1, min(WORKED, fitting))], _sets(study)),
        "several": _map_several(study, subject, problems) if tokens <= MOST_TOKENS else None,
    }
    disk.write_json(home / "maps.json", maps)
    if not maps["problem"]["maps"]:
        print(f"the attention maps of {subject.name} cannot be read; no figure shows them", file=sys.stderr)
    with drawing_several(home / "maps.json", home / "maps-twelve", at_once=threads() > 1):
        if not study.withheld:
            heads_figures(home / "heads.json", home)
        problem_figure(maps["problem"], home / "maps-problem")
        problem_figure(maps["average"]["all"], home / "maps-average")


def _map_several(study: HeadStudy, subject: Subject, problems: Problems) -> dict[str, Any]:
    """Computes the maps of the costliest heads on twelve problems, as many as possible of each value of the first
    stratum (of sums: how many carries)."""
    ranked = sorted(study.heads, key=lambda row: (study.judge.cost(row.effect), row.effect.loss_increase), reverse=True)
    shown = {row.head for row in ranked[:MOST_MAPPED]}
    values = next(iter(subject.strata(problems).values()), None)
    rows = torch.tensor(spread_over(values, len(problems), PROBLEMS), device=problems.source.device)
    return maps_of_several(subject, problems[rows], [head for head in subject.heads if head in shown])


def _sets(study: HeadStudy) -> dict[str, Sequence[Head]]:
    """Lists the sets of heads to show ablated: each head, and the two sets that the study found."""
    each = {str(row.head): (row.head,) for row in study.heads}
    return {**each, "alone": study.alone.heads, "together": study.together.heads}


def view(study: HeadStudy, subject: Subject, problem: Any = None) -> Inline:
    """Shows the maps of one problem in a notebook, drawn as on the page."""
    if problem is None:
        problem = draw_split(subject, Split.REPORT, 1, 0)
    elif isinstance(problem, Problems):
        problem = problem[:1]
    elif subject.problem is None:
        raise HeadwayError(f"{subject.name} cannot read {problem!r}; give a headway.Problems")
    else:
        problem = subject.problem(problem)
    maps = worked_examples(subject, problem, _sets(study))
    return Inline({"title": subject.name, "examples": maps, "heads": study.to_json()})


@asks(HeadsQuestion)
def study_members(subject: str | Path, question: HeadsQuestion) -> PopulationStudy:
    """Studies every run of a folder, which must be of one shape; on a GPU all are studied as one. All sets of heads are
    searched if a `budget` of seconds per run is given; with `kinds` the causal tests say how many kinds of solution
    there are. Each study is saved in its run; the summary is saved in `out`, or else in the folder."""
    folders, device, home = find_runs(subject), choose_device(question.device), Path(question.out or subject)
    question.check_unused(subject)
    if not can_be_stacked(folders):
        raise HeadwayError(f"{subject} holds runs of different shapes; their heads cannot be compared: name one run")
    if question.kinds and subject_of(open_run(folders[0])).contrasts is None:
        raise HeadwayError(f"{folders[0].path} has no pairs of problems for causal tests; leave out `kinds`")
    each = replace(question, budget=question.budget or 0, kinds=False, out=None)
    if device.type == "cuda" and question.ablation == "zero" and not question.all and question.beam == 1:
        studies = _study_stacked(folders, each, device)
    else:
        studies = [_study_member(folder, each, device) for folder in folders]
    kinds = None
    if question.kinds:
        profiles = []
        with Progress(f"causal tests of {len(folders):,} runs", question.quiet) as watch:
            for number, folder in enumerate(folders):
                profiles.append(measure_redraws(subject_of(open_run(folder, device)), number, question.seed))
                watch(number + 1, len(folders))
        kinds = count_kinds(profiles)
    population = PopulationStudy(tuple(studies), kinds)
    disk.write_json(home / FILE, population.summary())
    population_figures(home / FILE, home)
    return population


def _study_member(folder: RunFolder, question: HeadsQuestion, device: torch.device) -> Member:
    """Studies one member; its sets of heads count in the distribution even if its own findings are withheld."""
    subject = subject_of(open_run(folder, device))
    try:
        study = study_subject(subject, question)
    except TooWeak as error:
        return RefusedMember(subject.name, str(error))
    study = replace(study, withheld=find_vetoes(subject, "heads"))
    if subject.folder is not None:
        _save(study, subject, folder.path, question.seed)
    return study


def _study_stacked(folders: Sequence[RunFolder], question: HeadsQuestion, device: torch.device) -> list[Member]:
    runs, weights = open_stack(folders, device)
    if question.budget:
        check_searchable(Variants(subject_of(runs[0])), question.margin)
    studies = study_stack([subject_of(run) for run in runs], weights, question)
    for place, (folder, study) in enumerate(zip(folders, studies, strict=True)):
        if isinstance(study, HeadStudy):
            if question.budget:
                studies[place] = study = add_search(study, subject_of(open_run(folder, device)), question)
            folder.record("heads", study.to_json())
    return studies


def screen_heads(subject: SubjectLike, question: HeadsQuestion, ends: int) -> Screening:
    """Estimates the cost of all heads by the gradient of one pass, and ablates those at both ends to check it."""
    if question.units != "heads" or len(question.sizes) > 1:
        raise HeadwayError(
            "`screen` estimates single heads under one kind of ablation; give one `recent`, and no `units`"
        )
    with open_for_study(subject, question) as ready:
        problems = draw_split(ready, Split.REPORT, question.count or MAPPED, question.seed)
        ready = leave_out_cross(ready) if question.narrows else ready
        kind = next(iter(question.sizes), question.ablation)
        return screen(Variants(ready, kind, question.seed), problems, ends)


@asks(PruneQuestion)
def prune(subject: SubjectLike, question: PruneQuestion) -> dict[str, Any]:
    """Writes a model without the heads that can be removed together, or without those named. A run really becomes
    smaller, and is trained for `recover` more steps. In a user's model the columns are zeroed, and it is saved in its
    original format: with save_pretrained, or as weights. With `windows` all heads stay, and the model is
    saved with its budget."""
    if question.windows is not None:
        return dict(save_windows(subject, question).to_json())
    if isinstance(subject, str | Path) and kind_of(subject, question.hub) in ("run", "runs"):
        subject = open_one(subject, choose_device(question.device))
    if isinstance(subject, Run):
        question.check_unused(subject.config.name)
        return _prune_run(subject, question)
    with open_for_study(subject, question) as ready:
        return _zero_heads(ready, question)


def _choose_heads(subject: Subject, question: PruneQuestion) -> list[Head]:
    """Chooses the heads to remove: those named, or else those that can be removed together."""
    if question.heads:
        return list(dict.fromkeys(find_heads(cast(HeadNames, question.heads), subject.heads)))
    shared = {entry.name: getattr(question, entry.name) for entry in fields(RemovalQuestion)}
    heads_question = _with_margin(HeadsQuestion(**shared, brief=True), subject)
    return list(study_subject(subject, heads_question).together.heads)


def _prune_run(run: Run, question: PruneQuestion) -> dict[str, Any]:
    """Prunes a run to smaller projections, compares it with the gated model, saves it and reads it back."""
    subject, folder, recover = subject_of(run), RunFolder(Path(question.out)), question.recover
    removed = _choose_heads(subject, question)
    model, config = remove_heads(run.model, run.config.model, removed)
    smaller = replace(run.config, model=config, training=replace(run.config.training, recovered=recover))
    folder.check(smaller, resume=True)
    problems = draw_split(subject, Split.COMPARE, COMPARED, question.seed)
    with full_precision_matmul():
        comparison = compare(run.model, model, removed, problems)
    if comparison.largest_difference > ROUNDING or not comparison.same_answers:
        raise HeadwayError(
            f"the pruned model's logits differ by {comparison.largest_difference:.2g} from the gated one's, more than "
            "rounding; this is a bug in Headway"
        )

    def evaluate(model: Model) -> Evaluation:
        return evaluate_chunks(model, run.task, [problems], len(problems), is_sample=True)

    before, pruned = evaluate(run.model), evaluate(model)
    if not folder.complete:
        trained = run.folder.training()
        with Progress(f"training {recover} more steps", question.quiet) as watch:
            loss = train_pruned(model, smaller, recover, watch) if recover else trained.final_loss
        folder.begin(smaller, {**environment(device_of(model)), "pruned_from": run.config.name}, resume=True)
        disk.write_bytes(folder.log, run.folder.log.read_bytes())
        weights = save({name: tensor.cpu().contiguous() for name, tensor in model.state_dict().items()})
        folder.finish(weights, trained.steps, trained.seconds, _count_parameters(model), final_loss=loss, perfect=None)
    after = evaluate(open_run(folder, device_of(run.model)).model)
    if not recover and after != pruned:
        raise HeadwayError(f"{folder.path} answers differently after it was read back; this is a bug in Headway")
    return {
        **_describe_sizes(subject, removed, question, run.model, model),
        "exact_match_before": before.exact_match,
        "exact_match_after": after.exact_match,
        "exact_match_without_recovery": pruned.exact_match,
        "recovered_steps": recover,
        "examples": len(problems),
        "largest_logit_difference": comparison.largest_difference,
        "same_answers_as_gated": comparison.same_answers,
        "speedup": comparison.speedup,
    }


def _describe_sizes(
    subject: Subject, removed: Sequence[Head], question: PruneQuestion, before: nn.Module, after: nn.Module
) -> dict[str, Any]:
    return {
        "run": str(question.out),
        "heads_before": len(subject.heads),
        "heads_after": len(subject.heads) - len(removed),
        "removed": [str(head) for head in removed],
        "parameters_before": _count_parameters(before),
        "parameters_after": _count_parameters(after),
    }


def _count_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _zero_heads(subject: Subject, question: PruneQuestion) -> dict[str, Any]:
    """Zeroes the columns of these heads in a user's model, saves it, reads it back and compares it."""
    out = Path(question.out)
    if not subject.runner.is_attached:
        raise HeadwayError(f"{subject.name} does not name its sites; give Subject(sites=…) to prune it")
    if question.recover:
        raise HeadwayError("`recover` works only for Headway's runs; train the pruned model as you trained it before")
    if out.exists() and any(out.iterdir()):
        raise HeadwayError(f"{out} is not empty; name a new folder")
    removed = _choose_heads(subject, question)
    problems = draw_split(subject, Split.REPORT, COMPARED, question.seed)
    difference = save_without(subject, removed, problems, out)
    before, after = measure(Variants(subject), [problems], [frozenset(removed)])
    return {
        **_describe_sizes(subject, removed, question, subject.model, subject.model),
        "exact_match_before": before.accuracy,
        "exact_match_after": after.accuracy,
        "loss_increase": after.loss_increase,
        "examples": len(problems),
        "largest_logit_difference": difference,
        "speedup": 1.0,
    }
