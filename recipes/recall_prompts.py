"""Writes prompts that a recall model answers: text with facts, and the key of one of them at the end.

    python recipes/recall_prompts.py --out recipes/recall/prompts.jsonl

A row of a prompt is drawn as in training (recipes/recall.py), from a stream that training does not use; it ends in a
question, and the value of the fact is the answer.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import recall
from recall_windows import draw_prompts

from headway.runs import disk


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", required=True, help="a JSONL file")
    given = parser.parse_args(argv)
    drawn = draw_prompts(recall.SMALL["rotary"], given.count, given.seed, "cpu")
    rows = zip(drawn.source.tolist(), drawn.answer.tolist(), strict=True)
    lines = [json.dumps({"tokens": source, "answer": answer}) for source, answer in rows]
    disk.write_bytes(Path(given.out), ("\n".join(lines) + "\n").encode())


if __name__ == "__main__":
    main()
