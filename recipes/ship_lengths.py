"""Writes the encodings that do reach, from the results in this repository, into the file that ships with the package.

    python recipes/ship_lengths.py

The page of a lab shows them beside its own study, marked as measured earlier. Nothing is measured here: accuracies and
reaches are those of `results/lengths-*/lengths.json`, by the rules of `headway report`, and the proofs are the
certificates beside the shipped models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from headway.report.lengths import complete_lengths
from headway.report.studies import LengthsFile, read_study

ROOT = Path(__file__).parents[1]
OUT = ROOT / "src" / "headway" / "report" / "page" / "shipped.json"
MEASURED = (("tuned", "fire"), ("tuned", "kerple"), ("open", "window+behind=1+ahead=0"))
PROVED = ("certified-sorter", "certified-adder")


def collect() -> dict[str, Any]:
    return {
        "note": "measured earlier, shipped with Headway, not made by this lab",
        "made_by": "python recipes/ship_lengths.py",
        "measured": [_entry(*each) for each in MEASURED],
        "proved": [_proof(name) for name in PROVED],
    }


def _entry(track: str, positions: str) -> dict[str, Any]:
    """Returns one encoding with the sequential index: for each probe its reach by seed, and its accuracy by length."""
    source = f"results/lengths-{track}/lengths.json"
    study = complete_lengths(read_study(ROOT / source, LengthsFile))
    mine = {"positions": positions, "index": "sequential"}
    rows = [row for row in study["rows"] if mine.items() <= row.items()]
    reach = [row for row in study["reach"] if mine.items() <= row.items()]
    command = f"headway lengths sortedness --track {track} --positions {positions}"
    command += " --pooling violation" if track == "open" else ""
    longest = ",".join(
        str(each) for each in sorted({row["length"] for row in rows}) if each > study["train_lengths"][1]
    )
    return {
        "positions": positions,
        "task": study["task"],
        "track": track,
        "trained": study["train_lengths"][1],
        "seeds": len({row["seed"] for row in rows}),
        "examples": study["examples"],
        "fails_in_range": reach[0].get("fails_in_range") or [],
        "probes": [
            {
                "probe": each["probe"],
                "worst": each["worst"],
                "stopped_by": each.get("stopped_by"),
                "points": _points([row for row in rows if row["probe"] == each["probe"]]),
            }
            for each in reach
        ],
        "source": source,
        "command": f"{command} --seeds 5 --lengths {longest}",
    }


def _points(rows: list[Any]) -> list[list[float]]:
    """Returns length, lowest and highest accuracy of the seeds."""
    by_length = {length: [row["accuracy"] for row in rows if row["length"] == length] for length in _lengths(rows)}
    return [[length, min(values), max(values)] for length, values in by_length.items()]


def _lengths(rows: list[Any]) -> list[int]:
    return sorted({row["length"] for row in rows})


def _proof(name: str) -> dict[str, Any]:
    source = f"src/headway/pretrained/{name}/certificate.json"
    found = json.loads((ROOT / source).read_text())
    kept = ("task", "contexts", "wrong", "smallest_margin", "rounding_bound", "parameters")
    trained = found["options"]["digits"] if found["task"] == "addition" else found["options"]["longest"]
    command = f"headway certify pretrained:{name}"
    shown = {"name": name, **{key: found[key] for key in kept}, "trained": trained, "dtype": found["assumes"]["dtype"]}
    return {**shown, "source": source, "command": command}


if __name__ == "__main__":
    OUT.write_text(json.dumps(collect(), indent=1) + "\n")
    print(f"wrote {OUT.relative_to(ROOT)}")
