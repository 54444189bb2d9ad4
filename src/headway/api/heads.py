"""`headway heads` and `headway prune` as functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from headway.attach.from_transformers import is_transformers_folder
from headway.attach.opening import Opening, open_subject, ready
from headway.attach.runner import UserRunner
from headway.attach.zeroing import check_same, read_back
from headway.attach.zeroing import save as save_zeroed
from headway.causes.kinds import Profile, kinds_of, profile_contrasts, profile_of
from headway.causes.maps import average_maps, maps_of, worked_examples
from headway.doctor.examination import forbidden
from headway.errors import HeadwayError
from headway.evaluation.exact import Evaluation, device_of, evaluate_chunks
from headway.evaluation.metrics import METRICS
from headway.heads.ablation import Margin, TooWeak, measure
from headway.heads.ledger import Ledger
from headway.heads.members import study_stack
from headway.heads.optimum import check_searchable
from headway.heads.pruning import compare, without
from headway.heads.result import HeadStudy, PopulationStudy, Refused
from headway.heads.screening import Screening, screen
from headway.heads.study import Asked, searched, study_subject
from headway.heads.variants import Variants
from headway.machine import choose_device, environment, exact_products
from headway.models import Head, Model, heads_of
from headway.models.sites import Named, heads_named
from headway.plugins import at_home, is_plugin
from headway.progress import Progress
from headway.report.heads import heads_figures, population_figures
from headway.report.maps import problem_figure
from headway.report.page import Inline
from headway.runs import disk
from headway.runs.config import RunConfig
from headway.runs.folder import RunFolder
from headway.subjects.own import Run, find_runs, one_shape, open_one, open_run, open_stack, subject_of
from headway.subjects.splits import Split, drawn
from headway.subjects.subject import Subject
from headway.tasks import Problems
from headway.training.recovery import recover as recovered

COMPARED, MAPPED, WORKED, ROUNDING = 10_000, 1_000, 6, 1e-3
MOST_WEIGHTS = 400_000
"""of attention, in the problems that are worked out"""


def study_heads(
    subject: str | Path | Run | Subject,
    *,
    out: str | Path | None = None,
    device: str = "auto",
    quiet: bool = True,
    opening: Opening | None = None,
    **asked: Any,
) -> HeadStudy:
    """Which heads a model needs, and which can go together.

    Takes `ablation`, `examples` or `all`, `max_drop` or `max_loss_increase`, `beam`, `budget` and `seed`. Numbers, maps
    and pictures are kept in `out`, or else in the run's own folder. `opening` says how a Hugging Face model is opened:
    its examples, metric and memory.
    """
    wanted = _asked(**asked)
    if isinstance(subject, str | Path):
        with at_home(str(subject)):
            opened = open_subject(subject, choose_device(device), opening)
            return study_heads(opened, out=out, quiet=quiet, **asked)
    if isinstance(subject, Run):
        subject = subject_of(subject)
    subject = ready(subject)
    metric, wanted = subject.measured_by, _by_metric(wanted, subject)
    home = Path(out) if out is not None else None if subject.folder is None else subject.folder.path
    known = metric is None or METRICS.get(metric.name) is metric  # a function of a user's own may have changed
    resumes = home is not None and subject.runner.is_attached and known and wanted.ablation != "resample"
    ledger = Ledger(home / "heads.partial.json") if resumes and home is not None else None
    study = replace(study_subject(subject, wanted, quiet, ledger), withheld=forbidden(subject, "heads"))
    if home is not None:
        _keep(study, subject, home, wanted.seed)
    if ledger is not None:
        ledger.path.unlink(missing_ok=True)
    return replace(study, view=lambda problem: view(study, subject, problem))


def _by_metric(asked: Asked, subject: Subject) -> Asked:
    """The same question, with the usual margin of the subject's metric where none was named."""
    metric = subject.measured_by
    if metric is None or asked.margin.loss is not None:
        return asked
    return replace(asked, margin=Margin(asked.margin.drop, metric.margin))


def _keep(study: HeadStudy, subject: Subject, home: Path, seed: int) -> None:
    """heads.json and heads.csv, maps.json, and the pictures of both."""
    RunFolder(home).record("heads", study.to_json())
    disk.write_bytes(home / "heads.csv", study.to_csv().encode())
    if not study.withheld:
        heads_figures(home / "heads.json", home)
    problems = subject.runner.one_length(drawn(subject, Split.REPORT, MAPPED, seed))
    maps = {
        "average": average_maps(subject, problems),
        "problem": maps_of(subject, problems[:1]),
        "examples": worked_examples(subject, problems[: _worked(subject, problems)], _sets(study)),
    }
    disk.write_json(home / "maps.json", maps)
    problem_figure(maps["problem"], home / "maps-problem")
    problem_figure(maps["average"]["all"], home / "maps-average")


def _worked(subject: Subject, problems: Problems) -> int:
    """How many problems are worked out: fewer where there are many heads and tokens, whose maps all go into a page."""
    tokens = problems.source.shape[1] + problems.answer.shape[1]
    return max(1, min(WORKED, MOST_WEIGHTS // (len(subject.heads) * tokens**2)))


def _sets(study: HeadStudy) -> dict[str, Sequence[Head]]:
    """What a reader may want to see closed: each head, and the two sets that a study is about."""
    each = {str(row.head): (row.head,) for row in study.heads}
    return {**each, "alone": study.alone.heads, "together": study.together.heads}


def view(study: HeadStudy, subject: Subject, problem: Any = None) -> Inline:
    """The maps of one problem, to look at in a notebook: the page's own, without the rest of it."""
    asked = _problem(subject, problem)
    maps = worked_examples(subject, asked, _sets(study))
    return Inline({"title": subject.name, "examples": maps, "heads": study.to_json()})


def _problem(subject: Subject, asked: Any) -> Problems:
    if asked is None:
        return drawn(subject, Split.REPORT, 1, 0)
    if isinstance(asked, Problems):
        return asked[:1]
    if subject.problem is None:
        raise HeadwayError(f"{subject.name} cannot read {asked!r}; give one of headway.Problems")
    return subject.problem(asked)


def study_members(
    subject: str | Path,
    *,
    out: str | Path | None = None,
    device: str = "auto",
    quiet: bool = True,
    kinds: bool = False,
    **asked: Any,
) -> PopulationStudy:
    """The same for every run of a folder, which must be of one shape; on a GPU all are studied as one.

    All sets of heads are searched where a `budget` of seconds a run is given; with `kinds` the causal tests say how
    many kinds of solution there are. Each run keeps its own study; what they have in common is kept in `out`, or else
    in the folder.
    """
    asked["budget"] = asked.get("budget") or 0
    folders, wanted, chosen = find_runs(subject), _asked(**asked), choose_device(device)
    if not one_shape(folders):
        raise HeadwayError(f"{subject} holds runs of different shapes; their heads cannot be compared: name one run")
    if kinds:
        _check_contrasts(folders[0])
    if chosen.type == "cuda" and wanted.ablation == "zero" and not wanted.all and wanted.beam == 1:
        studies = _studied_together(folders, wanted, chosen, quiet)
    else:
        studies = [_studied(folder, chosen, quiet, asked) for folder in folders]
    home = Path(out) if out is not None else Path(subject)
    told = kinds_of(_profiles(folders, chosen, wanted.seed, quiet)) if kinds else None
    population = PopulationStudy(tuple(studies), told)
    disk.write_json(home / "heads.json", population.summary())
    population_figures(home / "heads.json", home)
    return population


def _check_contrasts(folder: RunFolder) -> None:
    if subject_of(open_run(folder)).contrasts is None:
        raise HeadwayError(f"{folder.path} has no pairs of problems for causal tests; leave out --kinds")


def _profiles(folders: Sequence[RunFolder], device: torch.device, seed: int, quiet: bool) -> list[Profile | None]:
    found, contrasts = [], None
    with Progress(f"causal tests of {len(folders):,} runs", quiet) as watch:
        for folder in folders:
            subject = subject_of(open_run(folder, device))
            contrasts = contrasts or profile_contrasts(subject, seed)
            found.append(profile_of(subject, contrasts))
            watch(len(found), len(folders))
    return found


def _studied(folder: RunFolder, device: torch.device, quiet: bool, asked: dict[str, Any]) -> HeadStudy | Refused:
    run = open_run(folder, device)
    try:
        return study_heads(run, quiet=quiet, **asked)
    except TooWeak as error:
        return Refused(run.config.name, str(error))


def _studied_together(
    folders: Sequence[RunFolder], asked: Asked, device: torch.device, quiet: bool
) -> list[HeadStudy | Refused]:
    runs, weights = open_stack(folders, device)
    if asked.budget:
        check_searchable(Variants(subject_of(runs[0])), asked.margin)
    studies = study_stack([subject_of(run) for run in runs], weights, asked, quiet)
    for place, (folder, study) in enumerate(zip(folders, studies, strict=True)):
        if isinstance(study, HeadStudy):
            if asked.budget:
                studies[place] = study = searched(study, subject_of(open_run(folder, device)), asked, quiet)
            folder.record("heads", study.to_json())
    return studies


def screen_heads(
    subject: str | Path | Run | Subject,
    ends: int,
    examples: int | None = None,
    device: str = "auto",
    opening: Opening | None = None,
    ablation: str = "zero",
    seed: int = 0,
) -> Screening:
    """A quick look at all heads: what the slopes of one pass say, and how far that is so at both ends."""
    if isinstance(subject, str | Path):
        with at_home(str(subject)):
            return screen_heads(
                open_subject(subject, choose_device(device), opening), ends, examples, "auto", None, ablation, seed
            )
    if isinstance(subject, Run):
        subject = subject_of(subject)
    subject = ready(subject)
    problems = drawn(subject, Split.REPORT, examples or MAPPED, seed)
    return screen(Variants(subject, ablation, seed), problems, ends)


def prune(
    subject: str | Path | Run | Subject,
    out: str | Path,
    *,
    heads: Named | None = None,
    recover: int = 0,
    device: str = "auto",
    quiet: bool = True,
    opening: Opening | None = None,
    **asked: Any,
) -> dict[str, Any]:
    """Writes a model without the heads that can go together, or without those named; `asked` is for the study.

    A run becomes really smaller, and with `recover` it is trained for so many steps more. Of a user's own model the
    columns are zeroed, and it is saved as it was: by save_pretrained, or its weights.
    """
    if recover < 0:
        raise HeadwayError(f"recover is {recover}; it must be a number of steps, or 0 for none")
    chosen = choose_device(device)
    if isinstance(subject, str | Path) and _is_foreign(subject, opening):
        with at_home(str(subject)):
            subject = open_subject(subject, chosen, opening)
    if isinstance(subject, Subject):
        return _zeroed(ready(subject), Path(out), heads, recover, quiet, asked)
    run = subject if isinstance(subject, Run) else open_one(subject, chosen)
    folder = RunFolder(Path(out))
    if heads is None:
        study = study_subject(subject_of(run), replace(_asked(**{"budget": 0, **asked}), causes=False), quiet)
        heads = study.together.heads
    gone = list(dict.fromkeys(heads_named(heads, heads_of(run.model))))
    model, config = without(run.model, run.config.model, gone)
    smaller = replace(run.config, model=config, training=replace(run.config.training, recovered=recover))
    folder.check(smaller, resume=True)
    problems = drawn(subject_of(run), Split.COMPARE, COMPARED, asked.get("seed", 0))
    with exact_products():
        comparison = compare(run.model, model, gone, problems)
    if comparison.largest_difference > ROUNDING or not comparison.same_answers:
        raise HeadwayError(
            f"the pruned model's logits differ by {comparison.largest_difference:.2g} from the gated one's, more than "
            "rounding; this is a bug of Headway's"
        )
    before, pruned = (_checked(each, run, problems) for each in (run.model, model))
    if not folder.complete:
        with Progress(f"training {recover} steps more", quiet) as watch:
            loss = recovered(model, smaller, recover, watch) if recover else run.folder.training().final_loss
        _write_pruned(run, model, smaller, folder, loss)
    reopened = open_run(folder, device_of(run.model))
    after = _checked(reopened.model, run, problems)
    if not recover and after != pruned:
        raise HeadwayError(f"{folder.path} answers differently after it was read back; this is a bug of Headway's")
    count = len(heads_of(run.model))
    return {
        "run": str(folder.path),
        "heads_before": count,
        "heads_after": count - len(gone),
        "removed": [str(head) for head in gone],
        "parameters_before": sum(parameter.numel() for parameter in run.model.parameters()),
        "parameters_after": sum(parameter.numel() for parameter in model.parameters()),
        "exact_match_before": before.exact_match,
        "exact_match_after": after.exact_match,
        "exact_match_without_recovery": pruned.exact_match,
        "recovered_steps": recover,
        "examples": len(problems),
        "largest_logit_difference": comparison.largest_difference,
        "same_answers_as_gated": comparison.same_answers,
        "speedup": comparison.speedup,
    }


def _is_foreign(name: str | Path, opening: Opening | None) -> bool:
    """Whether a SUBJECT names a model that is not Headway's own."""
    from_hub = opening is not None and opening.hub and not Path(name).exists()
    return is_plugin(str(name)) or is_transformers_folder(name) or from_hub


def _zeroed(
    subject: Subject, out: Path, heads: Named | None, recover: int, quiet: bool, asked: dict[str, Any]
) -> dict[str, Any]:
    """A user's model with the columns of these heads at zero, saved, read back and compared."""
    runner = subject.runner
    if not isinstance(runner, UserRunner):
        raise HeadwayError(f"{subject.name} says nothing of its sites; give Subject(sites=…) to prune it")
    if recover:
        raise HeadwayError("--recover trains runs of Headway's own; train the pruned model as you trained it")
    if out.exists() and any(out.iterdir()):
        raise HeadwayError(f"{out} is not empty; name a new folder")
    if heads is None:
        wanted = replace(_asked(**{"budget": 0, **asked}), causes=False, kinds=False)
        heads = study_subject(subject, _by_metric(wanted, subject), quiet).together.heads
    gone = list(dict.fromkeys(heads_named(heads, subject.heads)))
    problems = drawn(subject, Split.REPORT, COMPARED, asked.get("seed", 0))
    zeroed = runner.prune(gone)
    with exact_products():
        difference = check_same(runner, zeroed, gone, problems)
    save_zeroed(zeroed, subject.tokenizer, out)
    again = read_back(zeroed, out)
    with exact_products():
        check_same(runner, again, gone, problems)
    before, after = measure(Variants(subject), [problems], [frozenset(gone)])
    count = sum(parameter.numel() for parameter in runner.model.parameters())
    return {
        "run": str(out),
        "heads_before": len(subject.heads),
        "heads_after": len(subject.heads) - len(gone),
        "removed": [str(head) for head in gone],
        "parameters_before": count,
        "parameters_after": count,
        "exact_match_before": before.accuracy,
        "exact_match_after": after.accuracy,
        "loss_increase": after.loss_increase,
        "examples": len(problems),
        "largest_logit_difference": difference,
        "speedup": 1.0,
    }


def _checked(model: Model, run: Run, problems: Problems) -> Evaluation:
    return evaluate_chunks(model, run.task, [problems], len(problems), is_sample=True)


def _write_pruned(run: Run, model: Model, config: RunConfig, folder: RunFolder, loss: float | None) -> None:
    """A finished run like the one it was made from, with fewer heads."""
    trained = run.folder.training()
    folder.begin(config, {**environment(device_of(model)), "pruned_from": run.config.name}, resume=True)
    disk.write_bytes(folder.log, run.folder.log.read_bytes())
    folder.finish(
        save({name: tensor.cpu().contiguous() for name, tensor in model.state_dict().items()}),
        steps=trained.steps,
        seconds=trained.seconds,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        final_loss=loss,
        perfect=None,
    )


def _asked(
    ablation: str = "zero",
    examples: int | None = None,
    all: bool = False,
    max_drop: float = 0.01,
    max_loss_increase: float | None = None,
    seed: int = 0,
    beam: int = 1,
    budget: int | float | None = None,
) -> Asked:
    return Asked(ablation, examples, all, Margin(max_drop, max_loss_increase), seed, beam, budget)
