"""The commands: each is a dataclass of its flags, parsed by tyro, that calls the API and returns what to print. The
text under a field is the help of its flag. Torch is imported with `headway.api`, when that is first used, so that
`--help` answers at once."""

import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import tyro

import headway
from headway.attach.question import Opening
from headway.certify.question import DigitsQuestion
from headway.errors import HeadwayError
from headway.evaluation.question import EvaluateQuestion
from headway.flags import parse_options, parse_words
from headway.heads.question import HeadsQuestion, PruneQuestion
from headway.lengths.question import LengthsQuestion
from headway.output import Output, open_in_browser, strip_common_parts
from headway.question import Question
from headway.submissions.question import ClassQuestion
from headway.sweeps.question import SweepQuestion
from headway.training.question import Option, TaskOptions, TrainQuestion

Subject = Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="SUBJECT")]
TaskName = Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="TASK")]
Folders = Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="DIR")]


@dataclass(frozen=True, kw_only=True)
class Common(Question):
    json: bool = False
    """print exactly one JSON object on standard output"""
    quiet: bool = False


@dataclass(frozen=True, kw_only=True)
class Train(Common, TaskOptions, TrainQuestion):
    task: TaskName
    """addition, sortedness, or your own as module:Class"""
    seeds: str | None = None
    resume: bool = False
    out: str | None = None
    data: str | None = None
    options: tyro.conf.Suppress[Mapping[str, Option] | None] = None

    def run(self) -> Output:
        reports = headway.api.train_seeds(self.task, replace(self, options=self.collect_options()))
        rows = [asdict(report) for report in reports]
        return Output({"runs": rows}, "Trained", rows, words=headway.api.shortfalls(reports))


@dataclass(frozen=True, kw_only=True)
class Evaluate(Common, EvaluateQuestion):
    subject: Subject
    """a run folder, a folder of runs, or pretrained:adder"""
    greedy: Annotated[int, tyro.conf.arg(name="check-greedy")] = 0

    def run(self) -> Output:
        from headway.subjects.naming import kind_of

        results = [each.to_json() for each in headway.api.evaluate_runs(self.subject, self)]
        words = list(dict.fromkeys(caution for result in results for caution in result["cautions"]))
        shown = ("run", "examples", "errors", "exact_match", "interval", "held_out", "greedy")
        if kind_of(self.subject) == "runs":
            return Output({"members": results}, "Exact match", results, words=words, shown=shown)
        return Output(results[0], "Exact match", results, [("By stratum", results[0]["strata"])], words, shown=shown)


@dataclass(frozen=True, kw_only=True)
class Heads(Common, HeadsQuestion):
    subject: Subject
    """a run folder, a folder of runs, pretrained:adder, a Hugging Face folder, or module:factory"""
    screen: int | None = None
    """quick look only: estimates all heads by the gradient of the loss, and ablates this many highest and lowest"""

    def run(self) -> Output:
        from headway.heads.population import summary
        from headway.subjects.naming import kind_of

        if self.screen is not None:
            screening = headway.api.screen_heads(self.subject, self, self.screen)
            content = screening.to_json()
            return Output(content, "Heads by the gradient", content["heads"], words=screening.findings())
        if kind_of(self.subject, self.hub) == "runs":
            found = headway.api.study_members(self.subject, self)
            shown = ("subject", "baseline", "alone", "alone_removed_together", "together", "refused")
            rows, words = list(map(summary, found.members)), found.findings()
            return Output(found.to_json(), "Heads", rows, words=words, shown=shown)
        study = headway.api.study_heads(self.subject, self)
        content = study.to_json()
        measured = ("accuracy", "drop") if study.metric == "exact" else ("loss_increase",)
        shown = ("head", *measured, "interval", "verdict", "depends_on_ablation")
        return Output(content, "Heads", content["heads"], words=study.findings(), shown=shown)


@dataclass(frozen=True, kw_only=True)
class Prune(Common, PruneQuestion):
    subject: Subject
    """a run folder, pretrained:adder, a Hugging Face folder, or module:factory"""
    heads: tuple[str, ...] = ()
    windows: str | None = None

    def run(self) -> Output:
        result = headway.api.prune(self.subject, self)
        hidden = ("removed", "findings", "by_length")
        shown = [key for key in result if key not in hidden]
        more = [("By length", result["by_length"])] if result.get("by_length") else []
        return Output(result, "Pruned", [result], more, words=result.get("findings", ()), shown=shown)


@dataclass(frozen=True, kw_only=True)
class Lengths(Common, LengthsQuestion):
    task: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="WHAT")] = "sortedness"
    """a task to train on: sortedness, addition, or your own as module:Class; your own trained model, tested as it is
    with --lengths, --probes and --examples: file.py:function that returns a headway.Subject with `problems`; or the
    folder of a Hugging Face language model"""
    positions: str = "sinusoidal,learned,none"
    index: str = "sequential"
    pooling: str | None = None
    rates: str | None = None
    train_lengths: str | None = None
    seeds: str = "1"
    lengths: str | None = None
    probes: str | None = None
    cures: str | None = None
    text: str | None = None
    out: str | None = None
    option: tuple[str, ...] = ()
    """options of the task, as NAME=VALUE"""
    options: tyro.conf.Suppress[Mapping[str, Option] | None] = None

    def run(self) -> Output:
        return headway.api.study_lengths(self.task, replace(self, options=parse_options(self.option))).to_output()


@dataclass(frozen=True)
class Certify(Common, DigitsQuestion):
    subject: Subject
    """a run folder, pretrained:certified-adder, smallest-adder, certified-sorter or certified-global-sorter; with
    --digits also your own as file.py:function"""

    def run(self) -> Output:
        if self.digits is not None:
            return headway.api.show_digits(headway.api.certify_digits(self.subject, self))
        found = headway.api.certify_run(self.subject, device=self.device, quiet=self.quiet)
        return headway.api.show_certificate(found)


@dataclass(frozen=True)
class Doctor(Common, Opening, ClassQuestion):
    subjects: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="SUBJECT")] = tyro.MISSING
    """run folders, folders of runs, pretrained:adder, or your own module:factory or file.py:factory"""
    strict: bool = False
    """count warnings as failures"""
    check: tuple[str, ...] = ()
    """your own checks to run as well, such as parity.py:parity"""
    examples: str | None = None
    """Hugging Face model: the file that holds its examples, JSONL or text"""

    def run(self) -> Output:
        if not self.subjects:
            raise HeadwayError("name a run folder, pretrained:adder, or your own module:factory, first")
        name, *others = self.subjects
        self.check_class()
        if self.each:
            return self._examine_class(name, others)
        from headway.api.examining import examine, examine_all
        from headway.subjects.naming import kind_of

        if not others and "*" not in name and kind_of(name) != "runs":
            found = examine(name, strict=self.strict, checks=self.check, device=self.device, opening=self)
            words = found.lines()
            words += [] if found.alarms else ["", "No check found a reason to withhold conclusions."]
            return Output(found.to_json(), "", [], words=words, status=found.status)
        many = examine_all(self.subjects, strict=self.strict, checks=self.check, device=self.device, quiet=self.quiet)
        members = [each.to_json() for each in many]
        content = {"schema": members[0]["schema"], "healthy": all(e.healthy for e in many), "members": members}
        words = [f"{each.subject}: {each.refused}" for each in many if each.refused]
        named = zip(many, strip_common_parts([each.subject for each in many]), strict=True)
        rows = [{**each.row(), "subject": name} for each, name in named]
        return Output(content, "Doctor", rows, words=words, status=max(each.status for each in many))

    def _examine_class(self, adapter: str, others: list[str]) -> Output:
        from headway.submissions.classroom import examine_class

        if others:
            raise HeadwayError(f"`each` takes one adapter; {others[0]!r} is another one")
        self.check_unused(adapter)
        found = examine_class(adapter, self, strict=self.strict, checks=self.check, quiet=self.quiet)
        return Output(found.to_json(), "Class", found.rows(), words=found.sentences(), status=found.status)


@dataclass(frozen=True)
class New(Common):
    what: Annotated[tyro.conf.Positional[Literal["subject"]], tyro.conf.arg(metavar="WHAT")] = tyro.MISSING
    """subject: an adapter that tells the doctor how to run your model"""
    out: str = "subject.py"
    """the file to write"""

    def run(self) -> Output:
        from headway.submissions.template import write_adapter

        file = str(write_adapter(Path(self.out)))
        words = [f"Wrote {file}. Edit it, then run: headway doctor {file}:build"]
        return Output({"file": file}, "", [], words=words)


@dataclass(frozen=True)
class Add(Common):
    a: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="A")] = tyro.MISSING
    """a whole number, as long as you like"""
    b: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="B")] = tyro.MISSING
    """another whole number"""
    subject: str = "pretrained:certified-adder"
    """the adder to use: pretrained:certified-adder, pretrained:adder or a run folder"""

    def run(self) -> Output:
        found = headway.api.add(self.a, self.b, self.subject, device=self.device)
        return Output(found, "Sum", [found])


@dataclass(frozen=True)
class Data(TaskOptions, Common):
    task: TaskName = tyro.MISSING
    """addition, sortedness, or your own as module:Class"""
    out: str = tyro.MISSING
    """folder to write the files to"""
    train: int = 10_000
    """problems in train.json"""
    val: int = 1_000
    """problems in val.json"""
    test: int = 2_000
    """problems in test.json, all of them held out"""
    seed: int = 0
    """seed of the problems"""

    def run(self) -> Output:
        from headway.tasks import create_task
        from headway.tasks.data import write_data

        counts = {"train": self.train, "val": self.val, "test": self.test}
        files = write_data(create_task(self.task, self.collect_options()), Path(self.out), counts, self.seed)
        rows = [{"file": str(file), "problems": counts[file.stem]} for file in files]
        return Output({"files": [str(file) for file in files]}, "Written", rows)


@dataclass(frozen=True)
class List(Common):
    what: Annotated[
        tyro.conf.Positional[Literal["tasks", "positions", "runs", "checks", "pretrained"]],
        tyro.conf.arg(metavar="WHAT"),
    ] = "tasks"
    """tasks, positions, runs, checks or pretrained (the models that ship with the package)"""
    root: str | None = None
    """folder of the runs to list (default: runs)"""
    where: str | None = None
    """only runs such as 'positions=rope and reach>256'; it takes = != < <= > >= ~ (contains) and or not ( )"""
    rebuild: bool = False
    """read every run again, also those whose files were edited by hand"""

    def run(self) -> Output:
        if self.what == "runs":
            from headway.compare.index import list_runs, shown_keys

            root = Path(self.root or "runs")
            items = list_runs(root, self.where, self.rebuild) if self.root is not None or root.is_dir() else []
            return Output({"items": items}, "Runs", items, shown=shown_keys(self.where))
        for flag, given in (("where", self.where is not None), ("rebuild", self.rebuild)):
            if given:
                raise HeadwayError(f"--{flag} applies only to runs; leave it out, or use 'headway list runs'")
        items = headway.api.list_items(self.what)
        return Output({"items": items}, self.what.capitalize(), items)


@dataclass(frozen=True)
class Compare(Common):
    folders: Folders = tyro.MISSING
    """folders that hold runs, at any depth"""
    by: str = tyro.MISSING
    """keys to group runs by, separated by commas, such as positions or positions,index"""
    metric: str | None = None
    """numbers to compare, separated by commas (default: exact_match, reach, in_range, heads_together, final_loss)"""
    where: str | None = None
    """only runs such as 'task=addition and steps>=500' (see 'headway list --help')"""
    out: str | None = None
    """folder for compare.json, tables, a figure and the page (default: nothing is written)"""

    def run(self) -> Output:
        from headway.compare import compare
        from headway.report.page import write_comparison

        metrics = () if self.metric is None else parse_words("metric", self.metric)
        found = compare(self.folders, parse_words("by", self.by), metrics, self.where)
        written = {} if self.out is None else write_comparison(found, Path(self.out))
        words = [*found.sentences(), *([f"The page is {written['report']}."] if written else [])]
        return Output({**found.to_json(), **written}, "Compared", found.table(), words=words)


@dataclass(frozen=True)
class Lab(Common):
    preset: Literal["quick", "full"] = "quick"
    """quick: one adder and three classifiers; full: five seeds of each"""
    out: str | None = None
    """folder for all output (default: lab, or lab-full)"""
    seed: int = 0
    """first seed"""
    open: bool = False
    """open the page in a browser at the end (on a terminal with a display it opens anyway)"""
    no_open: bool = False
    """do not open the page in a browser"""

    def run(self) -> Output:
        from headway.lab import run_lab

        if self.open and self.no_open:
            raise HeadwayError("--open and --no-open contradict each other; leave one out")
        out = Path(self.out or ("lab" if self.preset == "quick" else "lab-full"))
        found = run_lab(self.preset, out, self.seed, self.device, self.quiet)
        if self.open or (sys.stdout.isatty() and not (self.no_open or self.json)):
            open_in_browser(Path(found.content["report"]))
        return found


@dataclass(frozen=True)
class Report(Common):
    folders: Folders = tyro.MISSING
    """folders that train, heads, lengths, certify or lab wrote"""
    out: str | None = None
    """the file to write (default: report.html in the first folder)"""

    def run(self) -> Output:
        from headway.report.page import write_page

        if not self.folders:
            raise HeadwayError("name a folder that train, heads, lengths or lab wrote")
        folders = [Path(folder) for folder in self.folders]
        found = write_page(folders, Path(self.out) if self.out is not None else folders[0] / "report.html")
        missing = [f"Not included: {each['what']}; {each['command']} makes it." for each in found["missing"]]
        return Output(found, "Report", [found], words=missing, shown=("report", "bytes"))


@dataclass(frozen=True, kw_only=True)
class Sweep(Common, SweepQuestion):
    file: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="FILE")]
    """a TOML file, or a Python function that returns the same: sweep.py:build"""
    dry_run: bool = False
    """only list the trials, which of them are done, and roughly what the rest costs"""

    def run(self) -> Output:
        from headway.sweeps.sweep import plan_sweep, run_sweep

        return plan_sweep(self.file, self) if self.dry_run else run_sweep(self.file, self)


@dataclass(frozen=True)
class Bench(Common):
    names: tyro.conf.Positional[tuple[str, ...]] = ()
    """rows, or groups of them: train, population, heads, lengths, own-models, first-minutes, many-runs"""
    out: str | None = None
    """also write the rows to this file"""
    seed: int = 0
    """seed for Headway and for the references"""

    def run(self) -> Output:
        os.environ["GOMP_SPINCOUNT"] = "300000"  # OpenMP's own default, which suits the references
        from headway.bench import run_bench

        return run_bench(self.names, self.out, self.seed, self.device, self.quiet)


@dataclass(frozen=True)
class Completion(Common):
    shell: Annotated[tyro.conf.Positional[Literal["bash", "zsh", "fish"]], tyro.conf.arg(metavar="SHELL")] = "bash"
    """bash, zsh or fish"""

    def run(self) -> Output:
        import subprocess

        # in a process of its own: the parser of all commands belongs to the command line, which stands above this file
        ask = [sys.executable, "-m", "headway.cli", "--tyro-print-completion", self.shell]
        script = subprocess.run(ask, capture_output=True, text=True, check=True).stdout.rstrip()
        if self.shell == "zsh":  # tyro's is for a folder in $fpath; one that is sourced registers its function itself
            script = script.removesuffix('_tyro_headway "$@"') + "compdef _tyro_headway headway"
        return Output({"shell": self.shell, "script": script}, "", [], words=[script])
