"""What a SUBJECT names on the command line: a run, pretrained:NAME, a Hugging Face model, or a function of a user's."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from headway.attach.foreign import MEMORY
from headway.attach.from_transformers import is_transformers_folder, subject_from_transformers
from headway.errors import HeadwayError
from headway.plugins import is_plugin, load_function
from headway.runs.folder import RunFolder
from headway.subjects.own import open_one, subject_of
from headway.subjects.subject import Subject


@dataclass(frozen=True)
class Opening:
    """How a Hugging Face model is opened."""

    examples: str | None = None
    """a JSONL or a text file"""
    metric: str | None = None
    memory: int = MEMORY
    hub: bool = False
    """whether a name may be looked up on the hub"""


def open_subject(name: str | Path, device: torch.device | str = "cpu", opening: Opening | None = None) -> Subject:
    """The subject that a SUBJECT names: a run folder, pretrained:NAME, a Hugging Face folder, or module:factory."""
    asked = opening or Opening()
    own = f"{name} brings its own problems; a file of examples and a metric are for Hugging Face models"
    if is_plugin(str(name)):
        if asked.examples or asked.metric:
            raise HeadwayError(own)
        return _made(str(name))
    if is_transformers_folder(name) or (asked.hub and not RunFolder.is_run(Path(name))):
        if asked.examples is None:
            raise HeadwayError(f"{name} is a Hugging Face model; say what to study it on: --examples prompts.jsonl")
        return subject_from_transformers(
            name, asked.examples, metric=asked.metric, device=device, memory=asked.memory, hub=asked.hub
        )
    if opening is not None and (asked.examples or asked.metric):
        raise HeadwayError(
            f"{name} brings its own problems; a file of examples and a metric are for Hugging Face models"
        )
    return subject_of(open_one(name, device))


def _made(name: str) -> Subject:
    """What a user's function returns."""
    factory = load_function(name)
    try:
        made = factory()
    except HeadwayError:
        raise
    except (Exception, SystemExit) as error:  # whatever a user's function may raise
        raise HeadwayError(
            f"{name!r} failed ({type(error).__name__}: {error}); call it by itself to see where"
        ) from error
    if not isinstance(made, Subject):
        raise HeadwayError(f"{name!r} returned {type(made).__name__}; a factory returns a headway.Subject")
    return made
