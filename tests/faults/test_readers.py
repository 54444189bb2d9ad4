"""Runs every reader of files that may come from elsewhere on thousands of broken ones."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from mutating import DOUBTED, REFUSED, Bench, put, take_away
from safetensors.torch import load_file

from headway.api.certifying import check_stored
from headway.attach.prompts import problems_of, read_prompts
from headway.compare.index import list_runs
from headway.heads.variants import Ledger, Variants
from headway.lengths import measuring
from headway.lengths.measuring import errors_in_range, measure_run, prepare_problems
from headway.report.page import write_page
from headway.runs import disk
from headway.runs.config import Overrides, RunConfig
from headway.runs.folder import RunFolder
from headway.runs.seal import seal
from headway.subjects.own import open_run, open_stack, subject_of
from headway.sweeps.file import read_sweep
from headway.tasks import create_task
from headway.tasks.data import Stored, read_split, write_data
from headway.training.checkpoint import Pointer, load_checkpoint
from headway.training.defaults import plan
from headway.training.loop import train_run
from headway.trials.claims import Claims
from headway.trials.execute import run_piece
from headway.trials.plan import trial_of
from headway.trials.trial import Piece, Study, Terms, metrics_of
from small import small_model

ROOT, CPU = Path(__file__).parents[2], torch.device("cpu")
SMALL = Overrides(**small_model(8, decoder_layers=1, steps=5, batch=4, warmup=1))
STUDIES = (Study("evaluate", {"examples": 50}),)
QUICK, MANY = 16, 420
"""How many broken files of each kind are tried, in `make test` and in `make proof`."""


@dataclass
class Made:
    """A finished trial, an interrupted one, and the other files that readers read."""

    home: Path
    config: RunConfig
    metrics: dict[str, Any]

    def bench(self, tmp_path: Path, name: str) -> Bench:
        return Bench(tmp_path, self.home / name)


@pytest.fixture(scope="module", autouse=True)
def few() -> Iterator[None]:
    """Repeats measurements on a few problems only."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measuring, "IN_RANGE", 50)
        patch.setattr(disk.os, "fsync", lambda descriptor: None)  # nobody pulls the plug here
        yield


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    home = tmp_path_factory.mktemp("readers")
    config = plan("addition", SMALL, 0, {"digits": 2})
    trial = trial_of(config, {})
    (result,) = run_piece(Piece((trial,), STUDIES), Terms(str(home / "trials"), shared=True))
    assert result.metrics is not None, result.error
    run = trial.folder(home / "trials").path
    shutil.copytree(run, home / "run")
    shutil.copytree(run, home / "kept")
    kept = RunFolder(home / "kept")
    errors_in_range(kept, CPU)
    measure_run(kept, _probe_problems(config), torch.float32)
    outcome(kept)
    _interrupted(home / "interrupted", config)
    _page(home / "page", run)
    write_data(create_task("addition", {"digits": 2}), home / "sums", {"train": 40}, seed=0)
    write_data(create_task("sortedness", {}), home / "sequences", {"train": 20}, seed=0)
    return Made(home, config, result.metrics)


def _interrupted(home: Path, config: RunConfig) -> None:
    class Enough(Exception):
        pass

    def watch(done: int, total: int, words: str = "") -> None:
        raise Enough

    with pytest.raises(Enough):
        train_run(config, home, device=CPU, checkpoint_every=2, watch=watch)
    assert load_checkpoint(home / "checkpoint") is not None


def _page(home: Path, run: Path) -> None:
    """Makes the input of `headway report`: an adder with its heads, a study of length, a population and so on."""
    shutil.copytree(run, home / "adder")
    (home / "lengths").mkdir()
    maps = _short(ROOT / "results/heads/maps.json")
    example = {"read": ["1"], "wanted": ["2"], "answers": {}, "maps": maps["average"]["all"]["maps"]}
    weights = RunFolder(run).training().weights_sha256
    proved = {"certified": True, "wrong": 0, "contexts": 9, "smallest_margin": 0.5, "weights_sha256": weights}
    row = {"finding": "It adds.", "examples": 9, "errors": 1, "seed": 0, "interval": [0.1, 0.9]}
    held = {"run": str(run), "about": "heads", "check": "sight", "reason": "it looks ahead."}
    for name, content in {
        "adder/heads.json": _short(ROOT / "results/heads/heads.json"),
        "adder/maps.json": {"average": maps["average"], "examples": [example]},
        "adder/certificate.json": seal(proved),
        "heads.json": _short(ROOT / "results/heads-thousand/heads.json"),
        "lengths/lengths.json": _short(ROOT / "results/lengths-plain/lengths.json"),
        "lab.json": {"runs": [row], "withheld": [held]},
    }.items():
        (home / name).write_text(json.dumps(content))


def _short(path: Path) -> Any:
    """Reads a file and cuts every list after three items."""

    def cut(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: cut(each) for key, each in value.items()}
        return [cut(each) for each in value[:3]] if isinstance(value, list) else value

    return cut(json.loads(path.read_text()))


def _probe_problems(config: RunConfig) -> Any:
    return prepare_problems(create_task(config.task, config.options), (2,), ("default",), 50, 0, CPU)


def outcome(folder: RunFolder) -> tuple[Any, Any]:
    subject = subject_of(open_run(folder))
    found = Ledger(folder.path / "heads.partial.json").measure(
        Variants(subject), subject.draw(8, 0, False), [frozenset(), frozenset(subject.heads[:1])]
    )
    return found.right.tolist(), found.loss.tolist()


def plain(path: Path) -> Any:
    """Reads a JSON file, if it is one."""
    if not path.is_file():
        raise OSError(f"{path} is no file")
    return json.loads(path.read_bytes())


def reseal(folder: RunFolder) -> None:
    """Recomputes the hashes of a run where possible, as a forger would."""
    path = folder.path / "training.json"
    try:
        record = {key: value for key, value in plain(path).items() if key != "sha256"}
        for key, name in (("config", "config.json"), ("weights", "model.safetensors"), ("log", "log.jsonl")):
            if f"{key}_sha256" in record and (folder.path / name).is_file():
                record[f"{key}_sha256"] = hashlib.sha256((folder.path / name).read_bytes()).hexdigest()
        put(path, json.dumps(seal(record)).encode())
    except (OSError, ValueError, TypeError, AttributeError, RecursionError, OverflowError):
        pass


def reseal_json(path: Path, key: str = "sha256") -> None:
    try:
        content = {name: value for name, value in plain(path).items() if name != key}
        whole = json.dumps(content, sort_keys=True)
        put(path, json.dumps({**content, key: hashlib.sha256(whole.encode()).hexdigest()}).encode())
    except (OSError, ValueError, TypeError, AttributeError, RecursionError, OverflowError):
        pass


def anything(found: Any) -> bool:
    return True


def per_file(many: bool, files: int) -> int:
    return max(2, (MANY if many else QUICK) // files)


def run_folder(made: Made, tmp_path: Path, many: bool) -> Bench:
    """Opens a finished run, as every study does."""
    bench = made.bench(tmp_path, "run")
    folder, weights = RunFolder(bench.inside), load_file(made.home / "run" / "model.safetensors")

    def same(run: Any) -> bool:
        state = run.model.state_dict()
        return run.config == made.config and all(torch.equal(state[name], each) for name, each in weights.items())

    files = [bench.inside / name for name in ("config.json", "training.json", "log.jsonl", "model.safetensors")]
    for path in files:
        bench.breaks(path, lambda: open_run(folder), same, per_file(many, 4))
    return bench


def forged_run(made: Made, tmp_path: Path, many: bool) -> Bench:
    """Opens a finished run whose hashes were recomputed: whatever opens must be usable."""
    bench = made.bench(tmp_path, "run")
    folder = RunFolder(bench.inside)

    def opened() -> None:
        run = open_run(folder)
        folder.log_lines()
        assert "/" not in run.config.name + run.config.address
        open_stack([folder, folder], "cpu")

    for name in ("config.json", "config.json", "training.json", "log.jsonl", "model.safetensors"):
        bench.breaks(bench.inside / name, opened, anything, per_file(many, 5), lambda: reseal(folder))
    return bench


def checkpoint(made: Made, tmp_path: Path, many: bool) -> Bench:
    bench = made.bench(tmp_path, "interrupted")
    folder = bench.inside / "checkpoint"
    (state,) = folder.glob("step-*.safetensors")
    weights = load_file(state)

    def same(found: Any) -> bool:
        return found is None or all(torch.equal(found[0][name], each) for name, each in weights.items())

    for path in (folder / "latest.json", state):
        bench.breaks(path, lambda: load_checkpoint(folder), same, per_file(many, 2))
    return bench


def forged_checkpoint(made: Made, tmp_path: Path, many: bool) -> Bench:
    """Resumes a run from a checkpoint with recomputed hashes, or with a broken log or config."""
    bench = made.bench(tmp_path, "interrupted")
    folder = bench.inside / "checkpoint"
    (state,) = folder.glob("step-*.safetensors")

    def forge() -> None:
        try:
            record = {key: value for key, value in plain(folder / "latest.json").items() if key != "seal"}
            if state.is_file():
                record["sha256"] = hashlib.sha256(state.read_bytes()).hexdigest()
            put(folder / "latest.json", json.dumps({**record, "seal": Pointer(**record).seal}).encode())
        except (OSError, ValueError, TypeError, AttributeError, RecursionError, OverflowError):
            pass

    def go_on() -> Any:
        return train_run(made.config, bench.inside, device=CPU, resume=True)

    for path in (state, folder / "latest.json", bench.inside / "log.jsonl", bench.inside / "config.json"):
        bench.breaks(path, go_on, anything, per_file(many, 4), forge)
    return bench


def record_of_a_trial(made: Made, tmp_path: Path, many: bool) -> Bench:
    bench = made.bench(tmp_path, "run")
    folder = RunFolder(bench.inside)

    def found() -> Any:
        return metrics_of(folder, made.config, STUDIES)

    def same(metrics: Any) -> bool | str:
        return DOUBTED if metrics is None else metrics == made.metrics

    files = [path for path in sorted(bench.whole) if path.name != "environment.json"]
    for path in files:
        bench.breaks(path, found, same, per_file(many, len(files)))
    record = bench.inside / "trial.json"
    bench.breaks(record, found, anything, per_file(many, 2), lambda: reseal_json(record))
    return bench


def trial_made_again(made: Made, tmp_path: Path, many: bool) -> Bench:
    """Repeats a broken trial in a sweep: the numbers are the same in the end."""
    bench = made.bench(tmp_path, "trials")
    piece, terms = Piece((trial_of(made.config, {}),), STUDIES), Terms(str(bench.inside), shared=True)

    def again() -> Any:
        (result,) = run_piece(piece, terms)
        assert result.kind in ("", "CannotWrite", "HeadwayError", "BrokenRun"), (result.error, result.tail)
        return result.metrics

    def same(metrics: Any) -> bool | str:
        return REFUSED if metrics is None else metrics == made.metrics

    files = [path for path in sorted(bench.whole) if path.suffix != ".lock" and path.name != "environment.json"]
    for path in files:
        bench.breaks(path, again, same, per_file(many, 2 * len(files)))
    return bench


def kept_results(made: Made, tmp_path: Path, many: bool) -> Bench:
    """Reads the numbers that studies store in a run's folder so as not to measure them twice."""
    bench = made.bench(tmp_path, "kept")
    folder, problems = RunFolder(bench.inside), _probe_problems(made.config)
    readers: dict[str, Callable[[], Any]] = {
        "choosing.json": lambda: errors_in_range(folder, CPU),
        "measured.json": lambda: measure_run(folder, problems, torch.float32).to_json(),
        "heads.partial.json": lambda: outcome(folder),
    }
    for name, reader in readers.items():
        right = json.dumps(reader())
        bench.breaks(
            bench.inside / name, reader, lambda found, right=right: json.dumps(found) == right, per_file(many, 3)
        )
    return bench


SWEEP = """name = "mutants"
choose = "rate"
[base]
task = "addition"
d_model = 8
steps = 5
seeds = 2
options = {digits = 2}
[[axis]]
positions = ["learned", "none"]
rate = [0.5, 1]
[[axis]]
how = "random"
draws = 3
momentum = {low = 0.1, high = 0.9}
[[axis]]
how = "list"
trials = [{layers = 1}, {layers = 2, heads = [2, 4]}]
[studies.evaluate]
examples = 50
[resources]
timeout = "2m"
memory = "1GB"
[compare]
by = ["positions"]
metrics = ["exact_match"]
"""
TOML_VALUES = (
    "true", "-1", "0", "1e400", "nan", "inf", "99999999999999999999", "9" * 5_000, '""', '"a:b"', '"../x"', "[]",
    "[[]]", "{}", "{a = 1}", "1979-05-27T07:32:00Z", "07:32:00",
    "[" * 2_000 + "]" * 2_000, '"\\u0000"', "[1, 'a']", "1_0",
    "{a." + ".".join("b" * 3_000) + " = 1}", "0x" + "f" * 400, '"x"' * 2,
)  # fmt: skip


def sweep_file(made: Made, tmp_path: Path, many: bool) -> Bench:
    (made.home / "sweep").mkdir(exist_ok=True)
    (made.home / "sweep" / "sweep.toml").write_text(SWEEP)
    bench = made.bench(tmp_path, "sweep")
    path = bench.inside / "sweep.toml"

    def planned() -> Any:
        sweep = read_sweep(str(path))
        count = math.prod(axis.count for axis in sweep.axes)
        trials = sweep.trials() if count < 500 else []
        return [(trial.address, trial.title) for trial in trials]

    def lies_inside(found: Any) -> bool:
        return all("/" not in address and not address.startswith(".") for address, _ in found)

    bench.breaks(path, planned, lies_inside, per_file(many, 1))
    for place in [number for number, line in enumerate(SWEEP.splitlines()) if " = " in line]:
        for value in TOML_VALUES if many else TOML_VALUES[place % 8 :: 8]:
            lines: list[str] = list(SWEEP.splitlines())
            lines[place] = f"{lines[place].partition(' = ')[0]} = {value}"
            put(path, "\n".join(lines).encode())
            bench.ask(planned, lies_inside)
    return bench


def claims(made: Made, tmp_path: Path, many: bool) -> Bench:
    """Takes over the claim of a dead owner in the end, whatever its files say."""
    home = made.home / "claims"
    (home / "owners").mkdir(parents=True, exist_ok=True)
    (home / "a.claim").write_text("gone")
    record = {"place": "another machine", "pid": 4_000_000, "born": "1", "beat": 3}
    (home / "owners" / "gone.json").write_text(json.dumps(record))
    (home / ".mutex").write_text("")
    bench = made.bench(tmp_path, "claims")

    def taken() -> Any:
        with Claims(bench.inside, beat=60.0, patience=0.01) as ours:
            ours.take("a")
            time.sleep(0.02)
            return ours.take("a")

    def sentinels(found: Any) -> bool:
        return bool(found)

    for path in (bench.inside / "a.claim", bench.inside / "owners" / "gone.json", bench.inside / ".mutex"):
        bench.breaks(path, taken, sentinels, per_file(many, 3))
    return bench


def data_files(made: Made, tmp_path: Path, many: bool) -> Bench:
    bench = None
    for name, task in (("sums", create_task("addition", {"digits": 2})), ("sequences", create_task("sortedness", {}))):
        (tmp_path / name).mkdir()
        own = made.bench(tmp_path / name, name)
        own.counts = own.counts if bench is None else bench.counts
        bench = own

        def right(found: Any) -> bool:
            return isinstance(found, Stored) and found.count > 0

        bench.breaks(
            bench.inside / "train.json", lambda task=task, own=own: read_split(task, own.inside, "train"), right,
            per_file(many, 2),
        )  # fmt: skip
    assert bench is not None
    return bench


class Letters:
    """A tokenizer of letters."""

    def __call__(self, text: str = "", text_target: str = "", add_special_tokens: bool = True) -> Any:
        return SimpleNamespace(input_ids=[ord(letter) % 26 for letter in text or text_target])


def prompts(made: Made, tmp_path: Path, many: bool) -> Bench:
    (made.home / "prompts").mkdir(exist_ok=True)
    lines = [
        {"prompt": "ab", "answer": "c", "wrong": "d"},
        {"text": "abc"},
        {"tokens": [1, 2], "answer": [3, 4]},
        {"input_ids": [1, 2, 3], "attention_mask": [1, 1, 0], "labels": [4, -100]},
        {"text": "abc", "label": 1},
    ]
    (made.home / "prompts" / "prompts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    bench = made.bench(tmp_path, "prompts")
    config = SimpleNamespace(vocab_size=30, max_position_embeddings=20, num_labels=30)
    config.get_text_config = lambda: config
    bare = SimpleNamespace()
    bare.get_text_config = lambda: bare
    path = bench.inside / "prompts.jsonl"
    for own in (config, bare):
        model = SimpleNamespace(config=own)
        bench.breaks(
            path, lambda model=model: problems_of(read_prompts(path, model, Letters())), anything, per_file(many, 2)
        )
    return bench


def page(made: Made, tmp_path: Path, many: bool) -> Bench:
    bench = made.bench(tmp_path, "page")

    def written() -> Any:
        return write_page([bench.inside], bench.inside / "report.html")

    def whole(found: Any) -> bool:
        return (bench.inside / "report.html").stat().st_size == found["bytes"]

    files = [path for path in sorted(bench.whole) if path.name != "trial.json"]
    for path in files:
        bench.breaks(path, written, whole, per_file(many, len(files)))
    folder = RunFolder(bench.inside / "adder")
    for name in ("config.json", "model.safetensors"):
        bench.breaks(folder.path / name, written, whole, per_file(many, 4), lambda: reseal(folder))
    return bench


def list_of_runs(made: Made, tmp_path: Path, many: bool) -> Bench:
    """Lists runs; their index is only a cache, so a broken one is rebuilt."""
    home = made.home / "list"
    if not home.exists():
        shutil.copytree(made.home / "run", home / "run")
        list_runs(home)
    bench = made.bench(tmp_path, "list")
    bench.breaks(
        bench.inside / "runs.sqlite",
        lambda: list_runs(bench.inside),
        lambda rows: isinstance(rows, list),
        per_file(many, 1),
    )
    return bench


def certificate(made: Made, tmp_path: Path, many: bool) -> Bench:
    (made.home / "certificate").mkdir(exist_ok=True)
    content = json.loads((ROOT / "src/headway/pretrained/certified-sorter/certificate.json").read_text())
    (made.home / "certificate" / "certificate.json").write_text(json.dumps(content))
    bench = made.bench(tmp_path, "certificate")
    path = bench.inside / "certificate.json"

    def refused_or_same(found: Any) -> bool | str:
        return DOUBTED if found["certified"] is False else plain(path) == content

    def what_is_found_now(found: Any) -> bool | str:
        return DOUBTED if found["certified"] is False else found == content

    bench.breaks(path, lambda: check_stored(content, path), refused_or_same, per_file(many, 2))
    bench.breaks(
        path, lambda: check_stored(content, path), what_is_found_now, per_file(many, 2), lambda: reseal_json(path)
    )
    return bench


HOSTILE: dict[str, Any] = {
    "a number past the end": {"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 10**9]}},
    "offsets that overlap": {
        "v": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]},
        "w": {"dtype": "F32", "shape": [4], "data_offsets": [8, 24]},
    },
    "offsets backwards": {"w": {"dtype": "F32", "shape": [4], "data_offsets": [16, 0]}},
    "negative offsets": {"w": {"dtype": "F32", "shape": [4], "data_offsets": [-16, 0]}},
    "a hole": {"w": {"dtype": "F32", "shape": [2], "data_offsets": [8, 16]}},
    "a negative shape": {"w": {"dtype": "F32", "shape": [-4], "data_offsets": [0, 16]}},
    "an enormous shape": {"w": {"dtype": "F32", "shape": [2**62, 2**62], "data_offsets": [0, 16]}},
    "a shape that wraps round": {"w": {"dtype": "F32", "shape": [2**32, 2**32], "data_offsets": [0, 0]}},
    "a shape of another size": {"w": {"dtype": "F32", "shape": [5], "data_offsets": [0, 16]}},
    "many dimensions": {"w": {"dtype": "F32", "shape": [1] * 5_000 + [4], "data_offsets": [0, 16]}},
    "an unknown type": {"w": {"dtype": "F33", "shape": [4], "data_offsets": [0, 16]}},
    "a type of four bits": {"w": {"dtype": "F4", "shape": [32], "data_offsets": [0, 16]}},
    "no type": {"w": {"shape": [4], "data_offsets": [0, 16]}},
    "a list": [1, 2],
    "null": None,
    "nothing": {},
    "metadata of numbers": {"__metadata__": {"a": 1}, "w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}},
    "a path for a name": {"../../w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}},
    "right, and of another model": {"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}},
}


def headers() -> dict[str, bytes]:
    body = bytes(24)
    made = {}
    for name, header in HOSTILE.items():
        written = json.dumps(header).encode()
        made[name] = struct.pack("<Q", len(written)) + written + body
    for name, length in (("endless", 2**63), ("all ones", 2**64 - 1), ("a gigabyte", 10**9), ("zero", 0), ("one", 1)):
        made[f"a header of length {name}"] = struct.pack("<Q", length) + b"{}" + body
    for name, header in (
        ("no JSON", b"{oops"),
        ("no text", b"\xff\xfe{}"),
        ("deep", b'{"a":' * 50_000),
        ("NUL", b"\0" * 9),
    ):
        made[f"a header that is {name}"] = struct.pack("<Q", len(header)) + header + body
    return {**made, "a pickle": b"\x80\x04N.", "seven bytes": b"\x08\0\0\0\0\0\0"}


def hostile_weights(made: Made, tmp_path: Path, many: bool) -> Bench:
    """Reads weights with a forged header and matching hashes, and real ones with one header value changed."""
    bench = made.bench(tmp_path, "run")
    folder = RunFolder(bench.inside)
    for content in headers().values():
        put(folder.weights, content)
        bench.ask(lambda: open_run(folder), lambda run: False, lambda: reseal(folder))
    content = bench.whole[folder.weights]
    (size,) = struct.unpack("<Q", content[:8])
    header = bench.inside / "header.json"  # broken like any JSON, then put where it belongs
    bench.whole[header] = content[8 : 8 + size]

    def forge() -> None:
        broken = header.read_bytes() if header.is_file() else b""
        take_away(header)
        put(folder.weights, struct.pack("<Q", len(broken)) + broken + content[8 + size :])
        reseal(folder)

    bench.breaks(header, lambda: open_run(folder), anything, per_file(many, 1), forge)
    return bench


CASES: dict[str, Callable[[Made, Path, bool], Bench]] = {
    "files of a finished run": run_folder,
    "files of a run whose hashes were made to fit": forged_run,
    "checkpoints": checkpoint,
    "checkpoints whose hashes were made to fit": forged_checkpoint,
    "records of a trial": record_of_a_trial,
    "files of a trial that the sweep then takes up": trial_made_again,
    "kept results of studies": kept_results,
    "sweep files": sweep_file,
    "claims, owners and locks": claims,
    "data files": data_files,
    "files of examples": prompts,
    "files of a report": page,
    "the index of runs": list_of_runs,
    "certificates": certificate,
    "headers of weights": hostile_weights,
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.fault(
    "files of every reader mutated: cut, flipped, overwritten, retyped, nested, replaced by pipes and folders"
)
def test_a_broken_file_is_refused_in_a_sentence_or_read_right(
    case: str, made: Made, tmp_path: Path, record_outcome: Callable[[str], None]
) -> None:
    record_outcome(f"{case}: {CASES[case](made, tmp_path, False).summary()}")


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in CASES if case != "the index of runs"])
@pytest.mark.fault("files of every reader mutated, by the thousand")
def test_thousands_of_broken_files(
    case: str, made: Made, tmp_path: Path, record_outcome: Callable[[str], None]
) -> None:
    record_outcome(f"{case}: {CASES[case](made, tmp_path, True).summary()}")
