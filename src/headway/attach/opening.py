"""Opens what a SUBJECT names: a run, pretrained:NAME, a Hugging Face model, or what a function of a user's returns; and
`ready`, which finds the sites of a user's model and gives the subject its runner."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from headway.attach.from_transformers import PROVED, subject_from_transformers
from headway.attach.module import attach_module
from headway.attach.question import Opening
from headway.attach.readers import check_reads, read_module
from headway.attach.runner import UserRunner
from headway.errors import HeadwayError
from headway.flags import parse_memory
from headway.machine import choose_device
from headway.models import Model
from headway.plugins import import_neighbours, load_function
from headway.subjects.naming import kind_of
from headway.subjects.own import Run, open_one, subject_of
from headway.subjects.ragged import most_common_length
from headway.subjects.runner import HeadwayRunner, Runner
from headway.subjects.subject import Subject

Studied = str | Path | Run | Subject
"""what a study takes: a subject, a run, or the name of either"""


@contextmanager
def opened(subject: Studied, opening: Opening) -> Iterator[Subject]:
    """The subject of a study, while it is studied: of a user's file, its neighbours can be imported."""
    if isinstance(subject, str | Path):
        with import_neighbours(str(subject)):
            yield open_subject(subject, choose_device(opening.device), opening)
        return
    made = subject_of(subject) if isinstance(subject, Run) else subject
    opening.check_unused(made.name)
    yield ready(made)


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
    drawn = subject.draw(1_000, 0, False)  # interventions are proved on some of these
    check_reads(model, reader, drawn)
    few = most_common_length(drawn, PROVED)
    named = None if isinstance(subject.sites, str) and subject.sites == "auto" else subject.sites
    attached = attach_module(model, named, call=lambda: reader(model, few.source, few.answer), maps=subject.maps)
    return subject.with_runner(UserRunner(attached, reader, subject.memory, subject.name))


def open_subject(name: str | Path, device: torch.device | str = "cpu", opening: Opening | None = None) -> Subject:
    """The subject that a SUBJECT names: a run folder, pretrained:NAME, a Hugging Face folder, or module:factory."""
    opening = opening or Opening()
    kind = kind_of(name, opening.hub)
    if kind != "transformers":
        opening.check_unused(name)
        return ready(_made(str(name))) if kind == "factory" else subject_of(open_one(name, device))
    if opening.file is None:
        raise HeadwayError(f"{name} is a Hugging Face model; say what to study it on: `examples=prompts.jsonl`")
    memory = parse_memory(opening.memory)
    return subject_from_transformers(
        name, opening.file, metric=opening.metric, device=device, memory=memory, hub=opening.hub
    )


def _made(name: str) -> Subject:
    """What a user's function returns."""
    factory = load_function(name)
    try:
        made = factory()
    except HeadwayError:
        raise
    except (Exception, SystemExit) as error:  # whatever a user's function may raise
        said = f"{type(error).__name__}: {error}"
        raise HeadwayError(f"{name!r} failed ({said}); call it by itself to see where") from error
    if not isinstance(made, Subject):
        raise HeadwayError(f"{name!r} returned {type(made).__name__}; a factory returns a headway.Subject")
    return made
