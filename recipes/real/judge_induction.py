"""Judge: the induction recipe (recipes/induction), a small GPT-2 trained to work with two of its eight heads: a
previous-token head, L0H2, and an induction head, L1H3. `tests/recipes/test_induction.py` shows that it needs no other.

    python recipes/real/judge_induction.py --out runs/real/induction.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from methods import Trial, rank_by_all
from scoring import Score, score, table
from torch import Tensor

from headway.attach.from_transformers import subject_from_transformers
from headway.tasks import Problems
from headway.tasks.problems import Contrast

MODEL = Path(__file__).parents[1] / "induction"
KNOWN = ((0, 2), (1, 3))
TOKENS, PERIOD, CUT = 64, 12, 18


def draw(count: int, generator: torch.Generator) -> tuple[Problems, Problems]:
    """Draws repeated words, cut in their second repetition, and the same with another token to be copied."""
    words = torch.rand(count, TOKENS, generator=generator).argsort(1)[:, : PERIOD + 1]  # no token twice
    word, new = words[:, :PERIOD], words[:, PERIOD]
    changed = word.clone()
    changed[:, CUT % PERIOD] = new
    both = (each.repeat(1, 2) for each in (word, changed))
    clean, other = (Problems(each[:, :CUT], each[:, CUT : CUT + 1]) for each in both)
    return clean, other


def at_end(maps: Tensor, problems: Problems) -> Tensor:
    """Returns the largest weight of the last query."""
    return maps[:, :, -1].amax(-1)


def judge(count: int, seed: int) -> dict[str, Score]:
    generator = torch.Generator().manual_seed(seed)
    problems, other = draw(count, generator)
    subject = subject_from_transformers(MODEL, problems, metric="loss")
    true = frozenset(head for head in subject.heads if (head.site.layer, head.number) in KNOWN)
    contrast = Contrast("token", 0, False, problems, other, place=0)
    trial = Trial(subject, problems, tuple(subject.heads), true, contrast, at_end)
    truth = torch.tensor([head in true for head in trial.heads])
    return {name: score([values], [truth], seed) for name, values in rank_by_all(trial, seed).items()}


def main() -> None:
    parser = argparse.ArgumentParser(description="Ranks the heads of the induction recipe by every method.")
    parser.add_argument("--prompts", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/real/induction.json"))
    options = parser.parse_args()
    rows = judge(options.prompts, options.seed)
    print(table(rows))
    found = {"prompts": options.prompts, "seed": options.seed}
    options.out.write_text(
        json.dumps({**found, "methods": {name: row.to_json() for name, row in rows.items()}}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
