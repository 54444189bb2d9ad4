"""Files from elsewhere run no code and write only where they should."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import pickle
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import headway
from headway.attach.from_transformers import load
from headway.cli import main
from headway.errors import HeadwayError
from headway.lengths.answer import Entry
from headway.models import EncoderDecoder
from headway.runs.config import Overrides, RunConfig
from headway.runs.folder import RunFolder
from headway.runs.seal import seal
from headway.subjects.own import open_run
from headway.sweeps.file import read_sweep
from headway.tasks import create_task
from headway.tasks.data import read_split
from headway.training.checkpoint import Pointer, load_checkpoint
from headway.training.defaults import plan
from headway.training.loop import train_run
from small import small_model

SOURCE, ROOT = Path(headway.__file__).parent, Path(__file__).parents[1]
UNPICKLES = {"pickle", "cPickle", "_pickle", "shelve", "marshal", "dill", "cloudpickle", "joblib"}
RUNS = {"eval", "exec", "compile", "__import__"}
OUTSIDE = ["../../outside", "/tmp/outside", "..", "a/../../b", "\x00", "x" * 500, ".hidden", "-rf", "a\nb"]


def calls(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def keyword_value(call: ast.Call, name: str) -> object:
    found = next((each.value for each in call.keywords if each.arg == name), None)
    return found.value if isinstance(found, ast.Constant) else found


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_source_file_unpickles_or_evaluates_text(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        named = [each.name for each in node.names] if isinstance(node, ast.Import) else []
        named += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        assert not UNPICKLES & {name.partition(".")[0] for name in named}, f"line {getattr(node, 'lineno', 0)}"
    for name, call in calls(tree):
        where = f"{name} in line {call.lineno}"
        last = name.rpartition(".")[2]
        assert name not in RUNS, where
        assert not name.startswith(("os.system", "os.popen", "os.exec", "os.spawn", "pickle.", "yaml.")), where
        assert last not in ("extractall", "unpack_archive", "read_pickle"), where
        assert keyword_value(call, "shell") in (None, False), where
        assert keyword_value(call, "allow_pickle") in (None, False), where
        assert keyword_value(call, "trust_remote_code") in (None, False), where
        if name == "torch.load":
            assert keyword_value(call, "weights_only") is True, where


class Trap:
    """Leaves a mark when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return (os.mkdir, (str(self.mark),))


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    return tmp_path / "it-ran"


def pickles(mark: Path) -> dict[str, bytes]:
    """Returns a bare pickle, and one written by torch.save."""
    torch.save({"weight": Trap(mark)}, mark.with_name("trap.pth"))
    return {"bare": pickle.dumps(Trap(mark)), "torch": mark.with_name("trap.pth").read_bytes()}


def test_the_trap_works(mark: Path) -> None:
    pickle.loads(pickles(mark)["bare"])
    assert mark.exists()


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    overrides = Overrides(**small_model(8, decoder_layers=1, steps=2, batch=4, warmup=1))
    train_run(plan("addition", overrides, 0, {"digits": 2}), tmp_path / "run", device=torch.device("cpu"))
    return RunFolder(tmp_path / "run")


def sealed_again(run: RunFolder) -> None:
    """Recomputes every hash, as an attacker would."""
    record = dict(json.loads((run.path / "training.json").read_text()).items())
    record.pop("sha256")
    for key, name in (("config", "config.json"), ("weights", "model.safetensors")):
        record[f"{key}_sha256"] = hashlib.sha256((run.path / name).read_bytes()).hexdigest()
    (run.path / "training.json").write_text(json.dumps(seal(record)))


@pytest.mark.parametrize("kind", ["bare", "torch"])
def test_a_pickle_in_the_place_of_weights_is_refused(run: RunFolder, mark: Path, kind: str) -> None:
    content = pickles(mark)[kind]
    for name in ("pytorch_model.bin", "model.pth"):  # beside the weights they are not looked at
        (run.path / name).write_bytes(content)
    open_run(run)
    run.weights.write_bytes(content)
    sealed_again(run)
    with pytest.raises(HeadwayError, match="cannot be read"):
        open_run(run)
    run.weights.unlink()
    with pytest.raises(HeadwayError, match="missing"):
        open_run(run)
    assert not mark.exists()


@pytest.mark.parametrize("kind", ["bare", "torch"])
def test_a_pickle_in_the_place_of_a_checkpoint_is_refused(tmp_path: Path, mark: Path, kind: str) -> None:
    content = pickles(mark)[kind]
    (tmp_path / "step-00000002.safetensors").write_bytes(content)
    pointer = Pointer("step-00000002.safetensors", 2, 1.0, hashlib.sha256(content).hexdigest())
    (tmp_path / "latest.json").write_text(json.dumps({**vars(pointer), "seal": pointer.seal}))
    with pytest.raises(HeadwayError, match="holds no tensors"):
        load_checkpoint(tmp_path)
    assert not mark.exists()


@pytest.mark.parametrize("kind", ["bare", "torch"])
def test_a_hugging_face_folder_with_a_pickle_is_refused(
    tmp_path: Path, mark: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    induction = ROOT / "recipes" / "induction"
    shutil.copytree(induction, folder := tmp_path / "model")
    for path in folder.glob("*.safetensors"):
        path.unlink()
    (folder / "pytorch_model.bin").write_bytes(pickles(mark)[kind])
    assert main(["heads", str(folder), "--examples", str(induction / "prompts.jsonl"), "--quiet"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not mark.exists()


def test_code_in_a_hugging_face_folder_is_not_run(tmp_path: Path, mark: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    named = {"AutoConfig": "theirs.Config", "AutoModel": "theirs.Model"}
    content = {"model_type": "theirs", "architectures": ["Model"], "auto_map": named}
    (folder / "config.json").write_text(json.dumps(content))
    (folder / "theirs.py").write_text(f"import os\nos.mkdir({str(mark)!r})\n")
    with pytest.raises(HeadwayError, match="cannot be loaded"):
        load(folder)
    assert not mark.exists()


def test_a_model_from_the_hub_is_read_from_safetensors_alone(tmp_path: Path, mark: Path, run: RunFolder) -> None:
    model = open_run(run).model
    assert isinstance(model, EncoderDecoder)
    model.save_pretrained(tmp_path / "saved")
    (tmp_path / "saved" / "model.safetensors").unlink()
    (tmp_path / "saved" / "pytorch_model.bin").write_bytes(pickles(mark)["torch"])
    with pytest.raises(Exception):  # noqa: B017, PT011  whatever huggingface_hub says of it
        EncoderDecoder.from_pretrained(tmp_path / "saved")
    assert not mark.exists()


@pytest.mark.parametrize("name", OUTSIDE)
def test_names_in_a_config_stay_inside_the_folder(name: str, tmp_path: Path) -> None:
    config = plan("addition", Overrides(), 0)
    named = replace(config, task=name, model=replace(config.model, positions=name))
    for made in (named.name, named.address, named.family, Entry(name, name, None).folder):
        assert "/" not in made
        assert "\x00" not in made
        assert made not in ("", ".", "..")
        assert not made.startswith(("-", "."))
        assert len(made) < 200
        assert (tmp_path / made).parent == tmp_path
        (tmp_path / made).mkdir(exist_ok=True)


def test_a_path_is_not_a_seed(run: RunFolder) -> None:
    raw = run.config().to_json()
    for seed in ("../../x", -1, 2**63, 1.5, None):
        with pytest.raises(HeadwayError):
            RunConfig.from_json({**raw, "seed": seed})


def test_a_pointer_cannot_name_a_file_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "elsewhere.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{}")
    digest = hashlib.sha256((tmp_path / "elsewhere.safetensors").read_bytes()).hexdigest()
    for name in ("../elsewhere.safetensors", str(tmp_path / "elsewhere.safetensors"), "..", "", "/"):
        pointer = Pointer(name, 1, 1.0, digest)
        (tmp_path / "checkpoint" / "latest.json").write_text(json.dumps({**vars(pointer), "seal": pointer.seal}))
        with pytest.raises(HeadwayError):
            load_checkpoint(tmp_path / "checkpoint")


def test_a_split_cannot_name_a_file_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "secret.json").write_text("[]")
    for name in ("../secret", str(tmp_path / "secret"), "secret"):
        with pytest.raises(HeadwayError, match="unknown split"):
            read_split(create_task("addition"), tmp_path / "data", name)


def test_a_study_of_strange_names_writes_only_into_its_folder(run: RunFolder, tmp_path: Path) -> None:
    """A report names files after folders, and figures independently of file contents."""
    home = tmp_path / "all"
    home.mkdir()
    shutil.move(run.path, home / "run")
    environment = json.loads((home / "run" / "environment.json").read_text())
    (home / "run" / "environment.json").write_text(json.dumps({**environment, "command": "../../x; touch y"}))
    before = set(tmp_path.rglob("*"))
    assert main(["report", str(home), "--out", str(home / "report.html"), "--json"]) == 0
    assert set(tmp_path.rglob("*")) - before == {home / "report.html", home / "report.md"}


def test_a_sweep_file_runs_nothing_and_a_python_file_is_named_as_one(
    tmp_path: Path, mark: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "theirs.py").write_text(f"import os\nos.mkdir({str(mark)!r})\nclass Own: pass\n")
    for written in (
        '[base]\ntask = "theirs:Own"\n',
        '[base]\ntask = "addition"\npositions = "theirs:Own"\n',
        '[base]\ntask = "addition"\n[[axis]]\npositions = ["rope", "theirs:Own"]\n',
        '[base]\ntask = "addition"\n[[axis]]\nhow = "list"\ntrials = [{index = "theirs.py:Own"}]\n',
        'name = "../../x"\n[base]\ntask = "addition"\n',
        '[base]\ntask = "addition"\noptions = {digits = "__import__(\\"theirs\\")"}\n',
    ):
        (tmp_path / "sweep.toml").write_text(written)
        with pytest.raises(HeadwayError):
            read_sweep("sweep.toml").trials()
    assert not mark.exists()


def test_a_class_named_in_a_config_is_not_imported_from_the_run_folder(
    run: RunFolder, tmp_path: Path, mark: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Users' modules are found in the current folder and among installed packages only."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    (run.path / "theirs_in_a_run.py").write_text(f"import os\nos.mkdir({str(mark)!r})\nclass Own: pass\n")
    raw = run.config().to_json()
    (run.path / "config.json").write_text(json.dumps({**raw, "task": "theirs_in_a_run:Own"}))
    sealed_again(run)
    with pytest.raises(HeadwayError, match="cannot import 'theirs_in_a_run'"):
        open_run(run)
    assert not mark.exists()
