"""What a page says of a length study of a language model: what is checked before it is shown, its findings and
headline, why a cause that was tried does not count, and its tables in Markdown."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from headway.errors import BrokenRun
from headway.report import studies
from headway.report.page.findings import NOTHING_FORBIDDEN, FindingJson, headway, join_reasons
from headway.report.page.headlines import FAR, Headline
from headway.report.page.sources import Sources
from headway.report.studies import CauseJson, LanguageLengthsFile, Real, RecallRowJson

KIND = "lengths-of-language"
NONE = "none"
KNOWN_FROM = {"given": "as given", "config": "by its config", "loss": "where its loss begins to rise"}
ANSWERS, DEPTHS = 64, 5  # the defaults of the command
Cells = list[list[str | None]]


def read_languages(sources: Sources) -> list[tuple[Path, LanguageLengthsFile]]:
    """Reads the studies of language models; raises where one contradicts itself."""
    found = sources.read(KIND, LanguageLengthsFile)
    for path, study in found:
        if fault := next(_faults(study), None):
            raise BrokenRun(f"{path} is not what Headway writes: {fault}; restore it, or make it again")
    return found


def _faults(study: LanguageLengthsFile) -> Iterator[str]:
    """Yields where a study of the right shape contradicts itself."""
    lengths, depths, tasks = study["lengths"], study["depths"], study["tasks"]
    if not lengths or lengths[0] < 1 or any(one >= other for one, other in pairwise(lengths)):
        yield "lengths are not whole numbers in rising order"
    if not depths or not tasks or len(set(tasks)) < len(tasks):
        yield "it has no depths, or no tasks, or one of them twice"
    if study["trained"] < 1:
        yield f"trained is {study['trained']}, not a length"
    seen = set[tuple[str, int, str]]()
    for place, row in enumerate(study["rows"]):
        name = row["task"], row["length"], row["cure"]
        if row["task"] not in tasks or row["length"] not in lengths or name in seen:
            yield f"rows[{place}] is of no task or length of the study, or occurs twice"
        seen.add(name)
        if (row["accuracy"] is None) != (row["cannot_run"] is not None):
            yield f"rows[{place}] has neither an accuracy nor a reason why it cannot run, or both"
        if row["accuracy"] is not None and [each["depth"] for each in row["by_depth"]] != depths:
            yield f"rows[{place}].by_depth is not of the depths of the study"
        if not all(map(_is_share, _shares(row))):
            yield f"rows[{place}] has an accuracy that is not from 0 to 1"
    for task in tasks:
        if (task, lengths[0], NONE) not in seen:
            yield f"rows lack {task} at {lengths[0]} tokens, untouched"
    yield from _faults_of_rest(study)


def _faults_of_rest(study: LanguageLengthsFile) -> Iterator[str]:
    for place, cause in enumerate(study["causes"]):
        if not all(map(_is_share, (cause["before"], cause["after"], cause["sham_accuracy"]))):
            yield f"causes[{place}] has an accuracy that is not from 0 to 1"
    for place, row in enumerate(study["cures"]):
        if not _is_share(row["in_range"]):
            yield f"cures[{place}].in_range is {row['in_range']}, not from 0 to 1"
    untouched = {each["task"] for each in study["effective"] if each["cure"] == NONE}
    for task in study["tasks"]:
        if task not in untouched:
            yield f"effective lacks {task}, untouched"
    for place, band in enumerate(study["loss"]["bands"] if study["loss"] is not None else ()):
        if not 1 <= band["first"] < band["last"]:
            yield f"loss.bands[{place}] does not end after it begins"


def _is_share(value: Real) -> bool:
    return value is None or 0 <= value <= 1


def _shares(row: RecallRowJson) -> Iterator[Real]:
    yield from (row["accuracy"], row["chance"], *(row["interval"] or ()))
    for depth in row["by_depth"]:
        yield from (depth["accuracy"], *(depth["interval"] or ()))


def shown_language(sources: Sources, path: Path, study: LanguageLengthsFile) -> dict[str, Any]:
    """Returns what the page shows of a study: what it reads of each entry, and why a cause does not count."""
    rows = [{key: row.get(key) for key in RecallRowJson.__annotations__} for row in study["rows"]]
    cures = [{key: row.get(key) for key in studies.CureJson.__annotations__} for row in study["cures"]]
    read = {key: study[key] for key in LanguageLengthsFile.__annotations__ if key in study}
    causes = [{**cause, "why_not": why_not(cause)} for cause in ordered_causes(study)]
    return {**read, "name": sources.name(path), "rows": rows, "cures": cures, "causes": causes}


def ordered_causes(study: LanguageLengthsFile) -> list[CauseJson]:
    """Returns the established causes first, then `unknown`, then those that were only tried."""

    def rank(cause: CauseJson) -> int:
        return 0 if cause["established"] else 1 if cause["cure"] is None else 2

    return sorted(study["causes"], key=rank)


def why_not(cause: CauseJson) -> str | None:
    """Says why a cause that was tried is not established; None if it is, or if no cure was tried."""
    cure, sham, gain, over = cause["cure"], cause["sham"], cause["gain"], cause["exceeds_sham"]
    if cause["established"] or cure is None:
        return None
    if cause["after"] is None:
        return f"the model cannot run under its cure, {cure}"
    if not _is_above(gain):
        return f"what {cure} brings is not shown to be a gain{_span(gain)}"
    if sham is None:
        return "there is no sham that its cure could be compared with"
    if not _is_above(over):
        return f"{cure} is not shown to bring more than its sham{_span(over)}"
    inside = cause.get("in_range_gain") or 0.0
    if not _is_above(gain, inside):
        return f"{cure} brings about as much in range, where there is nothing to cure ({inside:+.2f})"
    return cause["evidence"] or "another cause explains it better"


def _is_above(bounds: Sequence[Real] | None, least: float = 0.0) -> bool:
    return bounds is not None and bounds[0] is not None and bounds[0] > least


def _span(bounds: Sequence[Real] | None) -> str:
    if bounds is None or bounds[0] is None or bounds[1] is None:
        return ""
    return f" (the difference is {bounds[0]:+.2f} to {bounds[1]:+.2f})"


def details_of_language(path: Path, study: LanguageLengthsFile) -> dict[str, str]:
    first = study["rows"][0]
    return {
        "model": f"{study['subject']} ({study['family']})",
        "trained on": f"{study['trained']:,} tokens, {KNOWN_FROM.get(study['trained_from'], study['trained_from'])}",
        "tasks": ", ".join(study["tasks"]),
        "lengths": ", ".join(f"{length:,}" for length in study["lengths"]),
        "answers at each length": f"{first['examples']:,}, at {len(study['depths'])} depths of the context",
        "interval": "95% for every point, in the curves below; effective length at 95% for all of them together",
        "check": join_reasons(study["withheld"]) or NOTHING_FORBIDDEN,
        "command": command_of_language(path, study),
    }


def command_of_language(path: Path, study: LanguageLengthsFile) -> str:
    """Returns the command that repeats the study; which text it read is not recorded."""
    cured = {row["task"] for row in study["rows"] if row["cure"] != NONE}
    unlearned = {each["task"] for each in study["effective"] if not each["learned"]}
    cures = dict.fromkeys(row["cure"] for row in study["rows"] if row["cure"] != NONE)
    named = cures if cured & unlearned or not unlearned else ()  # named ones are measured of every task
    answers = min((each["examples"] for row in study["rows"] for each in row["by_depth"]), default=ANSWERS)
    flags: dict[str, Iterable[object]] = {
        "train-lengths": [study["trained"]] if study["trained_from"] == "given" else [],
        "lengths": study["lengths"],
        "probes": study["tasks"],
        "cures": named,
        "depths": [len(study["depths"])] if len(study["depths"]) != DEPTHS else [],
        "examples": [answers] if answers != ANSWERS else [],
        "seed": [study["seed"]] if study["seed"] else [],
        "text": [text] if (text := study.get("text")) else [],
        "out": [path.parent],
    }
    filled = {name: ",".join(map(str, values)) for name, values in flags.items()}
    words = [word for name, value in filled.items() if value for word in (f"--{name}", value)]
    return headway("lengths", study["asked"], *words)


def findings_of_language(sources: Sources, path: Path, study: LanguageLengthsFile) -> list[FindingJson]:
    reason = join_reasons(study["withheld"]) or None
    texts = ["How far it recalls"] if reason else study["findings"]
    details, name = details_of_language(path, study), sources.name(path)
    return [{"text": text, "details": details, "withheld": reason, "about": "length", "study": name} for text in texts]


def headline_of_language(path: Path, study: LanguageLengthsFile) -> Headline:
    """Answers the second question: how far it recalls, what stops it, and what to do about it."""
    reaches = [each for each in study["effective"] if each["cure"] == NONE]
    each_task = ", ".join(f"{each['task']} {_reach(each)}" for each in reaches)
    rest = f"Effective length: {each_task}.{_describe_choice(study)}"
    return {
        "about": "language",
        "question": FAR,
        "answer": _describe_reach(study),
        "rest": rest,
        "details": details_of_language(path, study),
        "withheld": join_reasons(study["withheld"]) or None,
    }


def _describe_reach(study: LanguageLengthsFile) -> str:
    """Says how far the task that stops first is recalled, and what stops it."""
    learned = [each for each in study["effective"] if each["cure"] == NONE and each["learned"]]
    if not learned:
        return "It has not learned to recall, so nothing can be said about length"
    worst = min(learned, key=lambda each: each["length"] or 0)
    far, trained = worst["length"] or 0, study["trained"]
    same = [each["task"] for each in learned if each["length"] == worst["length"]]
    it = "It" if len(same) == len(study["tasks"]) else f"On {' and '.join(same)} it"
    if not far:
        return f"{it} is not shown to keep up its recall even at {study['lengths'][0]:,} tokens"
    times = "its training length" if far == trained else f"{far / trained:.3g} times its training length"
    opening = f"{it} recalls from up to {far:,} tokens, {times}"
    if far == study["lengths"][-1]:
        return f"{opening}, as far as was tested"
    found = [each["cause"] for each in study["causes"] if each["established"] and each["task"] in same]
    return f"{opening}; what stops it: {' and '.join(dict.fromkeys(found)) or 'unknown'}"


def _describe_choice(study: LanguageLengthsFile) -> str:
    return f" {study['choices'][-1]['sentence']}" if study["choices"] else ""


def tables_of_language(study: LanguageLengthsFile) -> list[tuple[str, list[str], Cells]]:
    """Returns the tables of a study: a title, the names of the columns, and the cells of each."""
    beyond = [length for length in study["lengths"] if any(row["length"] == length for row in study["cures"])]
    found = []
    for task in study["tasks"]:
        rows = {(row["length"], row["cure"]): row for row in study["rows"] if row["task"] == task}
        reach = {each["cure"]: each for each in study["effective"] if each["task"] == task}
        inside = {(row["length"], row["cure"]): row["in_range"] for row in study["cures"] if row["task"] == task}
        cures = list(dict.fromkeys(cure for _, cure in rows))
        names = ["cure", "effective length", *(f"{length:,}" for length in study["lengths"])]
        names += [f"in range, set for {length:,}" for length in beyond] if inside else []
        cells: Cells = [
            [
                "untouched" if cure == NONE else cure,
                _reach(reach.get(cure)),
                *(_accuracy(rows.get((length, cure))) for length in study["lengths"]),
                *(_share(inside.get((length, cure))) for length in beyond if inside),
            ]
            for cure in cures
        ]
        found.append((f"{task}: accuracy at each length", names, cells))
    causes: Cells = [
        [
            each["task"],
            each["cause"],
            f"{each['length']:,}",
            each["cure"],
            *map(_share, (each["before"], each["sham_accuracy"], each["after"])),
            "yes" if each["established"] else f"no: {why}" if (why := why_not(each)) else "no",
        ]
        for each in ordered_causes(study)
    ]
    names = ["task", "cause", "length", "cure", "untouched", "with its sham", "with its cure", "established"]
    return found + ([("What stops it", names, causes)] if causes else [])


def _reach(each: studies.EffectiveJson | None) -> str | None:
    if each is None:
        return None
    return f"{each['length'] or 0:,}" if each["learned"] else "not learned"


def _accuracy(row: RecallRowJson | None) -> str | None:
    if row is None or row["accuracy"] is None:
        return None if row is None else "cannot run"
    bounds = row["interval"]
    span = "" if bounds is None or None in bounds else " ({:.2f} to {:.2f})".format(*bounds)
    return f"{row['accuracy']:.2f}{span}{', one answer' if row['constant'] else ''}"


def _share(value: Real) -> str | None:
    return None if value is None else f"{value:.2f}"
