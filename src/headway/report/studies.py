"""Reads and checks the files of studies for pages and figures.

A file may hold more keys than are listed here; keys that older files lack are filled in from `DEFAULTS`.
"""
# ruff: noqa: UP013  (each part of a file is one line, as in the JSON)

import math
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict, TypeVar

from headway.compare.describe import Value
from headway.errors import BrokenRun
from headway.runs import disk
from headway.runs.shapes import find_fault

Kind = TypeVar("Kind")
Real = float | None  # a number, or None where it was not finite
Bounds = tuple[Real, Real]  # a list of two
Share = float | Literal["cannot"] | None  # "cannot" where it is provably nothing, whatever the weights
DEEPEST = 100  # levels of nested lists and objects
LARGEST = 10**300

# fmt: off
StratumJson = TypedDict("StratumJson", {"stratum": str, "examples": int, "errors": int})
PatternJson = TypedDict("PatternJson", {"label": str, "stable": float})
HeadJson = TypedDict("HeadJson", {
    "head": str, "accuracy": float, "drop": float, "interval": Bounds | None, "loss_increase": Real, "verdict": str,
    "group": NotRequired[str | None], "least_window": NotRequired[int | None],
    "needed": NotRequired[bool | None], "pattern": NotRequired[str | None],
    "pattern_scores": NotRequired[PatternJson | None],
    "by_stratum": list[StratumJson],
})
AloneJson = TypedDict("AloneJson", {"count": int, "heads": list[str], "units": NotRequired[int]})
RemovalJson = TypedDict("RemovalJson", {
    "accuracy": float, "loss_increase": NotRequired[Real], "interval": NotRequired[Bounds | None],
})
TogetherJson = TypedDict("TogetherJson", {
    "count": int, "heads": list[str], "units": NotRequired[int], "accuracy": float, "loss_increase": NotRequired[Real],
    "interval": NotRequired[Bounds | None], "optimal": NotRequired[bool],
})
HeldOutJson = TypedDict("HeldOutJson", {"examples": int, "errors": int})
SetJson = TypedDict("SetJson", {  # the largest set under one kind of ablation
    "ablation": str, "count": int, "heads": list[str], "accuracy": float, "interval": Bounds | None, "optimal": bool,
    "resample": RemovalJson | None,
})
OptimumJson = TypedDict("OptimumJson", {"at_most": int})
CurveJson = TypedDict("CurveJson", {
    "order": str, "examples": NotRequired[int], "accuracy": list[float], "loss": NotRequired[list[Real]],
    "heads": list[list[str]],
})
PairJson = TypedDict("PairJson", {"heads": tuple[str, str], "drop": float, "sum_of_drops": float, "backup": float})
RoleJson = TypedDict("RoleJson", {
    "part": str, "contrast": str, "at_answer": bool, "flips": Share, "pairs": int, "named": bool,
})
ExplainedJson = TypedDict("ExplainedJson", {"contrast": str, "heads": list[str], "flips": Share, "sound": bool})
RolesJson = TypedDict("RolesJson", {
    "table": list[RoleJson], "explained": list[ExplainedJson], "mean_explained": Real,
})
WithheldJson = TypedDict("WithheldJson", {"check": str, "reason": str})
MemberJson = TypedDict("MemberJson", {
    "subject": str, "alone": int, "alone_removed_together": float, "together": int, "together_accuracy": float,
    "critical": list[str],
})
RefusedJson = TypedDict("RefusedJson", {"subject": str, "refused": str})
RangeJson = TypedDict("RangeJson", {"least": float, "median": float, "most": float})
DistributionJson = TypedDict("DistributionJson", {
    "members": int, "refused": int, "ablation": NotRequired[str], "heads": NotRequired[int],
    "alone": NotRequired[RangeJson], "alone_removed_together": NotRequired[RangeJson],
    "together": NotRequired[RangeJson],
})
SiteMapsJson = TypedDict("SiteMapsJson", {
    "site": str, "queries": list[str], "keys": list[str], "heads": list[list[list[Real]]],
})
ProblemMapsJson = TypedDict("ProblemMapsJson", {"maps": list[SiteMapsJson]})
AverageMapsJson = TypedDict("AverageMapsJson", {"all": ProblemMapsJson})
ExampleJson = TypedDict("ExampleJson", {
    "read": list[str], "wanted": list[str], "answers": dict, "maps": list[SiteMapsJson],
})
HeadMapJson = TypedDict("HeadMapJson", {
    "head": str, "queries": list[str], "keys": list[str], "weights": list[list[Real]],
})
MappedProblemJson = TypedDict("MappedProblemJson", {
    "read": list[str], "wanted": list[str], "said": list[str], "maps": list[HeadMapJson],
})
SeveralMapsJson = TypedDict("SeveralMapsJson", {"heads": list[str], "problems": list[MappedProblemJson]})
EntryJson = TypedDict("EntryJson", {"positions": str, "index": str, "pooling": NotRequired[str | None]})
LengthJson = TypedDict("LengthJson", {
    "positions": str, "index": str, "pooling": NotRequired[str | None], "seed": int, "probe": str, "length": int,
    "accuracy": float, "examples": NotRequired[int],
})
ReachJson = TypedDict("ReachJson", {
    "positions": str, "index": str, "pooling": NotRequired[str | None], "probe": str, "by_seed": dict[str, int | None],
    "median": Real, "worst": Real, "stopped_by": NotRequired[str | None], "reaches_all": NotRequired[int | None],
    "fails_in_range": NotRequired[list[str] | None],
})
ConvergedJson = TypedDict("ConvergedJson", {
    "positions": str, "index": str, "pooling": NotRequired[str | None], "seed": int, "converged": bool,
    "in_range": NotRequired[float], "interval": NotRequired[tuple[float, float]],
})
DiagnosisJson = TypedDict("DiagnosisJson", {
    "positions": str, "index": str, "probe": str, "length": int, "sentence": str, "causes": list[str],
    "pooling": NotRequired[str | None], "seed": NotRequired[int],
})
MomentJson = TypedDict("MomentJson", {
    "table": NotRequired[list[list[Real]] | None], "bias": NotRequired[list[list[Real]] | None],
    "likeness": NotRequired[list[Real] | None],
})
SignalJson = TypedDict("SignalJson", {
    "positions": str, "index": str, "pooling": NotRequired[str | None], "trained": int, "tokens": int,
    "before": MomentJson, "after": MomentJson,
})
AnswerJson = TypedDict("AnswerJson", {"answer": str, "given": float, "right": float})
SubjectRowJson = TypedDict("SubjectRowJson", {
    "probe": str, "length": int, "examples": int, "accuracy": Real, "interval": Bounds | None, "verdict": str,
    "answers": list[AnswerJson], "constant": bool | None, "nearly_constant": bool | None, "chance": Real,
    "cannot_run": str | None,
})
SubjectReachJson = TypedDict("SubjectReachJson", {
    "probe": str, "reach": int | None, "stopped_by": str | None, "fails_in_range": list[str] | None,
    "reaches_all": int | None,
})
SubjectDiagnosisJson = TypedDict("SubjectDiagnosisJson", {
    "probe": str, "length": int, "sentence": str, "causes": list[str],
})
DepthJson = TypedDict("DepthJson", {"depth": float, "examples": int, "accuracy": Real, "interval": Bounds | None})
RecallRowJson = TypedDict("RecallRowJson", {
    "task": str, "length": int, "cure": str, "examples": int, "accuracy": Real, "interval": Bounds | None,
    "chance": float, "constant": bool, "cannot_run": str | None, "by_depth": list[DepthJson],
})
EffectiveJson = TypedDict("EffectiveJson", {"task": str, "cure": str, "learned": bool, "length": int | None})
CureJson = TypedDict("CureJson", {  # the accuracy is in the row of the same task, length and cure
    "task": str, "length": int, "cure": str, "gain": Bounds | None, "in_range": Real, "in_range_gain": Bounds | None,
})
CauseJson = TypedDict("CauseJson", {
    "cause": str, "task": str, "length": int, "cure": str | None, "before": Real, "after": Real,
    "gain": Bounds | None, "sham": str | None, "sham_accuracy": Real, "exceeds_sham": Bounds | None,
    "established": bool, "evidence": str,
    "in_range_gain": NotRequired[Real],  # what the cure brings at the training length, where there is nothing to cure
})
ChoiceJson = TypedDict("ChoiceJson", {"length": int, "cure": str, "sentence": str, "config": str})
BandJson = TypedDict("BandJson", {"first": int, "last": int, "loss": Real, "interval": Bounds})
LossJson = TypedDict("LossJson", {
    "length": int, "windows": int, "rises_at": int | None, "bands": list[BandJson],
})
RemarkJson = TypedDict("RemarkJson", {"probe": str, "lengths": list[int], "remark": str})
SpreadJson = TypedDict("SpreadJson", {
    "n": int, "missing": int, "unlearned": int, "median": Real, "mean": Real, "best": Real, "worst": Real,
    "least": Real, "most": Real, "interval": Bounds | None,
})
GroupJson = TypedDict("GroupJson", {  # and the values that it is grouped by
    "runs": int, "complete": int, "unfinished": int, "broken": int, "seeds": int, "metrics": dict[str, SpreadJson],
})
ComparedRunJson = TypedDict("ComparedRunJson", {"run": str, "group": int, "state": str})  # and its numbers
LabRunJson = TypedDict("LabRunJson", {
    "finding": str, "examples": int, "errors": int, "seed": int, "interval": tuple[float, float] | None,
    "withheld": NotRequired[list[dict[str, str]]],
})
LabWithheldJson = TypedDict("LabWithheldJson", {"run": str, "about": str, "check": str, "reason": str})

HeadsFile = TypedDict("HeadsFile", {  # heads.json, of one subject
    "subject": str, "baseline": float, "examples": int, "ablation": str, "metric": str, "max_drop": float,
    "max_loss_increase": Real, "max_loss_increase_share": Real,
    "confidence_of_each_interval": Real, "interval_of": str, "heads": list[HeadJson],
    "alone": AloneJson | None, "alone_removed_together": RemovalJson | None, "together": TogetherJson | None,
    "sets": list[SetJson] | None, "held_out": HeldOutJson | None, "optimum": OptimumJson | None,
    "curves": list[CurveJson], "pairs": list[PairJson], "roles": RolesJson | None,
    "findings": list[str], "withheld": list[WithheldJson],
    "units": NotRequired[str], "asked": NotRequired[str], "words": NotRequired[str],  # the last two of windows only
    "sink": NotRequired[int], "recent": NotRequired[list[int]],
    "counted": NotRequired[str | None],  # the unit of costs, where heads are judged by a loss; added by the page
})
PopulationFile = TypedDict("PopulationFile", {  # heads-population.json, of many runs
    "members": list[MemberJson | RefusedJson], "distribution": DistributionJson, "findings": list[str],
})
MapsFile = TypedDict("MapsFile", {
    "average": AverageMapsJson | None, "examples": list[ExampleJson], "several": SeveralMapsJson | None,
})
LengthsFile = TypedDict("LengthsFile", {  # lengths.json, of a study of many runs
    "task": str, "track": str, "train_lengths": tuple[int, int], "examples": int, "rows": list[LengthJson],
    "reach": list[ReachJson], "converged": list[ConvergedJson], "diagnosis": list[DiagnosisJson],
    "signals": list[SignalJson], "findings": list[str], "withheld": list[WithheldJson],
    "level": NotRequired[dict],  # not in older files
    "subject": NotRequired[str], "asked": NotRequired[str], "remarks": NotRequired[list[RemarkJson]],  # a user's
})
LanguageLengthsFile = TypedDict("LanguageLengthsFile", {  # lengths.json, of a language model
    "text": NotRequired[str | None], "subject": str, "asked": str, "family": str, "trained": int,
    "trained_from": str, "lengths": list[int],
    "depths": list[float], "tasks": list[str], "seed": int, "share": float, "rows": list[RecallRowJson],
    "effective": list[EffectiveJson], "cures": list[CureJson], "choices": list[ChoiceJson], "causes": list[CauseJson],
    "loss": LossJson | None, "findings": list[str], "withheld": list[WithheldJson],
})
SubjectLengthsFile = TypedDict("SubjectLengthsFile", {  # lengths.json, of a user's model
    "subject": str, "asked": str, "task": str, "train_lengths": tuple[int, int], "examples": int, "in_range": float,
    "interval": tuple[float, float], "converged": bool, "rows": list[SubjectRowJson], "reach": list[SubjectReachJson],
    "diagnosis": list[SubjectDiagnosisJson], "findings": list[str], "withheld": list[WithheldJson], "level": dict,
})
ComparisonFile = TypedDict("ComparisonFile", {
    "folders": list[str], "by": list[str], "metrics": list[str], "where": str | None, "among": int,
    "rows": list[GroupJson], "runs": list[ComparedRunJson], "findings": list[str],
})
LabFile = TypedDict("LabFile", {"runs": list[LabRunJson], "withheld": list[LabWithheldJson]})
CertificateFile = TypedDict("CertificateFile", {"contexts": int, "smallest_margin": Real})
Environment = TypedDict("Environment", {"command": NotRequired[str | None]})  # environment.json, of a run
# fmt: on

_NO_WORDS = {"findings": [], "withheld": []}
DEFAULTS = {
    HeadsFile: {
        **_NO_WORDS, "metric": "exact", "max_loss_increase": None, "max_loss_increase_share": None,
        "confidence_of_each_interval": 0.0,
        "interval_of": "drop", "sets": None, "held_out": None, "optimum": None, "roles": None,
    },
    PopulationFile: {"distribution": {"members": 0, "refused": 0}, "findings": []},
    MapsFile: {"average": None, "examples": [], "several": None},
    LengthsFile: {**_NO_WORDS, "converged": [], "diagnosis": [], "signals": []},
    ComparisonFile: {"where": None},
    LabFile: {"withheld": []},
}  # fmt: skip


def read_study(path: Path, kind: type[Kind]) -> Kind:
    """Reads and checks a study of this kind; numbers that are not finite become None."""
    try:
        content = nullify_non_finite(disk.read_json(path))
    except RecursionError as error:
        raise BrokenRun(f"{path} is nested too deeply to be Headway's; restore it, or make it again") from error
    content = fill_defaults(content, kind)
    if fault := find_fault(content, kind):
        raise BrokenRun(f"{path} is not what Headway writes: {fault}; restore it, or make it again")
    return content


def fill_defaults(content: Any, kind: type[Kind]) -> Kind:
    """Fills in the keys that older files of this kind lack."""
    filled: Any = {**DEFAULTS.get(kind, {}), **content} if isinstance(content, dict) else content
    return filled


def nullify_non_finite(value: Any, deep: int = 0) -> Any:
    """Replaces NaN and infinity, which JSON does not have, and integers too large for a float by None."""
    if deep > DEEPEST:
        raise RecursionError(f"more than {DEEPEST} levels")
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, int) and not -LARGEST < value < LARGEST:
        return None
    if isinstance(value, dict):
        return {key: nullify_non_finite(each, deep + 1) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [nullify_non_finite(each, deep + 1) for each in value]
    return value


def group_values(comparison: ComparisonFile, group: GroupJson) -> list[Value | None]:
    """Returns the values that define a group."""
    return [group[key] for key in comparison["by"]]  # pyright: ignore[reportGeneralTypeIssues]
