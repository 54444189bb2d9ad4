"""Opening a subject: what a SUBJECT names on the command line (a run, pretrained:NAME, a Hugging Face model, a user's
function), and `ready`, which finds the sites of a user's model and gives the subject its runner."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from headway.attach.from_transformers import PROVED, is_transformers_folder, subject_from_transformers
from headway.attach.module import attach_module
from headway.attach.readers import check_reads, read_module
from headway.attach.runner import UserRunner
from headway.errors import HeadwayError
from headway.models import Model
from headway.plugins import is_plugin, load_function
from headway.runs.folder import RunFolder
from headway.subjects.own import open_one, subject_of
from headway.subjects.ragged import most_common_length
from headway.subjects.runner import MEMORY, HeadwayRunner, Runner
from headway.subjects.subject import Subject

LOOKED_AT = 1_000
"""problems, among which are those that interventions are proved on"""


@dataclass(frozen=True)
class Opening:
    """How a Hugging Face model is opened."""

    examples: str | None = None
    """a JSONL or a text file"""
    metric: str | None = None
    memory: int = MEMORY
    hub: bool = False
    """whether a name may be looked up on the hub"""


def ready(subject: Subject) -> Subject:
    """The subject with its runner; of a user's model whose `sites` are named these are found, and every intervention is
    proved on a few of the examples."""
    if subject.opened is not None and subject.opened.model is subject.model:
        return subject
    if isinstance(subject.model, Model):
        return subject.with_runner(HeadwayRunner(subject.model, subject.name))
    if not subject.sites or subject.heads:
        return subject.with_runner(Runner(subject.model, subject.name))
    model, reader = subject.model, subject.reader or read_module
    drawn = subject.draw(LOOKED_AT, 0, False)
    check_reads(model, reader, drawn)
    few = most_common_length(drawn, PROVED)
    named = None if isinstance(subject.sites, str) and subject.sites == "auto" else subject.sites
    attached = attach_module(model, named, call=lambda: reader(model, few.source, few.answer), maps=subject.maps)
    return subject.with_runner(UserRunner(attached, reader, subject.memory, subject.name))


def open_subject(name: str | Path, device: torch.device | str = "cpu", opening: Opening | None = None) -> Subject:
    """The subject that a SUBJECT names: a run folder, pretrained:NAME, a Hugging Face folder, or module:factory."""
    asked = opening or Opening()
    own = f"{name} brings its own problems; a file of examples and a metric are for Hugging Face models"
    if is_plugin(str(name)):
        if asked.examples or asked.metric:
            raise HeadwayError(own)
        return ready(_made(str(name)))
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
