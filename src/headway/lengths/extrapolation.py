"""The study of length: train every encoding on short problems, then ask every probe at every length.

An entry is an encoding, an index and a pooling. Its seeds are one population; where a track has several learning
rates, all of them are trained and the rate that is best in range, over all seeds together, is the entry's. Nothing
longer than training is looked at before that choice.
"""

from __future__ import annotations

import hashlib
import inspect
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from headway.errors import HeadwayError
from headway.evaluation.exact import evaluate_sample
from headway.evaluation.intervals import wilson
from headway.lengths.diagnosis import Diagnosis, diagnose, diverged
from headway.lengths.probes import Measured, Questions, reach
from headway.lengths.signals import signals
from headway.lengths.tracks import Track
from headway.machine import choose_precision, cores
from headway.models import Classifier, build_model
from headway.output import as_html
from headway.positions import Positions, build_index, find_positions, used
from headway.progress import Progress
from headway.runs import disk
from headway.runs.config import Overrides, RunConfig, folder_name
from headway.runs.folder import RunFolder
from headway.runs.seal import KEY, is_sealed, sealed
from headway.subjects.own import Run, open_run
from headway.tasks import Task, create_task
from headway.training.defaults import plan
from headway.training.loop import CHECKPOINT_EVERY, train_run
from headway.training.population import Member, train_population
from headway.training.processes import CPU, train_apart

IN_RANGE = 4_500
"""problems of the training lengths on which a model is judged, and others as many that choose its learning rate"""
CHOOSING = 1
"""the seed of the latter"""
CONVERGED = 0.95
LEAST_EXAMPLES = 2_000
VERSION = 3
"""of what is measured and how: rows of another are measured again"""
SIDE_BY_SIDE = 1.3
"""runs a core each are that much faster than one after another on all cores (results/populations.md)"""


Forbids = Callable[[Run], tuple[dict[str, str], ...]]


@dataclass(frozen=True)
class Entry:
    positions: str
    index: str
    pooling: str | None

    @property
    def title(self) -> str:
        return self.positions if self.index == "sequential" else f"{self.positions}, {self.index}"

    @property
    def folder(self) -> str:
        parts = [self.positions, *([self.index] if self.index != "sequential" else []), self.pooling or ""]
        return folder_name("-".join(part for part in parts if part))


@dataclass(frozen=True)
class Asked:
    task: str
    entries: tuple[Entry, ...]
    track: Track
    seeds: tuple[int, ...]
    lengths: tuple[int, ...]
    probes: tuple[str, ...]
    options: dict[str, Any]
    overrides: Overrides = field(default_factory=Overrides)
    """of the user's own, over those of the track"""
    examples: int = LEAST_EXAMPLES
    test_seed: int = 0


@dataclass(frozen=True)
class Trained:
    """One seed of an entry, with what was measured of it."""

    entry: Entry
    seed: int
    run: str
    rate: float
    in_range: float
    interval: tuple[float, float]
    loss: float | None
    seconds: float
    measured: tuple[Measured, ...]
    diagnoses: tuple[Diagnosis, ...]

    @property
    def converged(self) -> bool:
        return self.interval[0] >= CONVERGED


@dataclass(frozen=True)
class LengthStudy:
    asked: Asked
    trained_lengths: tuple[int, int]
    runs: tuple[Trained, ...]
    precision: str
    """in which was tested"""
    signals: tuple[dict[str, Any], ...] = ()
    """what the encoding of each entry signals, of its first seed"""
    withheld: dict[Entry, tuple[dict[str, str], ...]] = field(default_factory=dict)
    """of an entry, the checks that forbid to tell what was found, each with its reason"""

    def reach(self, entry: Entry, probe: str) -> list[int | None]:
        """By seed; None where the seed has not converged, or nothing may be told of the entry."""
        own = [run for run in self.runs if run.entry == entry]
        if self.withheld.get(entry):
            return [None] * len(own)
        return [reach(run.measured, probe) if run.converged else None for run in own]

    def to_json(self) -> dict[str, Any]:
        named = {run.seed: None for run in self.runs}
        rows, reaches = [], []
        for run in self.runs:
            about = {**asdict(run.entry), "track": self.asked.track.name, "seed": run.seed}
            rows += [{**about, **each.to_json()} for each in run.measured]
        for entry in self.asked.entries:
            for probe in self.asked.probes:
                by_seed = self.reach(entry, probe)
                known = [value for value in by_seed if value is not None]
                reaches.append(
                    {
                        **asdict(entry),
                        "probe": probe,
                        "by_seed": dict(zip(map(str, named), by_seed, strict=True)),
                        "median": statistics.median_low(known) if known else None,
                        "worst": min(known) if len(known) == len(by_seed) else None,
                    }
                )
        return {
            "task": self.asked.task,
            "track": self.asked.track.name,
            "train_lengths": list(self.trained_lengths),
            "examples": self.asked.examples,
            "precision": self.precision,
            "rows": rows,
            "reach": reaches,
            "converged": [
                {
                    **asdict(run.entry),
                    "seed": run.seed,
                    "in_range": run.in_range,
                    "interval": list(run.interval),
                    "converged": run.converged,
                    "loss": run.loss,
                    "seconds": run.seconds,
                    "rate": run.rate,
                    "run": run.run,
                }
                for run in self.runs
            ],
            "diagnosis": [
                {**asdict(run.entry), "seed": run.seed, **each.to_json()} for run in self.runs for each in run.diagnoses
            ],
            "signals": list(self.signals),
            "findings": self.findings(),
            "withheld": [{**asdict(entry), **each} for entry, found in self.withheld.items() for each in found],
        }

    def _repr_html_(self) -> str:
        """Sentences and the reach of every entry in a notebook."""
        shown = ("positions", "index", "probe", "worst", "median")
        return as_html(self.findings(), [{key: row[key] for key in shown} for row in self.to_json()["reach"]])

    def findings(self) -> list[str]:
        """One sentence an entry."""
        return [self._finding(entry) for entry in self.asked.entries]

    def _finding(self, entry: Entry) -> str:
        own = [run for run in self.runs if run.entry == entry]
        learned = [run for run in own if run.converged]
        if not learned:
            best = max(run.in_range for run in own)
            return (
                f"{entry.title}: no seed of {len(own)} learned the task in range (best {best:.4f}); nothing can be "
                "said about length."
            )
        for each in self.withheld.get(entry, ()):
            return f"{entry.title}: no finding is told: {each['check']}: {each['reason']}."
        probe = self.asked.probes[0]
        reached = sorted(reach(run.measured, probe) for run in learned)
        short = f" ({len(own) - len(learned)} of {len(own)} did not learn and are left out)" if learned != own else ""
        where = f"from {reached[0]:,} to {reached[-1]:,}" if reached[0] != reached[-1] else f"{reached[0]:,}"
        longest = max(self.asked.lengths)
        words = f"{entry.title}: trained to {self.trained_lengths[1]}, reach {where} on {probe}{short}"
        if reached[0] >= longest:
            return words + f", as far as was tested, in {len(learned)} of {len(learned)} seeds."
        beyond = [each for run in learned for each in run.measured if each.probe == probe and each.length > reached[0]]
        if not any(each.errors for each in beyond):
            few = min(each.examples for each in beyond)
            return words + f"; none wrong up to {longest:,} either, but {few:,} problems are too few for the interval."
        why = next((d.sentence for run in learned for d in run.diagnoses if d.probe == probe), "")
        return f"{words}. {why}" if why else words + "."


def study_lengths(
    asked: Asked, out: Path, device: torch.device, precision: str, quiet: bool, forbids: Forbids = lambda run: ()
) -> LengthStudy:
    """Trains what is not yet trained in `out`, measures what is not yet measured, and writes lengths.json.

    `forbids` looks at one seed of each entry that has learned, and says what forbids to tell anything of it.
    """
    planned = {entry: _planned(asked, entry, out) for entry in asked.entries}
    for members in planned.values():
        for member in members:
            member.folder.check(member.config, resume=True)
    exactness = choose_precision(precision, device)
    if device.type == "cpu":
        _trained_apart([member for members in planned.values() for member in members], quiet)

    def chosen() -> Iterator[tuple[Entry, float, list[RunFolder]]]:
        for entry, members in planned.items():
            if device.type != "cpu":
                _trained(entry, members, out / entry.folder, device, exactness, quiet)
            rate, best = _chosen(asked, members, device)
            yield entry, rate, [member.folder for member in best]

    return put_together(asked, chosen(), out, device, exactness, quiet, forbids)


def put_together(
    asked: Asked,
    chosen: Iterable[tuple[Entry, float, list[RunFolder]]],
    out: Path,
    device: torch.device,
    precision: torch.dtype,
    quiet: bool,
    forbids: Forbids = lambda run: (),
) -> LengthStudy:
    """The study of these trained runs, an entry's seeds at a time; writes lengths.json."""
    task = create_task(asked.task, asked.options)
    questions = questions_of(task, asked.lengths, asked.probes, asked.examples, asked.test_seed, device)
    runs: list[Trained] = []
    shown: list[dict[str, Any]] = []
    for entry, rate, folders in chosen:
        with Progress(f"{entry.title}: every probe at every length", quiet) as watch:
            for number, folder in enumerate(folders):
                runs.append(trained(entry, rate, folder, measured(folder, questions, precision)))
                watch(number + 1, len(folders))
        first = open_run(folders[0])
        if isinstance(first.model, Classifier) and first.folder.training().final_loss is not None:
            shown.append({**asdict(entry), **signals(first.config, first.model)})
    withheld = {}
    for entry in asked.entries:
        learned = next((run for run in runs if run.entry == entry and run.converged), None)
        if learned is not None and (found := forbids(open_run(RunFolder(Path(learned.run)), device))):
            withheld[entry] = found
    used_precision = str(precision).removeprefix("torch.")
    study = LengthStudy(asked, task.lengths, tuple(runs), used_precision, tuple(shown), withheld)
    disk.write_json(out / "lengths.json", study.to_json())
    return study


def questions_of(
    task: Task, lengths: Sequence[int], probes: Sequence[str], examples: int, seed: int, device: torch.device
) -> Questions:
    """The questions of a study; the longest training length is always among them."""
    return Questions(task, sorted({task.lengths[1], *lengths}), probes, examples, seed, device)


def _planned(asked: Asked, entry: Entry, out: Path) -> list[Member]:
    """Every run of an entry; refuses what cannot be trained, or not be tested as long as asked."""
    recipe = asked.track.overrides(create_task(asked.task, asked.options))
    own = {**recipe.asked(), **asked.overrides.asked(), "positions": entry.positions, "index": entry.index}
    if entry.pooling is not None:
        own["pooling"] = entry.pooling
    members = []
    for rate in asked.track.rates:
        for seed in asked.seeds:
            config = plan(asked.task, Overrides(**own), seed, asked.options)
            training = config.training
            scaled = replace(training, learning_rate=training.learning_rate * rate, muon_rate=training.muon_rate * rate)
            config = replace(config, training=scaled)
            home = out / entry.folder / (f"rate-{rate:.12g}" if asked.track.chooses else "")
            members.append(Member(config, RunFolder(home / f"seed-{seed}")))
    check_lengths(members[0].config, asked.lengths)
    return members


def check_lengths(config: RunConfig, lengths: Sequence[int]) -> None:
    """Refuses lengths that a model has no positions for, before anything is trained."""
    task = create_task(config.task, config.options)
    model, index = build_model(config.model), build_index(config.model.index, config.model.digits, False)
    for length in lengths:
        if length < 2:
            raise HeadwayError(f"--lengths {length}: a test length is at least 2")
        source, answer = task.source_tokens(length), task.answer_tokens(length)
        tokens = source + answer if config.model.kind == "decoder" else source
        index.check_length(tokens, answer)
        for name, part in model.named_children():
            if isinstance(part, Positions):
                of_source = config.model.kind == "encoder-decoder" and name.startswith("source")
                own = answer if name.startswith("answer") else tokens
                part.check_length(used(type(part), index, own, 0 if of_source else answer))


def _trained(
    entry: Entry, members: Sequence[Member], home: Path, device: torch.device, precision: torch.dtype, quiet: bool
) -> None:
    """An entry's runs as one population, on a GPU."""
    if not all(member.folder.complete for member in members):
        with Progress(f"{entry.title}: {len(members)} runs", quiet) as watch:
            train_population(members, home, device=device, precision=precision, resume=True, watch=watch)


def _trained_apart(members: Sequence[Member], quiet: bool) -> None:
    """All runs of the study on a CPU: a core each, in rounds; those that would leave too many cores idle in a last
    round, one after another on all cores."""
    lanes = min(cores(), len(members))
    rest = len(members) % lanes
    alone = rest if rest < lanes / SIDE_BY_SIDE else 0
    # by their place among all, not among those left: a study that goes on rounds as it did before
    together = [member for member in members[: len(members) - alone] if not member.folder.complete]
    if lanes == 1:
        alone, together = len(members), []
    if together:
        with Progress(f"{len(together)} runs", quiet) as watch:
            train_apart(together, resume=True, checkpoint_every=CHECKPOINT_EVERY, watch=watch, alike=False)
    for member in members[len(members) - alone :]:
        if not member.folder.complete:
            with Progress(member.config.name, quiet) as watch:
                train_run(member.config, member.folder.path, device=CPU, resume=True, watch=watch, may_diverge=True)


def _chosen(asked: Asked, members: Sequence[Member], device: torch.device) -> tuple[float, list[Member]]:
    """The rate that is best in range over all seeds, and its runs."""
    seeds = len(asked.seeds)
    by_rate = [members[start : start + seeds] for start in range(0, len(members), seeds)]
    if len(by_rate) == 1:
        return asked.track.rates[0], list(by_rate[0])

    wrong = [sum(errors_in_range(member.folder, device) for member in group) for group in by_rate]
    best = min(range(len(wrong)), key=wrong.__getitem__)
    return asked.track.rates[best], list(by_rate[best])


def errors_in_range(folder: RunFolder, device: torch.device) -> int:
    """By what a rate is chosen: how many of the problems for that purpose a run has wrong."""
    kept, weights = folder.path / "choosing.json", folder.training().weights_sha256
    content = _kept(kept)
    if content.get("weights") != weights:
        content = {"weights": weights, "errors": _in_range(open_run(folder, device), CHOOSING)[0]}
        disk.write_json(kept, sealed(content))
    return content["errors"]


def _kept(path: Path) -> dict[str, Any]:
    """What was measured before; nothing where the file is missing, broken or was altered."""
    try:
        content = disk.read_json(path)
    except HeadwayError:
        return {}
    return {key: value for key, value in content.items() if key != KEY} if is_sealed(content) else {}


def _source_of(positions: str) -> str | None:
    """A hash of a user's own encoding, whose numbers change when it does."""
    if ":" not in positions:
        return None
    kind = find_positions(positions).kind
    return hashlib.sha256(inspect.getsource(kind).encode()).hexdigest()


def _in_range(run: Run, seed: int) -> tuple[int, int]:
    """How many of how many fresh problems of the training lengths are wrong."""
    found = evaluate_sample(run.model, run.task, IN_RANGE, seed=seed)
    return found.errors, found.examples


def measured(folder: RunFolder, questions: Questions, precision: torch.dtype) -> dict[str, Any]:
    """A run's rows: those kept in its folder where they answer the same questions, else measured now."""
    run = open_run(folder, questions.device)
    ended = folder.training()
    key = {
        "version": VERSION,
        "source": _source_of(run.config.model.positions),
        "weights": ended.weights_sha256,
        **questions.key(),
        "precision": str(precision).removeprefix("torch."),
    }
    kept = folder.path / "lengths.json"
    known = content = _kept(kept)
    if content.get("asked") != key:
        errors, examples = _in_range(run, 0)
        fast = run.model if precision == torch.float32 else run.model.to(precision)
        rows = questions.measure(fast)
        run = run if precision == torch.float32 else open_run(folder, questions.device)
        finite = ended.final_loss is not None
        found = diagnose(run.model, run.task, rows, questions.device) if finite else [diverged(rows)]
        interval = wilson(examples - errors, examples).to_json()
        content = {
            "asked": key,
            "in_range": 1 - errors / examples,
            "interval": interval,
            "rows": [row.to_json() for row in rows],
            "diagnosis": [each.to_json() for each in found],
        }
    rows = [Measured.from_json(row) for row in content["rows"]]
    reaches = {probe: reach(rows, probe) for probe in questions.probes}
    told = {**content, "reach": reaches, "converged": content["interval"][0] >= CONVERGED}
    if told != known:  # measured now
        folder.record("lengths", sealed(told))
    return told


def trained(entry: Entry, rate: float, folder: RunFolder, content: dict[str, Any]) -> Trained:
    """One seed of an entry, with what `measured` says of it."""
    ended = folder.training()
    return Trained(
        entry,
        folder.config().seed,
        str(folder.path),
        rate,
        content["in_range"],
        tuple(content["interval"]),
        ended.final_loss,
        ended.seconds,
        tuple(Measured.from_json(row) for row in content["rows"]),
        tuple(Diagnosis.from_json(each) for each in content["diagnosis"]),
    )
