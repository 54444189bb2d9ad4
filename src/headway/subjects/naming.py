"""Resolves a SUBJECT's name: a run, a folder of runs, a Hugging Face model or a user's function. Imports no torch."""

from importlib.resources import files
from pathlib import Path
from typing import Literal

from headway.errors import HeadwayError, unknown
from headway.plugins import is_plugin
from headway.runs import disk
from headway.runs.folder import RunFolder, runs_in

PRETRAINED = Path(str(files("headway") / "pretrained"))

Kind = Literal["run", "runs", "transformers", "factory"]


def kind_of(subject: str | Path, hub: bool = False) -> Kind:
    """Returns what kind of thing a SUBJECT names; with `hub`, a name that is not a run folder is a model on the hub."""
    path = Path(subject)
    if str(subject).startswith("pretrained:"):
        return "run"
    if is_plugin(str(subject)):
        return "factory"
    if is_gguf(path) or is_transformers_folder(path):
        return "transformers"
    if RunFolder.is_run(path):
        return "run"
    return "transformers" if hub else "runs" if path.is_dir() else "run"


def is_gguf(name: str | Path) -> bool:
    """Returns whether a name is that of a GGUF file, whether or not it exists."""
    return Path(name).suffix.lower() == ".gguf"


def is_transformers_folder(name: str | Path) -> bool:
    """Returns whether a folder was written by `save_pretrained`."""
    try:
        content = disk.read_json(Path(name) / "config.json")
    except HeadwayError:
        return False
    return isinstance(content, dict) and "model_type" in content


def find_runs(subject: str | Path) -> list[RunFolder]:
    """Returns the run folders that a SUBJECT names: a run, a folder of runs, or pretrained:NAME."""
    home, colon, name = str(subject).partition(":")
    return [pretrained_folder(name)] if home == "pretrained" and colon else runs_in(Path(subject))


def pretrained_folder(name: str) -> RunFolder:
    known = [path.name for path in PRETRAINED.iterdir() if RunFolder.is_run(path)] if PRETRAINED.is_dir() else []
    if name not in known:
        raise unknown("pretrained model", name, known)
    return RunFolder(PRETRAINED / name)
