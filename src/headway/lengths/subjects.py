"""The length study of a user's model: every probe at every length, by the model as it is.

Problems come from the subject (drawn.py checks them), the model answers in pieces that fit memory (points.py), and
where it fails it is looked into (looking.py). The doctor's veto is asked first; subject_answer.py holds the result.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from headway.attach.opening import prepare_subject
from headway.attach.whole import ReaderRunner, reader_of_subject
from headway.errors import HeadwayError
from headway.flags import parse_numbers, parse_words
from headway.lengths.diagnosis import Diagnosis, first_failures
from headway.lengths.drawn import DEFAULT, DrawnProblems
from headway.lengths.looking import SubjectView, check_reading, describe_unrunnable, diagnose_subject
from headway.lengths.points import SubjectPoint, measure_point, unrunnable
from headway.lengths.question import LANGUAGE, LengthsQuestion
from headway.lengths.subject_answer import SubjectLengths
from headway.progress import Progress
from headway.runs import disk
from headway.runs.folder import RunFolder
from headway.subjects.drawing import FORM
from headway.subjects.subject import Subject

IN_RANGE, MOST_LENGTHS = 4_500, 9  # problems over the training lengths, and how many of these lengths are tested
TIMES = (2, 4, 8, 16)  # of the longest training length: the default test lengths
USED = (
    "examples",
    "probes",
    "lengths",
    "out",
    "seed",
    "device",
    "quiet",
    *LANGUAGE,
)  # fields that a subject's study uses

SubjectVeto = Callable[[Subject], tuple[dict[str, str], ...]]


def check_question(question: LengthsQuestion) -> None:
    """Raises where something is asked for that makes sense only where models are trained, or for a language model."""
    question.check_no_language()
    check_untrained(question, USED)


def check_untrained(question: LengthsQuestion, used: Sequence[str]) -> None:
    """Raises where a field other than these is given, which makes sense only where models are trained."""
    plain = LengthsQuestion()
    for name, value in vars(plain).items():
        given = getattr(question, name)
        if name not in used and given != value and given not in ({}, None):
            shown = given if isinstance(given, str | int | float) else ",".join(map(str, given))
            raise HeadwayError(f"`{name}={shown}` is for training, and this model is trained already; leave it out")


def study_subject_lengths(
    subject: Subject, question: LengthsQuestion, asked: str = "", veto: SubjectVeto = lambda subject: ()
) -> SubjectLengths:
    """Measures how far a user's model works; `veto` returns the checks that forbid a conclusion from it."""
    check_question(question)
    if subject.problems is None or subject.trained is None:
        raise HeadwayError(f"{subject.name} has no problems of other lengths; give Subject(problems=…): {FORM}")
    began, trained = time.monotonic(), subject.trained
    drawn = DrawnProblems(subject, question.problems, question.seed)
    probes = drawn.find_probes(parse_words("probes", question.probes))
    lengths = lengths_to_test(trained, parse_numbers("lengths", question.lengths))
    for probe in dict.fromkeys((DEFAULT, *probes)):
        drawn.check_repeats(probe, trained[1])
    runner = ReaderRunner(subject.model, reader_of_subject(subject), subject.name)
    in_range = _measure_in_range(drawn, runner)
    ready = prepare_subject(subject)
    withheld = veto(ready)
    view = SubjectView(ready, runner, drawn, [each.length for each in in_range])
    if not any(each["check"] == "causality" for each in withheld) and (leak := check_reading(view, trained[1])):
        withheld = ({"check": "causality", "reason": leak}, *withheld)
    points = _measure_points(drawn, runner, probes, lengths, question.quiet)
    found = SubjectLengths(
        name=subject.name,
        asked=asked or subject.name,
        task="problems" if drawn.task is None else drawn.task.name,
        trained=trained,
        examples=question.problems,
        seed=question.seed,
        in_range=tuple(in_range),
        points=tuple(points),
        withheld=tuple(withheld),
    )
    diagnosis = () if withheld else tuple(_diagnose(view, found))
    seconds = round(time.monotonic() - began, 1)
    read = bool(view.maps(DEFAULT, trained[1]))
    return replace(found, diagnosis=diagnosis, maps=read, seconds=seconds)


def lengths_to_test(trained: tuple[int, int], asked: Sequence[int]) -> list[int]:
    """Returns the lengths to test: those asked for, or multiples of the longest training length, and always that."""
    if any(length < 1 for length in asked):
        raise HeadwayError(f"`lengths={min(asked)}`: a test length is at least 1")
    return sorted({trained[1], *(asked or (times * trained[1] for times in TIMES))})


def lengths_in_range(trained: tuple[int, int]) -> list[int]:
    """Returns at most nine training lengths, evenly spaced, the shortest and the longest among them."""
    shortest, longest = trained
    steps = min(MOST_LENGTHS - 1, longest - shortest)
    return [shortest + round((longest - shortest) * step / max(1, steps)) for step in range(steps + 1)]


def _measure_in_range(drawn: DrawnProblems, runner: ReaderRunner) -> list[SubjectPoint]:
    """Measures the model over its training lengths, on problems of their own. It must run at all of them; lengths
    between the shortest and the longest for which there are no problems are left out."""
    assert drawn.subject.trained is not None
    lengths, found = lengths_in_range(drawn.subject.trained), []
    for length in lengths:
        try:
            problems = drawn.draw(DEFAULT, length, max(2, IN_RANGE // len(lengths)), seed=1)
        except HeadwayError:
            if length in (lengths[0], lengths[-1]):
                raise
            continue
        try:
            found.append(measure_point(runner, problems, DEFAULT, length, None, True))
        except HeadwayError:
            raise
        except Exception as error:  # a user's model may raise anything
            reason = unrunnable(drawn.subject, problems, DEFAULT, length, error).cannot_run
            where = f"{drawn.subject.name} cannot run at length {length:,}, one of its training lengths"
            raise HeadwayError(f"{where}: {reason}") from error
    return found


def _measure_points(
    drawn: DrawnProblems, runner: ReaderRunner, probes: Sequence[str], lengths: Sequence[int], quiet: bool
) -> list[SubjectPoint]:
    """Measures every probe at every length, short ones first."""
    found, task = [], drawn.task
    with Progress(f"{drawn.subject.name}: every probe at every length", quiet) as watch:
        for length in lengths:
            for probe in probes:
                problems = drawn.draw(probe, length)
                unseen = None if task is None or probe in drawn.subject.probes else task.held_out(problems)
                try:
                    found.append(measure_point(runner, problems, probe, length, unseen, probe == DEFAULT))
                except Exception as error:  # what a model raises past its training lengths is a result
                    if isinstance(error, HeadwayError) and length <= max(drawn.subject.trained or ()):
                        raise
                    found.append(unrunnable(drawn.subject, problems, probe, length, error))
                    if drawn.subject.device.type == "cuda":
                        torch.cuda.empty_cache()
                watch(len(found), len(lengths) * len(probes))
    return sorted(found, key=lambda each: (probes.index(each.probe), each.length))


def _diagnose(view: SubjectView, found: SubjectLengths) -> list[Diagnosis]:
    """Diagnoses, for each probe, the first length that fails, or else the first at which the model cannot run."""
    points = {(each.probe, each.length): each for each in found.points}
    failing = first_failures([each.point for each in found.points])
    failures = found.board.range_failures(found.entry)
    learned = found.converged and not any(each.probe == DEFAULT for each in failures)
    diagnosis = [diagnose_subject(view, points[each.probe, each.length], learned) for each in failing]
    known = {each.probe for each in diagnosis}
    for each in found.points:
        if each.cannot_run is not None and each.probe not in known:
            known.add(each.probe)
            diagnosis.append(describe_unrunnable(each))
    return diagnosis


def write_subject_lengths(found: SubjectLengths, home: Path) -> None:
    """Writes lengths.json and lengths.csv."""
    RunFolder(home).record("lengths", found.to_json())
    disk.write_bytes(home / "lengths.csv", found.to_csv().encode())
