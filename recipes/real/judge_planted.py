"""Judge: twenty small models with a planted circuit, whose heads are known by how they were trained (planted.py).

python recipes/real/judge_planted.py --out runs/real/planted.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from methods import Trial, rank_by_all
from planted import FIRST, HEADS, LAYERS, START, Planted, answers_of, draw_rows, make
from scoring import Score, score, table
from torch import Tensor

from headway.attach.opening import prepare_subject
from headway.models import Head, Site
from headway.subjects.subject import Subject
from headway.tasks import Problems
from headway.tasks.problems import Contrast

LEAST = 0.95
"""the share that must be right in each of the three tests, for the truth of a model to count as fixed"""


def first_answer(model: Any, source: Tensor, answer: Tensor) -> Tensor:
    return model(source)[:, :1]


def own_map(owner: Any, inputs: Any, output: Any) -> Tensor:
    return owner.map


def at_question(maps: Tensor, problems: Problems) -> Tensor:
    """Returns the largest weight behind the first question."""
    return maps[:, :, -2].amax(-1)


def trial_of(made: Planted, prompts: int, seed: int) -> Trial:
    generator = torch.Generator().manual_seed(20_000 + seed)
    source = draw_rows(prompts, generator)
    problems = Problems(source, answers_of(source)[:, :1])
    sites = [Site(f"blocks.{layer}.attention", output="out", heads=HEADS) for layer in range(LAYERS)]
    subject = prepare_subject(
        Subject(made.model, examples=problems, sites=sites, reader=first_answer, maps=own_map, metric="loss")
    )
    names = {(layer, head): Head(sites[layer], head) for layer in range(LAYERS) for head in range(HEADS)}
    other = source.clone()
    changed = 1 + torch.tensor(FIRST)[torch.randint(2, (prompts,), generator=generator)]
    rows = torch.arange(prompts)
    other[rows, changed] = (other[rows, changed] + torch.randint(1, START, (prompts,), generator=generator)) % START
    contrast = Contrast("digit", 0, False, problems, Problems(other, answers_of(other)[:, :1]), place=0)
    true = frozenset(names[head] for head in made.heads)
    return Trial(subject, problems, tuple(names.values()), true, contrast, at_question)


def judge(seeds: range, prompts: int) -> tuple[dict[str, Score], list[dict[str, Any]]]:
    models = make(seeds)
    collected: dict[str, list[Tensor]] = {}
    truths, details = [], []
    for seed, made in zip(seeds, models, strict=True):
        shares = [made.right, made.right_without_others, made.right_exchanged]
        fixed = min(shares) >= LEAST
        details.append({"seed": seed, "heads": [f"L{layer}H{head}" for layer, head in made.heads],
                        "right": [round(each, 4) for each in shares], "counted": fixed})  # fmt: skip
        if not fixed:
            continue
        trial = trial_of(made, prompts, seed)
        truths.append(torch.tensor([head in trial.true for head in trial.heads]))
        scores = rank_by_all(trial, seed)
        details[-1]["means"] = {name: [round(x, 4) for x in each.mean(1).tolist()] for name, each in scores.items()}
        for name, each in scores.items():
            collected.setdefault(name, []).append(each)
    return {name: score(each, truths) for name, each in collected.items()}, details


def main() -> None:
    parser = argparse.ArgumentParser(description="Ranks the heads of models with a planted circuit by every method.")
    parser.add_argument("--models", type=int, default=20)
    parser.add_argument("--prompts", type=int, default=100)
    parser.add_argument("--out", type=Path, default=Path("runs/real/planted.json"))
    options = parser.parse_args()
    rows, details = judge(range(options.models), options.prompts)
    print(f"{sum(each['counted'] for each in details)} of {options.models} models have their truth fixed")
    print(table(rows))
    found = {"models": details, "methods": {name: row.to_json() for name, row in rows.items()}}
    options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
