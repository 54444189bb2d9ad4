"""`headway certify` and `headway add` as functions."""

import sys
from pathlib import Path
from typing import Any

from headway.certify.certificate import certify
from headway.errors import HeadwayError
from headway.machine import choose_device
from headway.output import Output
from headway.progress import Progress
from headway.runs import disk
from headway.runs.seal import CERTIFICATE, find_certificate_fault, seal
from headway.runs.shapes import fits
from headway.subjects.own import open_one, subject_of

EXACT = ("certified", "contexts", "wrong", "patterns", "parameters", "task", "options", "model")
CLOSE = ("smallest_margin", "rounding_bound")  # equal up to the rounding of different machines
CONDITIONS = ("dtype", "ulps", "positions")  # of `assumes`; versions and code may differ


def certify_run(subject: str | Path, *, device: str = "auto", quiet: bool = True) -> dict[str, Any]:
    """Enumerates every local context of a model, bounds the rounding of each in float32 and what tokens beyond it can
    change, and saves the certificate if it is granted. An existing certificate is checked against the weights and
    against the new result."""
    run = open_one(subject, choose_device(device))
    with Progress(f"every context of {run.config.name}", quiet) as watch:
        verdict = certify(run.model.eval(), run.task, watch)
    content = {
        **verdict.to_json(),
        "parameters": sum(parameter.numel() for parameter in run.model.parameters()),
        "task": run.config.task,
        "options": run.config.options,
        "model": run.config.to_json()["model"],
        "weights_sha256": run.folder.training().weights_sha256,
    }
    path = run.path / CERTIFICATE
    if path.exists():
        return check_stored(content, path)
    if verdict.certified and run.writable:
        run.folder.record(path.stem, seal(content))
    return content


def show_certificate(found: dict[str, Any]) -> Output:
    """Returns what `headway certify` prints about a result of `certify_run`; the status is 1 where nothing is
    proved."""
    shown = ("certified", "contexts", "wrong", "smallest_margin", "rounding_bound", "rounding", "parameters")
    more = [("Contexts", found["patterns"])] if found["patterns"] else []
    if (shares := found["accuracy_at_least"]) is not None:
        rows = [{"digits": each["length"], "accuracy at least": each["value"]} for each in shares]
        more.append(("Sums of uniform digits", rows))
    if not found["certified"]:
        return Output(found, "Certificate", [found], more, [f"Not certified: {found['reason']}."], 1, shown)
    words = (
        "Proved for these weights in float32, in any order of summation: right at every length. Every context that can "
        f"occur was checked, and rounding can change no lead by more than {found['rounding_bound']:.2g}."
    )
    if (beyond := found["outside"]) is not None:
        words += (
            f" No key is masked: all beyond the neighbours hold at most {beyond['mass']:.2g} of a head's attention, "
            f"and with rounding change no lead by more than {beyond['bound']:.2g}."
        )
    if found["assumes"]["positions"] != "known":
        words += " That the encoding treats all places alike was tried, and is not known."
    return Output(found, "Certificate", [found], more, [words], 0, shown)


def check_stored(content: dict[str, Any], path: Path) -> dict[str, Any]:
    """Returns the new result, or a refusal if the stored certificate differs from it."""
    stored = disk.read_json(path)
    fault = find_certificate_fault(stored, content["weights_sha256"])
    if fault is None:
        same = all(stored.get(key) == content[key] for key in EXACT)
        close = all(_is_close(stored.get(key), content[key]) for key in CLOSE)
        close = close and _is_close_outside(stored.get("outside"), content.get("outside"))
        fault = None if same and close and _same_conditions(stored, content) else "differs from the new result"
    refused = {"certified": False, "reason": f"{path} {fault}; remove it and certify again"}
    return content if fault is None else {**content, **refused}


def _same_conditions(stored: dict[str, Any], content: dict[str, Any]) -> bool:
    """Tells whether both certificates hold under the same conditions."""
    before, now = stored.get("assumes"), content["assumes"]
    if not isinstance(before, dict) or now is None:
        return before is None and now is None
    return all(before.get(key) == now[key] for key in CONDITIONS)


def _is_close(before: Any, now: float | None) -> bool:
    """Tells whether two numbers are equal up to the rounding of different machines."""
    if not fits(before, float) or now is None:
        return before is None and now is None
    return before == now or abs(before - now) <= 0.01 * abs(now)


def _is_close_outside(before: Any, now: Any) -> bool:
    """Tells whether both certificates say the same of the keys beyond a neighbourhood."""
    if not isinstance(before, dict) or now is None:
        return before is None and now is None
    bounds = ("mass", "bound", "share", "fall")
    same = {**before, **dict.fromkeys(bounds)} == {**now, **dict.fromkeys(bounds)}
    return same and all(_is_close(before.get(key), now[key]) for key in bounds)


def add(a: str, b: str, subject: str = "pretrained:certified-adder", *, device: str = "auto") -> dict[str, str | int]:
    """Adds two numbers with a model that writes the sum digit by digit, and checks the result."""
    for number in (a, b):
        if not (number.isdecimal() and number.isascii()):
            raise HeadwayError(f"{number[:40]!r} is not a whole number; write only digits 0 to 9")
    run = open_one(subject, choose_device(device))
    generate, (base, least_first) = subject_of(run).generate, run.task.columns or (None, False)
    if generate is None or base is None or run.task.end is not None:
        raise HeadwayError(f"{subject} is not an adder; name a run of addition")
    if base != 10:
        raise HeadwayError(f"{subject} adds in base {base}; name one that adds in base 10")
    digits = max(len(a), len(b))
    if run.config.model.index != "coupled":
        digits = max(digits, run.task.lengths[1])
    problem = run.task.read(f"{a}+{b}", next(run.model.parameters()).device, digits)
    written = generate(problem)[0]
    tokens = written.flip(0).tolist() if least_first else written.tolist()
    answer = "".join(str(token) if token < base else "?" for token in tokens).lstrip("0") or "0"
    if hasattr(sys, "set_int_max_str_digits"):
        sys.set_int_max_str_digits(0)
    return {"answer": answer, "right": answer == str(int(a) + int(b)), "digits": digits}
