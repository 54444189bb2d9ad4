"""Writes the headlines of a page: an answer in plain words for each question, with the evidence that it rests on.

A headline says no more than its study: it names the kind of ablation, the probe, and whether a set is proved to be the
largest or only the largest found. The page draws a small picture beside each, by what it is `about`."""

from typing import Any, TypedDict

from headway.report import studies

NEEDS, FAR, RIGHT = (
    "Which heads does it need?",
    "How far past its training length does it work?",
    "Does it work at all?",
)
Headline = TypedDict(  # noqa: UP013
    "Headline",
    {"about": str, "question": str, "answer": str, "rest": str, "details": dict[str, str], "withheld": str | None},
)


def _headline(about: str, question: str, answer: str, rest: str, details: dict[str, str]) -> list[Headline]:
    return [
        {"about": about, "question": question, "answer": answer, "rest": rest, "details": details, "withheld": None}
    ]


def headline_of_withheld(about: str, question: str, reason: str, details: dict[str, str]) -> list[Headline]:
    return [{**_headline(about, question, question, "", details)[0], "withheld": reason}]


def headline_of_lab(lab: studies.LabFile, details: list[dict[str, str]]) -> list[Headline]:
    """Says how many of all problems are right, where all were tried."""
    for row, evidence in zip(lab["runs"], details, strict=True):
        if row["interval"] is None and not row.get("withheld"):
            wrong, of = row["errors"], f"all {row['examples']:,} problems"
            answer = f"It is right on {of}" if not wrong else f"It is wrong on {wrong:,} of {of}"
            rest = "None was left out and none was sampled." + _never_trained_on(row)
            return _headline("lab", RIGHT, answer, rest, evidence)
    return []


def _never_trained_on(row: Any) -> str:
    held_out = row.get("held_out")
    if not isinstance(held_out, dict) or not held_out.get("examples"):
        return ""
    wrong = f"{held_out['errors']:,} are wrong" if held_out["errors"] else "none is wrong"
    return f" Of the {held_out['examples']:,} that it was never trained on, {wrong}."


def headline_of_population(found: studies.DistributionJson, details: dict[str, str]) -> list[Headline]:
    """Answers the first question for many runs."""
    many, gone, left = found.get("heads"), found.get("together"), found.get("alone_removed_together")
    if many is None or gone is None or left is None:
        return []
    kind, judged = found.get("ablation"), found["members"] - found["refused"]
    answer = f"In the median run {many - gone['median']:g} of {many} heads are enough"
    others = "The others" if kind is None else f"Under {kind} ablation the others"
    rest = (
        f"{others} can go together: {gone['median']:g} in the median, from {gone['least']:g} to {gone['most']:g} over "
        f"{judged:,} runs. Those that look removable one at a time leave {left['median']:.1%} of the answers right in "
        "the median when all of them go."
    )
    return _headline("seeds", NEEDS, answer, rest, details)


def _count(heads: studies.HeadsFile, names: list[str] | None) -> int:
    """Counts the units among the heads of these names, or among all: groups where they were studied as a whole."""
    return len({row.get("group") or row["head"] for row in heads["heads"] if names is None or row["head"] in names})


def headline_of_heads(heads: studies.HeadsFile, details: dict[str, str]) -> list[Headline]:
    """Answers the first question for one model."""
    gone, alone, left = heads["together"], heads["alone"], heads["alone_removed_together"]
    if gone is None or alone is None or left is None:
        return []
    groups, narrows = heads.get("units") == "groups", heads["ablation"] == "window"
    count, many, cheap = (_count(heads, names) for names in (None, gone["heads"], alone["heads"]))
    whole, unit = count, "groups of heads" if groups else "heads"
    needed, proved = whole - many, bool(gone.get("optimal"))
    if narrows:
        answer = f"It is enough if {needed} of its {whole} {unit} {'sees' if needed == 1 else 'see'} the whole context"
    else:
        answer = f"It needs {needed} of its {whole} {unit}" if proved else f"{needed} of its {whole} {unit} are enough"
    sure = "proved to be the largest set that can" if proved else "the largest set found, not proved to be the largest"
    can = "be narrowed" if narrows else "go"
    rest = f"Under {heads.get('words', heads['ablation'] + ' ablation')} the other {many} can {can} together ({sure}): "
    more, most = gone.get("loss_increase"), left.get("loss_increase")
    trap = f"{cheap} {unit} look removable one at a time; remove them together and "
    if narrows:
        trap = f"One at a time, {cheap} {unit} seem to need no more; narrow them together and "
    if (cost := heads.get("counted")) is not None and more is not None and most is not None:
        rest += f"the {cost} rises by {more:.4f}, within {heads['max_loss_increase']:g}. {trap}it rises by {most:.4f}."
    else:
        rest += f"{gone['accuracy']:.1%} of the answers are right. {trap}{1 - left['accuracy']:.1%} are wrong."
    asked = heads.get("asked", heads["ablation"])
    others = [
        f"{_count(heads, each['heads'])} under {each['ablation']}{'' if narrows else ' ablation'}"
        for each in heads["sets"] or ()
        if each["ablation"] != asked
    ]
    other = "Another window" if narrows else "Another kind of ablation"
    rest += f" {other} gives another set: {', '.join(others)}." if others else ""
    return _headline("heads", NEEDS, answer, rest, details)


def headline_of_lengths(study: studies.LengthsFile, details: dict[str, str]) -> list[Headline]:
    """Answers the second question: how far the best entry works, and what its answers are like at the next length."""
    if not study["reach"]:
        return []
    probe, trained = headline_probe(study), study["train_lengths"][1]
    rows = [row for row in study["reach"] if row["probe"] == probe]
    learned = [row for row in rows if row["worst"] is not None]
    whose = "Reach" if "subject" in study else "Reach of the worst seed"
    rest = f"{whose} on the probe {probe}: {', '.join(map(_describe_reach, rows))}."
    if not learned:
        answer = "It did not learn the task, so nothing can be said about length"
        return _headline("length", FAR, answer, rest, details)
    sound = [row for row in learned if not row.get("fails_in_range")]
    best = max(sound or learned, key=_reach_of)
    far, on = _reach_of(best), "" if sound else f"On the probe {probe} "
    if not far:
        return _headline(
            "length", FAR, f"It is not shown to work even up to {trained}, its training length", rest, details
        )
    if far > trained and not sound:
        failed = " and ".join(best.get("fails_in_range") or ())
        answer = f"It is not shown to work past {trained}, its training length: in range it may fail {failed}"
        return _headline("length", FAR, answer, rest, details)
    name = f"{best['positions']} works" if far > trained else f"{'It' if sound else 'it'} works"
    answer = f"{on}{name} up to {far:,}, {_describe_trained(far, trained)}{_describe_next(study, learned, probe, far)}"
    return _headline("length", FAR, answer, rest, details)


def headline_probe(study: studies.LengthsFile) -> str:
    """Returns the probe that a headline is about: the first, or the one on which a user's model stops first."""
    rows = study["reach"]
    if "subject" not in study or rows[0].get("fails_in_range"):
        return rows[0]["probe"]
    return min(rows, key=lambda row: row["worst"] or 0)["probe"]


def _reach_of(row: studies.ReachJson) -> int:
    every = row.get("reaches_all")
    return int((row["worst"] or 0) if every is None or row.get("fails_in_range") else every)


def _describe_trained(far: int, trained: int) -> str:
    if far == trained:
        return "its training length"
    return f"{far / trained:g} times its training length" if far > trained else f"below its training length, {trained}"


def _describe_next(study: studies.LengthsFile, learned: list[studies.ReachJson], probe: str, far: int) -> str:
    """Says what the answers of all entries are like at the first length past the reach."""
    names = {(row["positions"], row["index"]) for row in learned}
    rows = [row for row in study["rows"] if row["probe"] == probe and (row["positions"], row["index"]) in names]
    beyond = [row["length"] for row in rows if row["length"] > far]
    blocked = [
        min(each["lengths"])
        for each in study.get("remarks", ())
        if each["probe"] == probe and each["remark"].startswith("cannot run") and max(each["lengths"]) > far
    ]
    if blocked and (not beyond or min(blocked) < min(beyond)):
        return f"; at {min(blocked)} it cannot run"
    if not beyond:
        return ", as far as was tested"
    following = [row for row in rows if row["length"] == min(beyond)]
    if all(row.get("constant") for row in following):
        return f"; at {min(beyond):,} it gives every problem the same answer"
    return f"; at {min(beyond):,} at most {max(row['accuracy'] for row in following):.0%} of the answers are right"


def _describe_reach(row: studies.ReachJson) -> str:
    if row["worst"] is None:
        return f"{row['positions']} not learned"
    failed = row.get("fails_in_range")
    restriction = f" (but {' and '.join(failed)} not shown to hold in range)" if failed else ""
    return f"{row['positions']} {row['worst']:,}{restriction}"
