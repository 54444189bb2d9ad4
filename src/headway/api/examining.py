"""`headway doctor` as a function."""

from __future__ import annotations

from pathlib import Path

from headway.doctor.examination import Examination, examine_subject
from headway.machine import choose_device
from headway.subjects.own import Run, open_subject, subject_of
from headway.subjects.subject import Subject


def examine(subject: Subject | Run | str | Path, *, strict: bool = False, device: str = "auto") -> Examination:
    """Whether conclusions may be drawn from a subject: what is wrong, how it shows, how to mend it."""
    if isinstance(subject, Run):
        subject = subject_of(subject)
    elif not isinstance(subject, Subject):
        subject = open_subject(subject, choose_device(device))
    return examine_subject(subject, strict)
