"""`headway heads` and `headway prune` as functions."""

import sys
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import save
from torch import nn

from headway.attach.opening import Studied, opened
from headway.attach.zeroing import save_without
from headway.causes.kinds import count_kinds, measure_profile, profile_contrasts
from headway.causes.maps import average_maps, maps_of, worked_examples
from headway.doctor.examination import forbidden
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
from headway.heads.variants import Ledger, Variants
from headway.machine import choose_device, environment, exact_products
from headway.models import Head, Model
from headway.models.sites import Named, heads_named
from headway.progress import Progress
from headway.question import asks
from headway.report.heads import heads_figures, population_figures
from headway.report.maps import problem_figure
from headway.report.page import Inline
from headway.runs import disk
from headway.runs.folder import RunFolder
from headway.subjects.naming import find_runs, kind_of
from headway.subjects.own import Run, one_shape, open_one, open_run, open_stack, subject_of
from headway.subjects.splits import Split, draw_split
from headway.subjects.subject import Subject
from headway.tasks import Problems
from headway.training.loop import recover as recovered

COMPARED, MAPPED, WORKED, ROUNDING = 10_000, 1_000, 6, 1e-3
MOST_WEIGHTS = 400_000  # of attention, in the problems that are worked out


@asks(HeadsQuestion)
def study_heads(subject: Studied, question: HeadsQuestion) -> HeadStudy:
    """Which heads a model needs, and which can go together. Numbers, maps and pictures are kept in `out`, or else in
    the run's own folder."""
    if question.kinds:
        raise HeadwayError("`kinds` compares the runs of a folder; leave it out for one run")
    with opened(subject, question) as own:
        question = _by_metric(question, own)
        home = Path(question.out) if question.out is not None else None if own.folder is None else own.folder.path
        ledger = Ledger(home / "heads.partial.json") if home is not None and _resumes(own, question) else None
        study = study_subject(own, question, ledger, veto=lambda subject: forbidden(subject, "heads"))
        if home is not None:
            _keep(study, own, home, question.seed)
        if ledger is not None:
            ledger.path.unlink(missing_ok=True)
    return replace(study, view=lambda problem: view(study, own, problem))


def _by_metric(question: HeadsQuestion, subject: Subject) -> HeadsQuestion:
    """The same question, with the usual margin of the subject's metric where none was named."""
    metric = subject.measured_by
    if metric is None or question.max_loss_increase is not None:
        return question
    return replace(question, max_loss_increase=metric.margin)


def _resumes(subject: Subject, question: HeadsQuestion) -> bool:
    """Whether a long study of a user's model writes down what it has; a function of a user's own may have changed."""
    metric = subject.measured_by
    known = metric is None or METRICS.get(metric.name) is metric
    fixed = ":" not in question.ablation and not find_ablation(question.ablation).varies
    return subject.runner.is_attached and known and fixed


def _keep(study: HeadStudy, subject: Subject, home: Path, seed: int) -> None:
    """heads.json and heads.csv, maps.json, and the pictures of both."""
    RunFolder(home).record("heads", study.to_json())
    disk.write_bytes(home / "heads.csv", study.to_csv().encode())
    if not study.withheld:
        heads_figures(home / "heads.json", home)
    problems = subject.runner.one_length(draw_split(subject, Split.REPORT, MAPPED, seed))
    tokens = problems.source.shape[1] + problems.answer.shape[1]
    fitting = MOST_WEIGHTS // (len(subject.heads) * tokens**2)  # the maps of all heads go into a page
    maps = {
        "average": average_maps(subject, problems),
        "problem": maps_of(subject, problems[:1]),
        "examples": worked_examples(subject, problems[: max(1, min(WORKED, fitting))], _sets(study)),
    }
    disk.write_json(home / "maps.json", maps)
    if not maps["problem"]["maps"]:
        print(f"the attention maps of {subject.name} cannot be read; no picture shows them", file=sys.stderr)
    problem_figure(maps["problem"], home / "maps-problem")
    problem_figure(maps["average"]["all"], home / "maps-average")


def _sets(study: HeadStudy) -> dict[str, Sequence[Head]]:
    """What a reader may want to see closed: each head, and the two sets that a study is about."""
    each = {str(row.head): (row.head,) for row in study.heads}
    return {**each, "alone": study.alone.heads, "together": study.together.heads}


def view(study: HeadStudy, subject: Subject, problem: Any = None) -> Inline:
    """The maps of one problem, to look at in a notebook: the page's own, without the rest of it."""
    if problem is None:
        problem = draw_split(subject, Split.REPORT, 1, 0)
    elif isinstance(problem, Problems):
        problem = problem[:1]
    elif subject.problem is None:
        raise HeadwayError(f"{subject.name} cannot read {problem!r}; give one of headway.Problems")
    else:
        problem = subject.problem(problem)
    maps = worked_examples(subject, problem, _sets(study))
    return Inline({"title": subject.name, "examples": maps, "heads": study.to_json()})


@asks(HeadsQuestion)
def study_members(subject: str | Path, question: HeadsQuestion) -> PopulationStudy:
    """The same for every run of a folder, which must be of one shape; on a GPU all are studied as one. All sets of
    heads are searched where a `budget` of seconds a run is given; with `kinds` the causal tests say how many kinds of
    solution there are. Each run keeps its own study; what they have in common is kept in `out`, or else in the
    folder."""
    folders, device, home = find_runs(subject), choose_device(question.device), Path(question.out or subject)
    question.check_unused(subject)
    if not one_shape(folders):
        raise HeadwayError(f"{subject} holds runs of different shapes; their heads cannot be compared: name one run")
    if question.kinds and subject_of(open_run(folders[0])).contrasts is None:
        raise HeadwayError(f"{folders[0].path} has no pairs of problems for causal tests; leave out `kinds`")
    each = replace(question, budget=question.budget or 0, kinds=False, out=None)
    if device.type == "cuda" and question.ablation == "zero" and not question.all and question.beam == 1:
        studies = _studied_together(folders, each, device)
    else:
        studies = [_studied(folder, each, device) for folder in folders]
    kinds = None
    if question.kinds:
        profiles, contrasts = [], profile_contrasts(subject_of(open_run(folders[0], device)), question.seed)
        with Progress(f"causal tests of {len(folders):,} runs", question.quiet) as watch:
            for number, folder in enumerate(folders):
                profiles.append(measure_profile(subject_of(open_run(folder, device)), contrasts))
                watch(number + 1, len(folders))
        kinds = count_kinds(profiles)
    population = PopulationStudy(tuple(studies), kinds)
    disk.write_json(home / FILE, population.summary())
    population_figures(home / FILE, home)
    return population


def _studied(folder: RunFolder, question: HeadsQuestion, device: torch.device) -> Member:
    """One member, measured in full: its sets of heads count in the distribution, also where its own are withheld."""
    subject = subject_of(open_run(folder, device))
    try:
        study = study_subject(subject, question)
    except TooWeak as error:
        return RefusedMember(subject.name, str(error))
    study = replace(study, withheld=forbidden(subject, "heads"))
    if subject.folder is not None:
        _keep(study, subject, folder.path, question.seed)
    return study


def _studied_together(folders: Sequence[RunFolder], question: HeadsQuestion, device: torch.device) -> list[Member]:
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


def screen_heads(subject: Studied, question: HeadsQuestion, ends: int) -> Screening:
    """A quick look at all heads: their cost by the gradient of one pass, and how far that is so at both ends."""
    with opened(subject, question) as own:
        problems = draw_split(own, Split.REPORT, question.count or MAPPED, question.seed)
        return screen(Variants(own, question.ablation, question.seed), problems, ends)


@asks(PruneQuestion)
def prune(subject: Studied, question: PruneQuestion) -> dict[str, Any]:
    """Writes a model without the heads that can go together, or without those named. A run becomes really smaller, and
    with `recover` it is trained for so many steps more. Of a user's own model the columns are zeroed, and it is saved
    as it was: by save_pretrained, or its weights."""
    if isinstance(subject, str | Path) and kind_of(subject, question.hub) in ("run", "runs"):
        subject = open_one(subject, choose_device(question.device))
    if isinstance(subject, Run):
        question.check_unused(subject.config.name)
        return _cut(subject, question)
    with opened(subject, question) as own:
        return _zeroed(own, question)


def _to_remove(subject: Subject, question: PruneQuestion) -> list[Head]:
    """The heads that are named, or else those that can go together."""
    if question.heads:
        return list(dict.fromkeys(heads_named(cast(Named, question.heads), subject.heads)))
    shared = {entry.name: getattr(question, entry.name) for entry in fields(RemovalQuestion)}
    asked = _by_metric(HeadsQuestion(**shared, brief=True), subject)
    return list(study_subject(subject, asked).together.heads)


def _cut(run: Run, question: PruneQuestion) -> dict[str, Any]:
    """A run with smaller projections, compared with the gated model, saved and read back."""
    subject, folder, recover = subject_of(run), RunFolder(Path(question.out)), question.recover
    gone = _to_remove(subject, question)
    model, config = remove_heads(run.model, run.config.model, gone)
    smaller = replace(run.config, model=config, training=replace(run.config.training, recovered=recover))
    folder.check(smaller, resume=True)
    problems = draw_split(subject, Split.COMPARE, COMPARED, question.seed)
    with exact_products():
        comparison = compare(run.model, model, gone, problems)
    if comparison.largest_difference > ROUNDING or not comparison.same_answers:
        raise HeadwayError(
            f"the pruned model's logits differ by {comparison.largest_difference:.2g} from the gated one's, more than "
            "rounding; this is a bug of Headway's"
        )

    def evaluated(model: Model) -> Evaluation:
        return evaluate_chunks(model, run.task, [problems], len(problems), is_sample=True)

    before, pruned = evaluated(run.model), evaluated(model)
    if not folder.complete:
        trained = run.folder.training()
        with Progress(f"training {recover} steps more", question.quiet) as watch:
            loss = recovered(model, smaller, recover, watch) if recover else trained.final_loss
        folder.begin(smaller, {**environment(device_of(model)), "pruned_from": run.config.name}, resume=True)
        disk.write_bytes(folder.log, run.folder.log.read_bytes())
        weights = save({name: tensor.cpu().contiguous() for name, tensor in model.state_dict().items()})
        folder.finish(weights, trained.steps, trained.seconds, _parameters(model), final_loss=loss, perfect=None)
    after = evaluated(open_run(folder, device_of(run.model)).model)
    if not recover and after != pruned:
        raise HeadwayError(f"{folder.path} answers differently after it was read back; this is a bug of Headway's")
    return {
        **_sizes(subject, gone, question, run.model, model),
        "exact_match_before": before.exact_match,
        "exact_match_after": after.exact_match,
        "exact_match_without_recovery": pruned.exact_match,
        "recovered_steps": recover,
        "examples": len(problems),
        "largest_logit_difference": comparison.largest_difference,
        "same_answers_as_gated": comparison.same_answers,
        "speedup": comparison.speedup,
    }


def _sizes(
    subject: Subject, gone: Sequence[Head], question: PruneQuestion, before: nn.Module, after: nn.Module
) -> dict[str, Any]:
    return {
        "run": str(question.out),
        "heads_before": len(subject.heads),
        "heads_after": len(subject.heads) - len(gone),
        "removed": [str(head) for head in gone],
        "parameters_before": _parameters(before),
        "parameters_after": _parameters(after),
    }


def _parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _zeroed(subject: Subject, question: PruneQuestion) -> dict[str, Any]:
    """A user's model with the columns of these heads at zero, saved, read back and compared."""
    out = Path(question.out)
    if not subject.runner.is_attached:
        raise HeadwayError(f"{subject.name} says nothing of its sites; give Subject(sites=…) to prune it")
    if question.recover:
        raise HeadwayError("`recover` trains runs of Headway's own; train the pruned model as you trained it")
    if out.exists() and any(out.iterdir()):
        raise HeadwayError(f"{out} is not empty; name a new folder")
    gone = _to_remove(subject, question)
    problems = draw_split(subject, Split.REPORT, COMPARED, question.seed)
    difference = save_without(subject, gone, problems, out)
    before, after = measure(Variants(subject), [problems], [frozenset(gone)])
    return {
        **_sizes(subject, gone, question, subject.model, subject.model),
        "exact_match_before": before.accuracy,
        "exact_match_after": after.accuracy,
        "loss_increase": after.loss_increase,
        "examples": len(problems),
        "largest_logit_difference": difference,
        "speedup": 1.0,
    }
