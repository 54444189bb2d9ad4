"""`headway lengths` as a function."""

from pathlib import Path

import torch

from headway.doctor.examination import find_vetoes
from headway.lengths import extrapolation
from headway.lengths.answer import LengthsPlan, LengthStudy
from headway.lengths.question import LengthsQuestion
from headway.machine import choose_device
from headway.question import asks
from headway.report.lengths import lengths_figures
from headway.subjects.own import subject_of


@asks(LengthsQuestion)
def study_lengths(task: str = "sortedness", question: LengthsQuestion = LengthsQuestion()) -> LengthStudy:  # noqa: B008
    """Trains each encoding with each index on short problems, tests it on long ones, and saves everything in `out`."""
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
