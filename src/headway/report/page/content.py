"""Collects what a page shows from the files of runs and studies; nothing is computed here."""

import json
from itertools import chain
from pathlib import Path
from typing import Any

from headway.compare.describe import Values
from headway.errors import BrokenRun, HeadwayError
from headway.report import studies
from headway.report.figures import thin_out
from headway.report.lengths import complete_lengths
from headway.report.lengths_of_subject import KIND, as_lengths_file
from headway.report.page import findings, headlines, language
from headway.report.page.models import pack_adder, pack_length_models
from headway.report.page.sources import Sources, pack_files
from headway.report.training import thin_log
from headway.runs.folder import RunFolder
from headway.runs.metrics import COSTS
from headway.runs.seal import find_certificate_fault

FACTS = {
    "headway": "Headway", "python": "Python", "torch": "PyTorch", "system": "system", "device": "device",
    "threads": "threads", "started": "started",
}  # fmt: skip
"""keys of environment.json, and their titles in the page"""


MOST_CURVES = 8  # runs whose training is drawn in the page


def build_content(sources: Sources) -> dict[str, Any]:
    heads = [(path, complete_heads(study)) for path, study in sources.read("heads", studies.HeadsFile)]
    populations = sources.read("heads-population", studies.PopulationFile)[:1]
    lengths = [(path, complete_lengths(study)) for path, study in sources.read("lengths", studies.LengthsFile)]
    lengths += [(path, as_lengths_file(study)) for path, study in sources.read(KIND, studies.SubjectLengthsFile)]
    languages = language.read_languages(sources)
    comparisons = sources.read("compare", studies.ComparisonFile)
    labs = sources.read("lab", studies.LabFile)[-1:]
    maps = studies.fill_defaults({}, studies.MapsFile)
    for path, _ in heads[:1]:
        if (maps_file := path.with_name("maps.json")).exists():
            maps = studies.read_study(maps_file, studies.MapsFile)
    adder, (files, left_out) = sources.adder, pack_files(sources)
    seeds = _seeds([study for _, study in heads], [study for _, study in populations])
    made = studies.read_study(sources.runs[0].path / "environment.json", studies.Environment) if sources.runs else {}
    commands = [command for command in map(findings.recorded_command, sources.runs) if command]
    commands += [findings.command_of_comparison(*each) for each in comparisons]
    found = [findings.findings_of_heads(sources, *each, len(seeds)) for each in heads[:1]]
    found += [findings.findings_of_population(*each) for each in populations]
    found += [findings.findings_of_lengths(sources, *each) for each in lengths]
    found += [language.findings_of_language(sources, *each) for each in languages]
    found += [findings.findings_of_comparison(*each) for each in comparisons]
    found += [findings.findings_of_lab(sources, *each) for each in labs]
    about_lengths = bool(labs) or any(study["task"] == "sortedness" and "subject" not in study for _, study in lengths)
    return {
        "title": f"Headway: {sources.root.name or sources.root}",
        "headlines": _headlines(sources, heads, populations, lengths, labs, len(seeds))
        + [language.headline_of_language(*each) for each in languages[:1] if not lengths],
        "findings": list(chain.from_iterable(found)),
        "model": None if adder is None else {"run": sources.name(adder.path), **pack_adder(adder)},
        "only": None,
        "heads": next((study for _, study in heads), None),
        "studies": [sources.name(path.parent) for path, _ in heads],
        "maps": None if maps["average"] is None else _round_maps(maps["average"]["all"]["maps"]),
        "several": maps["several"],
        "examples": [{**each, "maps": _round_maps(each["maps"])} for each in maps["examples"] if adder is None],
        "seeds": seeds,
        "lengths": [{"name": sources.name(path), **study} for path, study in lengths],
        "languages": [language.shown_language(sources, *each) for each in languages],
        "comparisons": [_comparison(sources, *each) for each in comparisons],
        "certificates": [_certificate(sources, *each) for each in sources.read("certificate", studies.CertificateFile)],
        "made": {
            "facts": {title: str(made[key]) for key, title in FACTS.items() if made.get(key) is not None},
            "commands": list(dict.fromkeys(commands)),
            "runs": [_run(sources, run) for run in sources.runs],
            "curves": [curve for run in sources.runs[:MOST_CURVES] for curve in _training_curve(sources, run)],
        },
        "shipped": _shipped() if about_lengths else None,
        "tries": pack_length_models(sources.runs, sources.name, about_lengths),
        "missing": findings.missing_parts(sources),
        "files": files,
        "left_out": left_out,
    }


def _headlines(
    sources: Sources,
    heads: list[tuple[Path, studies.HeadsFile]],
    populations: list[tuple[Path, studies.PopulationFile]],
    lengths: list[tuple[Path, studies.LengthsFile]],
    labs: list[tuple[Path, studies.LabFile]],
    seeds: int,
) -> list[headlines.Headline]:
    """Returns the answers to the questions, of the first study of each kind."""
    found: list[headlines.Headline] = []
    for path, lab in labs:
        details = [each["details"] for each in findings.findings_of_lab(sources, path, lab)]
        found += headlines.headline_of_lab(lab, details[: len(lab["runs"])])
    for path, study in heads[:1]:
        details = findings.details_of_heads(sources, path, study, seeds)
        if study["withheld"]:
            reasons = findings.join_reasons(study["withheld"])
            found += headlines.headline_of_withheld("heads", headlines.NEEDS, reasons, details)
        else:
            found += headlines.headline_of_heads(study, details)
    for path, study in populations if not heads else ():
        found += headlines.headline_of_population(study["distribution"], findings.details_of_population(path, study))
    for path, study in lengths[:1]:
        details = findings.details_of_lengths(sources, path, study)
        if "subject" in study and study["withheld"]:
            reasons = findings.join_reasons(study["withheld"])
            found += headlines.headline_of_withheld("length", headlines.FAR, reasons, details)
        else:
            found += headlines.headline_of_lengths(study, details)
    return found


def _shipped() -> dict[str, Any]:
    """Returns the encodings that do reach, as they were measured for the package (recipes/ship_lengths.py)."""
    return json.loads((Path(__file__).parent / "shipped.json").read_text(encoding="utf-8"))


def complete_heads(study: studies.HeadsFile) -> studies.HeadsFile:
    """Fills in what older files of heads lack, and the unit of costs where that is a loss."""
    study = studies.fill_defaults(study, studies.HeadsFile)
    by_loss = study["interval_of"] == "loss_increase"
    return {"counted": COSTS.get(study["metric"], study["metric"]) if by_loss else None, **study}


def _round_maps(maps: list[studies.SiteMapsJson]) -> list[studies.SiteMapsJson]:
    def round_all(values: Any) -> Any:
        return [round_all(each) for each in values] if isinstance(values, list) else round(values or 0.0, 3)

    return [{**site, "heads": round_all(site["heads"])} for site in maps]


def _seeds(heads: list[studies.HeadsFile], populations: list[studies.PopulationFile]) -> list[Any]:
    """Returns a MemberJson for each run of a population, or else for every study, to show how seeds differ."""
    for population in populations:
        members = [member for member in population["members"] if "refused" not in member]
        return [{key: member.get(key) for key in studies.MemberJson.__annotations__} for member in members]
    rows = []
    for study in heads:
        alone, left, together = study["alone"], study["alone_removed_together"], study["together"]
        if alone is not None and left is not None and together is not None:
            critical = [row["head"] for row in study["heads"] if row["verdict"] == "critical"]
            counts = {"subject": study["subject"], "alone": alone["count"], "together": together["count"]}
            shares = {"alone_removed_together": left["accuracy"], "together_accuracy": together["accuracy"]}
            rows.append({**counts, **shares, "critical": critical})
    return rows


def _comparison(sources: Sources, path: Path, study: studies.ComparisonFile) -> dict[str, Any]:
    """Returns a comparison with its runs as dots: by metric and group, the value and the run of each."""
    rows, metrics = study["rows"], study["metrics"]
    for place, row in enumerate(rows):
        lacking = [key for key in study["by"] if isinstance(row.get(key, []), dict | list)]
        lacking += [metric for metric in metrics if metric not in row["metrics"]]
        if lacking:
            raise BrokenRun(f"{path} is not what Headway writes: rows[{place}] has no {lacking[0]!r}; make it again")
    dots: dict[str, list[list[tuple[float, str]]]] = {metric: [[] for _ in rows] for metric in metrics}
    for place, run in enumerate(study["runs"]):
        if not 0 <= run["group"] < len(rows):
            raise BrokenRun(f"{path} is not what Headway writes: runs[{place}] is of no group; make it again")
        for metric in metrics if run["state"] == "complete" else ():
            if isinstance(value := run.get(metric), int | float):
                dots[metric][run["group"]].append((float(value), run["run"]))
    shown = {metric: [thin_out(each) for each in groups] for metric, groups in dots.items()}
    return {**{key: value for key, value in study.items() if key != "runs"}, "name": sources.name(path), "dots": shown}


def _certificate(sources: Sources, path: Path, content: studies.CertificateFile) -> Values:
    """Returns what was proved, or why it does not count where the certificate does not belong to the run next to it."""
    run = RunFolder(path.parent)
    refused = None if content.get("certified") is True and content.get("wrong") == 0 else "it was not granted"
    try:
        if fault := find_certificate_fault(content, run.training().weights_sha256):
            refused = f"it {fault}"
        run.verify()
    except HeadwayError as error:
        refused = str(error) if run.complete else "there is no finished run next to it"
    shown = {"contexts": content["contexts"], "smallest_margin": content["smallest_margin"]}
    return {**shown, "run": sources.name(path.parent), "refused": refused}


def _training_curve(sources: Sources, run: RunFolder) -> list[dict[str, Any]]:
    """Returns how a run learned, in training batches and on held-out problems; nothing without a log."""
    try:
        lines = thin_log(run.log_lines())
    except HeadwayError:  # an unfinished run may have half a line
        return []
    if not any("exact_match" in line for line in lines):
        return []

    def curve(key: str) -> list[tuple[int, float]]:
        return [(line["step"], value) for line in lines if isinstance(value := line.get(key), int | float)]

    shares = {"training": curve("exact_match"), "held_out": curve("validation_exact_match")}
    losses = {"training_loss": curve("loss"), "held_out_loss": curve("validation_loss")}
    return [{"run": sources.name(run.path), "task": run.config().task, **shares, **losses}]


def _run(sources: Sources, run: RunFolder) -> Values:
    config = run.config()
    about = {"run": sources.name(run.path), "task": config.task, "positions": config.model.positions}
    about |= {"config": config.digest[:8], "seed": config.seed}
    if not run.complete:
        return {**about, "steps": None, "seconds": None, "parameters": None, "weights": "unfinished"}
    ended = run.training()
    about |= {"steps": ended.steps, "seconds": round(ended.seconds, 1), "parameters": ended.parameters}
    return {**about, "weights": ended.weights_sha256[:12]}
