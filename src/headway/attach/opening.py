"""Opens a SUBJECT by name: a run, pretrained:NAME, a Hugging Face model, or the result of a user's function.
`prepare_subject` finds the sites of a user's model and adds the runner."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from headway.attach.from_transformers import PROOF_EXAMPLES, subject_from_transformers
from headway.attach.module import attach_module
from headway.attach.question import Opening
from headway.attach.readers import check_reads, read_module
from headway.attach.runner import UserRunner
from headway.attach.whole import ReaderRunner, reader_of_subject
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

SubjectLike = str | Path | Run | Subject
"""a subject, a run, or the name of either"""


@contextmanager
def open_for_study(subject: SubjectLike, opening: Opening) -> Iterator[Subject]:
    """Opens a subject for a study; inside the context, a user's file can import its neighbours."""
    if isinstance(subject, str | Path):
        with import_neighbours(str(subject)):
            yield open_subject(subject, choose_device(opening.device), opening)
        return
    made = subject_of(subject) if isinstance(subject, Run) else subject
    opening.check_unused(made.name)
    yield prepare_subject(made)


def prepare_subject(subject: Subject) -> Subject:
    """Returns the subject with its runner; finds the `sites` of a user's model and proves every intervention on a few
    of the examples."""
    if subject.opened is not None and subject.opened.model is subject.model:
        return subject
    if isinstance(subject.model, Model):
        return subject.with_runner(HeadwayRunner(subject.model, subject.name))
    if not subject.sites or subject.heads:
        return subject.with_runner(_runner_without_sites(subject))
    model, reader = subject.model, subject.reader or read_module
    drawn = subject.draw(1_000, 0, False)  # the proofs use a few of these
    check_reads(model, reader, drawn)
    few = most_common_length(drawn, PROOF_EXAMPLES)
    named = None if isinstance(subject.sites, str) and subject.sites == "auto" else subject.sites
    attached = attach_module(model, named, call=lambda: reader(model, few.source, few.answer), maps=subject.maps)
    return subject.with_runner(UserRunner(attached, reader, subject.memory, subject.name))


def _runner_without_sites(subject: Subject) -> Runner:
    """Returns a runner that closes no head. A model with a reader, or with problems of any length, runs through it."""
    if subject.reader is None and subject.problems is None:
        return Runner(subject.model, subject.name)
    return ReaderRunner(subject.model, reader_of_subject(subject), subject.name)


def open_subject(name: str | Path, device: torch.device | str = "cpu", opening: Opening | None = None) -> Subject:
    """Opens the subject of that name: a run folder, pretrained:NAME, a Hugging Face folder, or module:factory."""
    opening = opening or Opening()
    kind = kind_of(name, opening.hub)
    if kind != "transformers":
        opening.check_unused(name)
        return prepare_subject(call_factory(str(name))) if kind == "factory" else subject_of(open_one(name, device))
    if opening.file is None:
        raise HeadwayError(f"{name} is a Hugging Face model and needs a file of examples: `examples=prompts.jsonl`")
    memory = parse_memory(opening.memory)
    return subject_from_transformers(
        name, opening.file, metric=opening.metric, device=device, memory=memory, hub=opening.hub
    )


def call_factory(name: str, folder: Path | None = None) -> Subject:
    """Calls a user's factory and returns its Subject. One that needs an argument is given the folder, if there is
    one."""
    return call_loaded(name, load_function(name), folder)


def call_loaded(name: str, factory: Callable[..., object], folder: Path | None = None) -> Subject:
    """Calls a user's factory that was loaded before, as `call_factory` does."""
    arguments = [] if folder is None else [folder][: _count_needed(name, factory)]
    try:
        made = factory(*arguments)
    except HeadwayError:
        raise
    except (Exception, SystemExit) as error:  # a user's function may raise anything
        cause = f"{type(error).__name__}: {error}"
        raise HeadwayError(f"{name!r} failed ({cause}); call it directly to see where") from error
    if not isinstance(made, Subject):
        raise HeadwayError(f"{name!r} returned {type(made).__name__}; a factory must return a headway.Subject")
    return made


def _count_needed(name: str, factory: Callable[..., object]) -> int:
    """Counts the arguments that a factory needs: none, or the folder."""
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):  # a builtin
        return 0
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [each.name for each in parameters if each.kind in positional and each.default is each.empty]
    if len(needed) > 1:
        raise HeadwayError(f"{name!r} needs {', '.join(needed)}; let it take nothing, or only the submission's folder")
    return len(needed)
