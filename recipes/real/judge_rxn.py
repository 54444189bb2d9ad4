"""Judge: RXNMapper's atom-mapping head. Its makers read which atom of a product comes from which atom of a reactant off
head 5 of layer 10, one head of 96.

    python recipes/real/judge_rxn.py --out runs/real/rxn.json

The reactions are written here, so that every atom's origin is known: an ester, an amide or a thioester is put together
from two parts that each carry another atom at a side. One of these atoms is masked in the product, and the model must
write it. As the head was picked for mapping, every head is also judged by it: how often an atom of the product looks,
and is looked at, most from the atom that it was.
"""

from __future__ import annotations

import argparse
import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from methods import Trial, rank_by_all
from rxn_albert import MAPPING_HEAD, Smiles, load
from scoring import Score, score, table
from torch import Tensor
from wheels import run

from headway.attach.from_transformers import subject_from_transformers
from headway.models import Trace
from headway.tasks import Problems
from headway.tasks.problems import Contrast

SIDE = ("F", "O", "N", "C", "S", "I")
"""atoms at the side of a part, each one token"""
ACIDS = ("CC({})CC", "CC({})OC", "CN({})CC", "CC({})SC")
ALCOHOLS = ("CCC({})C", "COC({})C", "CCN({})C")
JOINTS = (("C(=O)O", "O", "C(=O)O"), ("C(=O)O", "N", "C(=O)N"), ("C(=O)O", "S", "C(=O)S"))
"""the end of one part, the beginning of the other, and what joins them in the product"""


@dataclass(frozen=True)
class Reaction:
    """A reaction as tokens, where its side atoms are in the product, and the origin of every other atom there."""

    pieces: tuple[str, ...]
    sides: tuple[int, int]
    origins: dict[int, int]


def draw_reaction(chance: random.Random, sides: tuple[str, str] | None = None) -> Reaction:
    """Draws two parts, their side atoms and the order in which they are written."""
    one, other = (chance.choice(each) for each in (ACIDS, ALCOHOLS))
    end, begin, joined = chance.choice(JOINTS)
    first, second = chance.choice((True, False)), sides or (chance.choice(SIDE), chance.choice(SIDE))
    parts = [(one.format(second[0]), end), (begin, other.format(second[1]))]
    acid, alcohol = (["".join(part) for part in parts][n] for n in (0, 1))
    written = [acid, ".", alcohol] if first else [alcohol, ".", acid]
    pieces = Smiles.split("".join(written))
    acid_at = 1 if first else 2 + len(Smiles.split(alcohol))
    other_at = (2 + len(Smiles.split(acid)) if first else 1) + len(Smiles.split(begin))
    head, tail = Smiles.split(parts[0][0]), Smiles.split(parts[1][1])
    start = 1 + len(pieces) + 1  # after [CLS], the reactants and the arrow
    middle = Smiles.split(joined)
    origins = {start + n: acid_at + n for n, piece in enumerate(head) if piece.isalpha()}
    after = start + len(head) + len(middle)
    origins |= {after + n: other_at + n for n, piece in enumerate(tail) if piece.isalpha()}
    every = ("[CLS]", *pieces, ">>", *head, *middle, *tail, "[SEP]")
    return Reaction(every, (start + head.index("(") + 1, after + tail.index("(") + 1), origins)


def problems_of(reactions: list[Reaction], asked: list[int], smiles: Smiles) -> Problems:
    """Masks one side atom of each product."""
    rows = torch.tensor([[smiles.numbers[piece] for piece in each.pieces] for each in reactions])
    places = torch.tensor([each.sides[which] for each, which in zip(reactions, asked, strict=True)])[:, None]
    answer = rows.gather(1, places)
    return Problems(rows.scatter(1, places, smiles.mask), answer)


def mapped(trial: Trial, reactions: list[Reaction], tokens: Tensor) -> Tensor:
    """Returns the share of atoms whose origin each head finds, [head, reaction], among all atoms of the reactants."""
    found, trace = torch.zeros(len(trial.heads), len(reactions)), Trace()
    runner: Any = trial.subject.runner  # of a user's model
    with torch.no_grad():
        runner.attached.run(lambda: trial.subject.model(input_ids=tokens), trace=trace)
    for number, reaction in enumerate(reactions):
        arrow = reaction.pieces.index(">>")
        atoms = torch.tensor([n for n in range(arrow) if reaction.pieces[n].isalpha()])
        for row, head in enumerate(trial.heads):
            weights = trace.maps[head.site][number, head.number]
            both = (weights + weights.T)[:, atoms]  # as the package adds them
            right = [int(atoms[both[place].argmax()]) == origin for place, origin in reaction.origins.items()]
            found[row, number] = sum(right) / len(right)
    return found


def judge(count: int, seed: int) -> tuple[dict[str, Score], dict[str, Any]]:
    model, smiles = load()
    chance = random.Random(seed)
    reactions = []
    while len(reactions) < count:  # one length, as resampling needs donors as long
        each = draw_reaction(chance)
        if not reactions or len(each.pieces) == len(reactions[0].pieces):
            reactions.append(each)
    asked = [chance.randrange(2) for _ in reactions]
    problems = problems_of(reactions, asked, smiles)

    def reader(model: Any, source: Tensor, answer: Tensor) -> Tensor:
        at = (source == smiles.mask).nonzero()[:, 1]
        return model(input_ids=source).logits[torch.arange(len(source)), at][:, None]

    subject = subject_from_transformers(model, problems, reader=reader, metric="loss", name="RXNMapper")
    true = frozenset(head for head in subject.heads if (head.site.layer, head.number) == MAPPING_HEAD)

    def on_reactants(maps: Tensor, batch: Problems) -> Tensor:
        """Returns the mean weight that the masked atom puts on the reactants."""
        arrow = (batch.source == smiles.numbers[">>"]).int().argmax(-1)
        before = torch.arange(maps.shape[-1]) < arrow[:, None]
        at = (batch.source == smiles.mask).nonzero()[:, 1]
        rows = maps[torch.arange(len(maps)), :, at]  # row head key
        return (rows * before[:, None]).sum(-1)

    pairs = [contrast_of(each, which, chance, smiles) for each, which in zip(reactions, asked, strict=True)]
    clean, other = (Problems.join([pair[side] for pair in pairs[: count // 2]]) for side in (0, 1))
    contrast = Contrast("atom", 0, False, clean, other, place=0)
    trial = Trial(subject, problems, tuple(subject.heads), true, contrast, on_reactants)
    scores = rank_by_all(trial, seed)
    whole = torch.tensor([[smiles.numbers[piece] for piece in each.pieces] for each in reactions])
    scores["mapping (its own purpose)"] = mapped(trial, reactions, whole)
    truth = torch.tensor([head in true for head in trial.heads])
    with torch.no_grad():
        right = float((reader(model, problems.source, problems.answer).argmax(-1) == problems.answer).float().mean())
    details = {
        "right": right,
        "heads": {
            head.label: {name: round(float(values[row].mean()), 5) for name, values in scores.items()}
            for row, head in enumerate(trial.heads)
        },
    }
    return {name: score([values], [truth], seed) for name, values in scores.items()}, details


def contrast_of(reaction: Reaction, which: int, chance: random.Random, smiles: Smiles) -> tuple[Problems, Problems]:
    """Makes a pair of problems that differ in the masked atom, in the reactants too."""
    old = reaction.pieces[reaction.sides[which]]
    new = chance.choice([each for each in SIDE if each != old])
    pieces = list(reaction.pieces)
    place = reaction.sides[which]
    pieces[place] = pieces[reaction.origins[place]] = new
    changed = Reaction(tuple(pieces), reaction.sides, reaction.origins)
    clean, other = (problems_of([each], [which], smiles) for each in (reaction, changed))
    return clean, other


def main() -> None:
    parser = argparse.ArgumentParser(description="Ranks the heads of RXNMapper's model by every method.")
    parser.add_argument("--reactions", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/real/rxn.json"))
    options = parser.parse_args()
    rows, details = judge(options.reactions, options.seed)
    print(f"{details['right']:.2f} of the masked atoms are right")
    print(table(rows))
    found = {"reactions": options.reactions, "seed": options.seed, **details}
    found["methods"] = {name: row.to_json() for name, row in rows.items()}
    options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    run(main)
