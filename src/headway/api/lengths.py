"""`headway lengths` as a function."""

from pathlib import Path

import torch
from torch import nn

from headway.api.lengths_of_language import study_folder, study_model
from headway.api.lengths_of_subject import study_named, study_subject
from headway.doctor.examination import find_vetoes
from headway.lengths import extrapolation
from headway.lengths.answer import LengthsPlan, LengthStudy
from headway.lengths.language.answer import LanguageLengths
from headway.lengths.question import LengthsQuestion
from headway.lengths.subject_answer import SubjectLengths
from headway.machine import choose_device
from headway.question import asks
from headway.report.lengths import lengths_figures
from headway.subjects.own import subject_of
from headway.subjects.subject import Subject

Studied = str | Subject | nn.Module
"""what a length study is of: the name of a task, which is trained, or a trained model; a module is a language model of
transformers"""


@asks(LengthsQuestion)
def study_lengths(
    task: Studied = "sortedness",
    question: LengthsQuestion = LengthsQuestion(),  # noqa: B008
) -> LengthStudy | SubjectLengths | LanguageLengths:
    """Finds how far past its training length a model works, and what stops it. Of a task, each encoding is trained with
    each index on short problems and tested on long ones; a user's model is tested as it is, and so is a language model
    of transformers, from its folder. Everything is saved in `out`."""
    if isinstance(task, Subject):
        return study_subject(task, question)
    if isinstance(task, nn.Module):
        return study_model(task, None, question)
    if (read := study_folder(task, question)) is not None:
        return read
    if (studied := study_named(task, question)) is not None:
        return studied
    return train_and_study(task, question)


def train_and_study(task: str, question: LengthsQuestion) -> LengthStudy:
    """Trains the encodings on a task, and studies them."""
    home = Path(question.out or Path("runs") / f"lengths-{task.replace(':', '.')}-{question.track}")
    plan = extrapolation.plan_study(task, question)
    return carry_out_plan(plan, home, choose_device(question.device), question.precision, question.quiet)


def carry_out_plan(plan: LengthsPlan, home: Path, device: torch.device, precision: str, quiet: bool) -> LengthStudy:
    """Carries out a plan, with the doctor's veto, and draws the figures."""
    found = extrapolation.study_lengths(
        plan, home, device, precision, quiet, lambda run: find_vetoes(subject_of(run), "lengths")
    )
    lengths_figures(home / "lengths.json", home)
    return found
