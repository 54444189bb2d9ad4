"""Writes a budget of two levels in the forms that DuoAttention and kvpress read.

Both know heads that see everything and streaming heads, which keep the first tokens and the recent ones; every
streaming head has the same window. DuoAttention loads a folder with `full_attention_heads.tsv` (a row for each layer, a
column for each key-value group, 0 to 1, separated by tabs) and `config.json` (`sink_size`, `recent_size`). kvpress has
no form of its own: its DuoAttentionPress loads these two files for the models that it lists, so `press.py` gives it
ours.
"""

import json
from pathlib import Path

from headway.errors import HeadwayError
from headway.runs import disk
from headway.windows.budget import Budget

PATTERN, CONFIG, PRESS = "full_attention_heads.tsv", "config.json", "press.py"
_PRESS = '''"""kvpress's DuoAttentionPress with the heads of this folder: `press()` in place of `DuoAttentionPress()`.

kvpress hides what streaming heads shall not see once the prompt has been read; the prompt itself is read in full.
"""

import json
from pathlib import Path

import numpy
from kvpress import DuoAttentionPress

HOME = Path(__file__).parent


def press():
    config = json.loads((HOME / "config.json").read_text())
    full = numpy.loadtxt(HOME / "full_attention_heads.tsv", dtype=float, delimiter="\\t", ndmin=2)
    made = DuoAttentionPress(head_compression_ratio=float((full == 0).mean()))
    made.load_attention_pattern = lambda model: (config["sink_size"], config["recent_size"], full)
    return made
'''


def check_export(budget: Budget, form: str | None) -> None:
    """Raises unless a budget has one window besides None, and as many groups in each layer; None is no form."""
    narrow = [window for window in budget.ladder if window is not None]
    if form is None:
        return
    if len(narrow) != 1:
        found = "no window" if not narrow else f"the windows {', '.join(map(str, narrow))}"
        raise HeadwayError(f"the budget has {found}, and {form} reads one window for all narrow groups; choose one")
    widths = {len(windows) for windows in budget.windows.values()}
    if len(widths) > 1:
        raise HeadwayError(f"the layers have {min(widths)} to {max(widths)} groups, and {form} reads a table")
    _by_layer(budget)


def export_budget(budget: Budget, form: str, folder: Path) -> list[Path]:
    """Writes a budget to a folder, for `duoattention` or `kvpress`."""
    check_export(budget, form)
    recent = budget.ladder[0]
    rows = ["\t".join(str(int(window is None)) for window in windows) for windows in _by_layer(budget)]
    content = {
        PATTERN: "".join(f"{row}\n" for row in rows),
        CONFIG: json.dumps({"sink_size": budget.sink, "recent_size": recent}, indent=2) + "\n",
    }
    if form == "kvpress":
        content[PRESS] = _PRESS
    for name, text in content.items():
        disk.write_bytes(folder / name, text.encode())
    return [folder / name for name in content]


def _by_layer(budget: Budget) -> list[tuple[int | None, ...]]:
    """Returns the windows of the sites in the order of their layers."""
    sites = {site: site.split(".") for site in budget.windows}
    if any(len(parts) != 3 or not parts[1].isdecimal() for parts in sites.values()):
        raise HeadwayError(f"the sites {', '.join(sites)} are not numbered layers such as decoder.0.self")
    return [budget.windows[site] for site in sorted(sites, key=lambda site: int(sites[site][1]))]
