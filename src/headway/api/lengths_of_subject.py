"""`headway lengths subject.py:build` as a function: the length study of a user's classifier or sequence model."""

from pathlib import Path

from headway.attach.opening import call_loaded
from headway.doctor.examination import find_vetoes
from headway.lengths.question import LengthsQuestion
from headway.lengths.subject_answer import SubjectLengths
from headway.lengths.subjects import check_question, study_subject_lengths, write_subject_lengths
from headway.machine import choose_device
from headway.plugins import import_neighbours, is_plugin, load_function
from headway.report.lengths import lengths_figures
from headway.runs.config import folder_name
from headway.subjects.subject import Subject


def study_named(name: str, question: LengthsQuestion) -> SubjectLengths | None:
    """Studies the subject that a user's function makes; None if the name is of a task."""
    if not is_plugin(name):
        return None
    with import_neighbours(name):
        factory = load_function(name)
        if isinstance(factory, type):  # a task is a class; its training rejects any other
            return None
        check_question(question)
        subject = call_loaded(name, factory)
        return study_subject(subject, question, name)


def study_subject(subject: Subject, question: LengthsQuestion, name: str | None = None) -> SubjectLengths:
    """Studies a subject. One that was named is saved in `out`, or else in a folder of its name; any other only in
    `out`."""
    choose_device(question.device)
    found = study_subject_lengths(subject, question, name or "", lambda ready: find_vetoes(ready, "lengths"))
    if question.out is not None or name is not None:
        home = Path(question.out or Path("runs") / folder_name(f"lengths-{name}"))
        write_subject_lengths(found, home)
        lengths_figures(home / "lengths.json", home)
    return found
