"""Cures: changes of a model's order or attention scores that may let it work at longer texts, applied for a while.

Each is named; `a+b` applies both. A sham is a change of about the same size that cannot cure by the same cause, and
that a cure must therefore beat. `rotations.py`, `tables.py` and `scores.py` make the changes; here is which of them a
model can have, and how to keep one.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from headway.attach import rotations, scores, tables
from headway.attach.order import Setting as Setting
from headway.attach.order import TokenOrder
from headway.errors import HeadwayError, unknown

NONE = "none"
OF_ORDER = {
    "rotary": tuple(rotations.LIBRARY),
    "table": tables.CURES,
    "alibi": ("interpolation", "clamp"),
    "none": (),
}
"""the cures of each kind of order"""
SHAMS = {
    "rotary": rotations.SHAM,
    "table": tables.SHAM,
}
"""the sham of all cures of each kind of order"""


def cures_for(order: TokenOrder) -> tuple[str, ...]:
    """Returns the cures that a model can have, beginning with `none`."""
    of_order = () if order.fixed else OF_ORDER[order.kind]
    of_scores = ("log-length", "window") if order.scores else ()
    return (NONE, *of_order, *of_scores, *(("sinks",) if order.scores and order.window is not None else ()))


def shams_for(order: TokenOrder, cure: str) -> str | None:
    """Returns the sham that a cure must beat; None if it has none.

    Dividing all scores would divide ALiBi's bias as well, so the sham of its cure is a constant temperature of q·k.
    """
    if cure in OF_ORDER[order.kind]:
        return SHAMS.get(order.kind, "temperature" if order.scores else None)
    return {"log-length": "temperature", "sinks": "sinks-elsewhere"}.get(cure)


@contextmanager
def cured(model: Any, order: TokenOrder, name: str, setting: Setting) -> Iterator[None]:
    """Applies a cure or a sham inside the context; the model is restored to the bit afterwards."""
    parts = name.split("+")
    _check_parts(order, parts, setting)
    with ExitStack() as stack:
        for path in order.modules if order.kind == "rotary" else ():
            stack.enter_context(rotations.keep(model.get_submodule(path)))
        for part in parts:
            if part != NONE:
                stack.enter_context(_apply(model, order, part, setting))
        yield


def config_lines(model: Any, order: TokenOrder, name: str, setting: Setting) -> str:
    """Returns the Python lines that apply a cure: with transformers alone where it has the cure, else with Headway."""
    if name == NONE:
        return ""
    if order.kind == "rotary" and name in rotations.LIBRARY:
        kept = rotations.config_of(model, order.modules, name, setting)
        if kept is not None:
            folder = model.name_or_path or "FOLDER"
            options = ", ".join(f"{key}={value!r}" for key, value in kept.items())
            return (
                "from transformers import AutoModelForCausalLM\n\n"
                f"model = AutoModelForCausalLM.from_pretrained({folder!r}, {options})"
            )
    options = f"trained={setting.trained}, length={setting.length}"
    return f"import headway\n\nwith headway.cured(model, {name!r}, {options}):\n    ..."


def _apply(model: Any, order: TokenOrder, part: str, setting: Setting) -> AbstractContextManager[None]:
    if part in scores.SCALES or part in scores.MASKS:
        return scores.change_scores(model, part, setting)
    if order.kind == "rotary":
        return rotations.change_rotations(model, order.modules, part, setting)
    if order.kind == "table":
        return tables.change_table(model, order.modules[0], part, setting)
    return scores.change_alibi(model, order.modules, part, setting)


def _check_parts(order: TokenOrder, parts: list[str], setting: Setting) -> None:
    """Raises unless every part applies to the model, at most one of them changes its order, and it can run then."""
    known = cures_for(order)
    shams = {sham for cure in known if (sham := shams_for(order, cure)) is not None}
    of_order = [part for part in parts if part in OF_ORDER[order.kind] or part == SHAMS.get(order.kind)]
    if order.fixed and of_order:
        raise HeadwayError(f"{of_order[0]} does not apply to this model: {order.fixed}")
    for part in parts:
        if part not in known and part not in shams:
            raise unknown("cure", part, {*known, *shams})
    if len(of_order) > 1:
        raise HeadwayError(f"{' and '.join(of_order)} both change the model's order; give one of them")
    longer = order.kind == "table" and of_order and of_order[0] in tables.CURES
    if order.longest is not None and setting.length > order.longest and not longer:
        way = "" if order.fixed or order.kind != "table" else f"; with {', '.join(tables.CURES)} it can"
        raise HeadwayError(f"the model has {order.longest} positions and cannot run at {setting.length} tokens{way}")
