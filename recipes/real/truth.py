"""Reads what the judges measured and answers why rankings differ from the published lists.

    python recipes/real/truth.py results/truth      # prints the tables of results/truth.md

The published heads were picked for a purpose (word times, atom mapping), and the judges also measured every head by
that purpose. So each ranking is compared with a second list: all heads that serve the purpose, published or not.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from scipy.stats import spearmanr
from scoring import auroc

SECONDS, MAPPED = 0.2, 0.9
"""a head tells word times if its median error is below this, and maps atoms if this share of origins is right"""


def second_truth(heads: dict[str, dict[str, Any]], purpose: str, serves: list[bool]) -> list[str]:
    """Returns a table: how well each method recovers the heads that serve the purpose."""
    true, lines = (
        torch.tensor(serves),
        [f"| method | AUROC, all {sum(serves)} heads that serve it | rank correlation |"],
    )
    lines.append("|---|---|---|")
    names = [name for name in next(iter(heads.values())) if name not in ("published", "median_seconds_off", purpose)]
    own = [each[purpose] for each in heads.values()]
    rows = []
    for name in names:
        values = [each[name] for each in heads.values()]
        rows.append((auroc(torch.tensor(values), true), float(spearmanr(values, own)[0]), name))  # pyright: ignore
    return lines + [f"| {name} | {value:.3f} | {correlation:.2f} |" for value, correlation, name in sorted(rows)[::-1]]


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "results/truth")
    whisper = json.loads((folder / "whisper.json").read_text())["heads"]
    rxn = json.loads((folder / "rxn.json").read_text())["heads"]
    timely = [each["median_seconds_off"] < SECONDS for each in whisper.values()]
    print(f"Whisper: heads that tell word times to {SECONDS} s: {', '.join(_named(whisper, timely))}")
    print("\n".join(second_truth(whisper, "timing (its own purpose)", timely)))
    mapping = [each["mapping (its own purpose)"] >= MAPPED for each in rxn.values()]
    print(f"\nRXNMapper: heads that find {MAPPED:.0%} of origins: {', '.join(_named(rxn, mapping))}")
    print("\n".join(second_truth(rxn, "mapping (its own purpose)", mapping)))


def _named(heads: dict[str, dict[str, Any]], serves: list[bool]) -> list[str]:
    return [name for name, one in zip(heads, serves, strict=True) if one]


if __name__ == "__main__":
    main()
