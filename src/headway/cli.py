"""The commands, thin: each one is a dataclass of its flags, parsed by tyro, that calls the API and prints.

Torch is imported inside the commands, so that `--help` answers at once.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import webbrowser
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from headway.attach.question import Opening
from headway.errors import HeadwayError
from headway.evaluation.question import EvaluateQuestion
from headway.flags import (
    listed_words,
    parse_numbers,
    parse_options,
    parse_range,
    parse_rates,
    parse_seeds,
)
from headway.heads.question import HeadsQuestion, PruneQuestion
from headway.output import Output, told_apart
from headway.question import Question
from headway.runs.config import Overrides
from headway.subjects.naming import kind_of

Subject = Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="SUBJECT")]


@dataclass(frozen=True, kw_only=True)
class Common(Question):
    json: bool = False
    """print exactly one JSON object on standard output"""
    quiet: bool = False


@dataclass(frozen=True)
class TaskOptions:
    digits: int | None = None
    """addition: digits of each operand"""
    base: int | None = None
    """addition: the number base"""
    operators: str | None = None
    """addition: which operators occur: +, - or +-"""
    first: str | None = None
    """addition: which answer digit comes first: most or least (significant)"""
    natural: bool = False
    """addition: answers of natural length with an end token"""
    values: int | None = None
    """sortedness: integers run from 0 to this, exclusive"""
    shortest: int | None = None
    """sortedness: shortest training sequence"""
    longest: int | None = None
    """sortedness: longest training sequence"""
    option: tuple[str, ...] = ()
    """options of a task of your own, as NAME=VALUE"""

    def chosen(self) -> dict[str, Any]:
        names = [entry.name for entry in fields(TaskOptions) if entry.name != "option"]
        chosen = {name: getattr(self, name) for name in names}
        chosen = {name: value for name, value in chosen.items() if value is not None and value is not False}
        return chosen | parse_options(self.option)


@dataclass(frozen=True)
class Train(Overrides, TaskOptions, Common):
    """Train one run, or one per seed."""

    task: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="TASK")] = tyro.MISSING
    """addition, sortedness, or your own as module:Class"""
    seed: int | None = None
    """seed of the run (default 0)"""
    seeds: str | None = None
    """several runs: 5 means seeds 0 to 4, 0,3,7 a list; they go to OUT/seed-N"""
    population: int | None = None
    """that many seeds, from --seed on, trained as one stack; they go to OUT/seed-N"""
    precision: str = "auto"
    """of a population's model on a GPU: float32 or bfloat16 (auto); weights are always kept in float32"""
    resume: bool = False
    """go on with an unfinished run"""
    checkpoint_every: int | None = None
    """steps between checkpoints (default 100; of a population on a GPU, fewer where they would take long)"""
    out: str | None = None
    """run folder (default: runs/NAME)"""
    data: str | None = None
    """train on the problems of a data folder instead of fresh ones"""
    tracker: str | None = None
    """also log to tensorboard or trackio"""

    def run(self) -> Output:
        from headway.api import shortfalls, train_seeds

        if self.seed is not None and self.seeds is not None:
            raise HeadwayError("--seed and --seeds are both given; leave one out")
        first = self.seed or 0
        seeds = first if self.seeds is None else parse_seeds(self.seeds)
        if self.population is not None:
            if self.seeds is not None:
                raise HeadwayError("--population names its seeds by --seed, the first; leave out --seeds")
            if not 1 <= self.population <= 100_000:
                raise HeadwayError(f"--population {self.population}: ask for 1 to 100,000 members")
            seeds = list(range(first, first + self.population))
        elif self.precision != "auto":
            raise HeadwayError(f"--precision {self.precision} is for a population; leave it out, or add --population")
        reports = train_seeds(
            self.task, seeds, Overrides(**self.asked()), out=self.out, device=self.device, resume=self.resume,
            checkpoint_every=self.checkpoint_every, quiet=self.quiet,
            options=self.chosen(), data=self.data, tracker=self.tracker,
            population=self.population is not None, precision=self.precision,
        )  # fmt: skip
        rows = [asdict(report) for report in reports]
        return Output({"runs": rows}, "Trained", rows, words=shortfalls(reports))


@dataclass(frozen=True, kw_only=True)
class Evaluate(Common, EvaluateQuestion):
    """Exact match, by strata, of a run or a folder of runs."""

    subject: Subject
    """a run folder, a folder of runs, or pretrained:adder"""
    greedy: Annotated[int, tyro.conf.arg(name="check-greedy")] = 0

    def run(self) -> Output:
        from headway.api import evaluate_runs

        found = evaluate_runs(self.subject, self)
        results = [each.to_json() for each in found]
        shown = ("run", "examples", "errors", "exact_match", "interval", "held_out", "greedy")
        rows = [{key: result[key] for key in shown} for result in results]
        words = list(dict.fromkeys(caution for result in results for caution in result["cautions"]))
        if kind_of(self.subject) == "runs":
            return Output({"members": results}, "Exact match", rows, words=words)
        return Output(results[0], "Exact match", rows, [("By stratum", results[0]["strata"])], words)


@dataclass(frozen=True, kw_only=True)
class Heads(Common, HeadsQuestion):
    """Which heads a model needs, and which can go together."""

    subject: Subject
    """a run folder, a folder of runs, pretrained:adder, a Hugging Face folder, or module:factory"""
    screen: int | None = None
    """only a quick look: estimates all heads by the gradient of the loss, and ablates the so many highest and lowest"""

    def run(self) -> Output:
        from headway.api.heads import screen_heads, study_heads, study_members
        from headway.heads.population import summary

        if self.screen is not None:
            screening = screen_heads(self.subject, self, self.screen)
            rows = screening.to_json()["heads"]
            return Output(screening.to_json(), "Heads by the gradient", rows, words=screening.findings())
        if kind_of(self.subject, self.hub) == "runs":
            found = study_members(self.subject, self)
            shown = ("subject", "baseline", "alone", "alone_removed_together", "together", "refused")
            rows = [{key: line[key] for key in shown if key in line} for line in map(summary, found.members)]
            return Output(found.to_json(), "Heads", rows, words=found.findings())
        study = study_heads(self.subject, self)
        content = study.to_json()
        measured = ("accuracy", "drop") if study.metric == "exact" else ("loss_increase",)
        shown = ("head", *measured, "interval", "verdict", "depends_on_ablation")
        rows = [{key: row[key] for key in shown} for row in content["heads"]]
        return Output(content, "Heads", rows, words=study.findings())


@dataclass(frozen=True, kw_only=True)
class Prune(Common, PruneQuestion):
    """Write a model without the heads that can go together."""

    subject: Subject
    """a run folder, pretrained:adder, a Hugging Face folder, or module:factory"""
    heads: tuple[str, ...] = ()

    def run(self) -> Output:
        from headway.api import prune

        result = prune(self.subject, self)
        return Output(result, "Pruned", [{key: value for key, value in result.items() if key != "removed"}])


@dataclass(frozen=True)
class Lengths(Common):
    """How far past its training length each position encoding works, and what stops it."""

    task: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="TASK")] = "sortedness"
    """sortedness, addition, or your own as module:Class"""
    positions: str = "sinusoidal,learned,none"
    """encodings, with commas between; settings after a plus: t5+distance=16, kerple+log-length"""
    index: str = "sequential"
    """position indices, with commas between: sequential, randomized+range=4096, coupled, abacus+range=256"""
    pooling: str | None = None
    """how a classifier pools its positions: mean, max or violation (default: the track's)"""
    track: str = "plain"
    """plain, tuned or open: what every encoding may do alike"""
    rates: str | None = None
    """multiples of the learning rate to choose from (default: the track's, 1 or 0.5,1,2)"""
    train_lengths: str | None = None
    """shortest and longest training length, such as 8-16 (default: the task's; of sums 1-20)"""
    seeds: str = "1"
    """seeds of each encoding: 5 means 0 to 4, 0,3,7 a list"""
    lengths: str | None = None
    """test lengths (default: 32,64,128,256; of sums 40,80,120,160 digits)"""
    probes: str | None = None
    """families of test problems, with commas between (default: all of the task)"""
    examples: int = 2000
    """problems of each probe at each length"""
    steps: int | None = None
    """training steps (default: the track's)"""
    batch: int | None = None
    """problems a step (default: the track's)"""
    model: Literal["encoder-decoder", "decoder"] | None = None
    """addition: which kind of model"""
    layers: int | None = None
    """layers (default: the track's)"""
    d_model: int | None = None
    """width of the model"""
    heads: int | None = None
    """heads at each site"""
    d_ff: int | None = None
    """width of the feed-forward blocks"""
    option: tuple[str, ...] = ()
    """options of the task, as NAME=VALUE"""
    precision: str = "auto"
    """in which a GPU trains and tests: float32 or bfloat16 (auto)"""
    out: str | None = None
    """folder of runs, numbers and pictures (default: runs/lengths-TASK-TRACK)"""
    seed: int = 0
    """seed of the test problems"""

    def run(self) -> Output:
        from headway.api import study_lengths

        own = {name: getattr(self, name) for name in ("steps", "batch", "model", "layers", "d_model", "heads", "d_ff")}
        study = study_lengths(
            self.task, positions=listed_words("positions", self.positions), index=listed_words("index", self.index),
            pooling=() if self.pooling is None else listed_words("pooling", self.pooling), track=self.track,
            rates=None if self.rates is None else parse_rates(self.rates),
            train_lengths=None if self.train_lengths is None else parse_range("train-lengths", self.train_lengths),
            lengths=None if self.lengths is None else parse_numbers("lengths", self.lengths),
            seeds=parse_seeds(self.seeds),
            probes=() if self.probes is None else listed_words("probes", self.probes), examples=self.examples,
            options=parse_options(self.option), out=self.out, seed=self.seed, device=self.device,
            precision=self.precision, quiet=self.quiet, **{k: v for k, v in own.items() if v is not None},
        )  # fmt: skip
        content = study.to_json()
        shown = ("positions", "index", "pooling", "probe", "median", "worst", "by_seed")
        rows = [{key: row[key] for key in shown} for row in content["reach"]]
        return Output(content, "Reach", rows, words=content["findings"])


@dataclass(frozen=True)
class Certify(Common):
    """Prove a windowed model right at every length, by going through every local context."""

    subject: Subject = tyro.MISSING
    """a run folder, pretrained:certified-adder or pretrained:certified-sorter"""

    def run(self) -> Output:
        from headway.api import certify_run

        found = certify_run(self.subject, device=self.device, quiet=self.quiet)
        shown = ("certified", "contexts", "wrong", "smallest_margin", "rounding")
        words = [
            "Right at every length: every context that can occur was checked."
            if found["certified"]
            else f"Not certified: {found['reason']}."
        ]
        rows = [{key: found[key] for key in shown}]
        more = [("Contexts", found["patterns"])] if found["patterns"] else []
        return Output(found, "Certificate", rows, more, words, status=0 if found["certified"] else 1)


@dataclass(frozen=True)
class Doctor(Common, Opening):
    """May a conclusion be drawn at all? Checks a model and its evaluation, and says what is wrong."""

    subjects: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="SUBJECT")] = tyro.MISSING
    """run folders, folders of runs, pretrained:adder, or module:factory or file.py:factory of your own"""
    strict: bool = False
    """warnings count as failures"""
    check: tuple[str, ...] = ()
    """checks of your own besides, such as parity.py:parity"""
    examples: str | None = None
    """of a Hugging Face model: the file that holds its examples, JSONL or text"""

    def run(self) -> Output:
        from headway.api.examining import examine, examine_all, names_many
        from headway.doctor.examination import SCHEMA

        if not self.subjects:
            raise HeadwayError("name a run folder, pretrained:adder, or a module:factory of your own")
        if not names_many(self.subjects):
            found = examine(self.subjects[0], strict=self.strict, checks=self.check, device=self.device, opening=self)
            words = [line for name in found.checks for line in found.message(name)]
            words += [] if found.alarms else ["", "Nothing found that forbids a conclusion."]
            return Output(found.to_json(), "", [], words=words, status=found.status)
        many = examine_all(self.subjects, strict=self.strict, checks=self.check, device=self.device, quiet=self.quiet)
        content = {"healthy": all(each.healthy for each in many), "members": [each.to_json() for each in many]}
        words = [f"{each.subject}: {each.refused}" for each in many if each.refused]
        names = told_apart([each.subject for each in many])
        rows = [{**each.row(), "subject": name} for each, name in zip(many, names, strict=True)]
        return Output({"schema": SCHEMA, **content}, "Doctor", rows, words=words, status=max(e.status for e in many))


@dataclass(frozen=True)
class Add(Common):
    """A sum by real decoding, digit by digit."""

    a: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="A")] = tyro.MISSING
    """a whole number, as long as you like"""
    b: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="B")] = tyro.MISSING
    """another"""
    subject: str = "pretrained:certified-adder"
    """the adder: pretrained:certified-adder, pretrained:adder or a run folder"""

    def run(self) -> Output:
        from headway.api import add

        found = add(self.a, self.b, self.subject, device=self.device)
        return Output(found, "Sum", [found])


@dataclass(frozen=True)
class Data(TaskOptions, Common):
    """Write a data set as train.json, val.json and test.json."""

    task: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="TASK")] = tyro.MISSING
    """addition, sortedness, or module:Class of your own"""
    out: str = tyro.MISSING
    """folder of the files"""
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
        files = write_data(create_task(self.task, self.chosen()), Path(self.out), counts, self.seed)
        rows = [{"file": str(file), "problems": counts[file.stem]} for file in files]
        return Output({"files": [str(file) for file in files]}, "Written", rows)


@dataclass(frozen=True)
class List(Common):
    """What there is: tasks, positions, runs or checks."""

    what: Annotated[
        tyro.conf.Positional[Literal["tasks", "positions", "runs", "checks"]], tyro.conf.arg(metavar="WHAT")
    ] = "tasks"
    """tasks, positions, runs or checks"""
    root: str | None = None
    """folder whose runs are listed (default: runs)"""
    where: str | None = None
    """which runs, such as 'positions=rope and reach>256': = != < <= > >=, ~ (contains), and, or, not, parentheses"""
    rebuild: bool = False
    """read every run anew, also those whose files were edited by other hands"""

    def run(self) -> Output:
        if self.what == "runs":
            from headway.compare.index import list_runs, shown_keys

            root = Path(self.root or "runs")
            items = list_runs(root, self.where, self.rebuild) if self.root is not None or root.is_dir() else []
            keys = shown_keys(self.where)
            return Output({"items": items}, "Runs", [{key: item.get(key) for key in keys} for item in items])
        for flag, given in (("where", self.where is not None), ("rebuild", self.rebuild)):
            if given:
                raise HeadwayError(f"--{flag} is about runs; leave it out, or say 'headway list runs'")
        from headway.api.listing import list_items

        listed = list_items(self.what)
        return Output({"items": listed}, self.what.capitalize(), listed)


@dataclass(frozen=True)
class Compare(Common):
    """Many runs in one table, grouped by what they are; says what else differs between the groups."""

    folders: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="DIR")] = tyro.MISSING
    """folders that hold runs, at any depth"""
    by: str = tyro.MISSING
    """keys that runs are grouped by, with commas between, such as positions or positions,index"""
    metric: str | None = None
    """numbers to compare, with commas between (default: exact_match, reach, in_range, heads_together, final_loss)"""
    where: str | None = None
    """which runs, such as 'task=addition and steps>=500' (see 'headway list --help')"""
    out: str | None = None
    """folder of compare.json, tables, a picture and the page (default: nothing is written)"""

    def run(self) -> Output:
        from headway.compare import compare
        from headway.report.page import write_comparison

        metrics = () if self.metric is None else listed_words("metric", self.metric)
        found = compare(self.folders, listed_words("by", self.by), metrics, self.where)
        written = {} if self.out is None else write_comparison(found, Path(self.out))
        words = [*found.sentences(), *([f"The page is {written['report']}."] if written else [])]
        return Output({**found.to_json(), **written}, "Compared", found.table(), words=words)


@dataclass(frozen=True)
class Lab(Common):
    """The main job: train, evaluate and compare, from nothing to one table."""

    preset: Literal["quick", "full"] = "quick"
    """quick: one adder and three classifiers; full: five seeds of each"""
    out: str | None = None
    """folder of everything it makes (default: lab, or lab-full)"""
    seed: int = 0
    """first seed"""
    no_open: bool = False
    """do not open the page, where there is a screen"""

    def run(self) -> Output:
        from headway.lab import run_lab

        out = Path(self.out or ("lab" if self.preset == "quick" else "lab-full"))
        found = run_lab(self.preset, out, self.seed, self.device, self.quiet)
        if (
            not self.no_open
            and not self.json
            and sys.stdout.isatty()
            and (os.name == "nt" or os.environ.get("DISPLAY"))
        ):
            webbrowser.open(Path(found.content["report"]).resolve().as_uri())
        return found


@dataclass(frozen=True)
class ReportPage(Common):
    """One HTML file of what folders hold, with the trained adder inside."""

    folders: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="DIR")] = tyro.MISSING
    """folders that train, heads, lengths, certify or lab wrote"""
    out: str | None = None
    """the file (default: report.html in the first folder)"""

    def run(self) -> Output:
        from headway.report.page import write_page

        if not self.folders:
            raise HeadwayError("name a folder that train, heads, lengths or lab wrote")
        folders = [Path(folder) for folder in self.folders]
        found = write_page(folders, Path(self.out) if self.out is not None else folders[0] / "report.html")
        missing = [f"Not in it: {each['what']}; {each['command']} makes it." for each in found["missing"]]
        return Output(found, "Report", [{"report": found["report"], "bytes": found["bytes"]}], words=missing)


@dataclass(frozen=True)
class Sweep(Common):
    """Many trials: a grid of settings and seeds, on this machine's processes or on a Ray cluster."""

    file: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="FILE")] = tyro.MISSING
    """a TOML file, or a Python function that returns the same: sweep.py:build"""
    out: str | None = None
    """folder of everything it makes (default: the file's, or runs/NAME)"""
    dry_run: bool = False
    """only say which trials there are, what is done of them, and roughly what the rest costs"""
    engine: Literal["local", "ray"] = "local"
    """processes of this machine, or tasks of a Ray cluster"""
    address: str | None = None
    """Ray: a running cluster, such as 10.0.0.1:6379 or auto (default: one of this machine alone)"""
    results: Literal["shared", "returned"] | None = None
    """Ray: nodes write into the folder, which all of them see, or send files back (default with --address)"""
    workers: int | None = None
    """local: processes at a time (default: by cores, memory and GPUs)"""
    fail_fast: bool = False
    """stop at the first trial that fails"""

    def run(self) -> Output:
        from headway.sweeps.sweep import How, plan_sweep, run_sweep

        how = How(self.engine, self.address, self.results, self.workers, self.fail_fast, self.device, self.quiet)
        return plan_sweep(self.file, self.out, how) if self.dry_run else run_sweep(self.file, self.out, how)


@dataclass(frozen=True)
class Bench(Common):
    """Ours beside a plain reference, in one process."""

    names: tyro.conf.Positional[tuple[str, ...]] = ()
    """rows, or groups of them: train, population, heads, lengths, own-models, first-minutes, many-runs"""
    out: str | None = None
    """also write the rows to this file"""
    seed: int = 0
    """seed of both sides"""

    def run(self) -> Output:
        from headway.threads import spin

        spin()  # before torch is imported
        from headway.bench import run_bench

        return run_bench(self.names, self.out, self.seed, self.device, self.quiet)


COMMANDS = {
    "train": Train,
    "evaluate": Evaluate,
    "heads": Heads,
    "prune": Prune,
    "lengths": Lengths,
    "certify": Certify,
    "doctor": Doctor,
    "add": Add,
    "data": Data,
    "list": List,
    "compare": Compare,
    "lab": Lab,
    "report": ReportPage,
    "sweep": Sweep,
    "bench": Bench,
}


def main(arguments: list[str] | None = None) -> int:
    from headway.output import parse, print_error

    words = sys.argv[1:] if arguments is None else arguments
    try:
        command = parse(COMMANDS, words)
        output = command.run()
        output.print(as_json=command.json)
        return output.status
    except HeadwayError as error:
        print_error(with_flags(str(error), words))
        return 2
    except BrokenPipeError:  # the reader of a pipe has left
        sys.stderr.close()
        return 0
    except OSError as error:  # a file that may not be read, a name that is too long
        print_error(f"{error.filename or 'the system'}: {error.strerror or error}")
        return 2
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "out of memory" not in str(error) and "can't allocate" not in str(error):
            raise
        print_error("out of memory; use a smaller --batch, --length or model")
        return 2
    except KeyboardInterrupt:
        print_error(f"stopped{how_to_go_on(words)}")
        return 130


def with_flags(sentence: str, words: list[str]) -> str:
    """A sentence that names fields of the question in backticks, with the flags of this command in their place."""
    known = {entry.name for entry in fields(COMMANDS[words[0]])} if words and words[0] in COMMANDS else set()

    def flag(found: re.Match[str]) -> str:
        name, value = found.groups()
        written = f"--{name.replace('_', '-')}" + ("" if value is None else f" {value}")
        return written if name in known else found[0]

    return re.sub(r"`(\w+)(?:=([^`]*))?`", flag, sentence)


def how_to_go_on(words: list[str]) -> str:
    again = shlex.join(["headway", *(word for word in words if word != "--resume")])
    match words[:1]:
        case ["train"] if "--population" in words:
            return f"; what has ended is kept, and the last checkpoint of the rest; go on with: {again} --resume"
        case ["train"]:
            return f"; the last checkpoint is kept, go on with: {again} --resume"
        case ["lab" | "lengths" | "sweep"]:
            return f"; what is done is kept, go on with: {again}"
    return ""


if __name__ == "__main__":
    sys.exit(main())
