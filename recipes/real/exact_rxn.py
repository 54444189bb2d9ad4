"""The exact answer on a published model: every set of heads of the last two passes of RXNMapper's ALBERT.

    python recipes/real/exact_rxn.py --out runs/real/exact.json

These are 16 heads and 65,536 sets, the published atom-mapping head (pass 10, head 5) among them. Each set is closed
(zero ablation) and its loss on masked atoms is measured: no bound, no sample of sets. What sets have in common is
computed once: pass 10 for each of 256 sets of its own heads, and of pass 11 only what the masked place reads. Some sets
are compared with Headway's gates on the whole model. Beside the best set of each size: what greedy removal, the order
of costs alone, the order of gradients, and a surrogate of all pairs choose, on the same reactions.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from pathlib import Path
from typing import Any

import torch
from judge_rxn import draw_reaction, problems_of
from methods import Trial, gate_gradients, sharpest
from rxn_albert import Smiles, load
from torch import Tensor
from torch.nn.functional import cross_entropy
from wheels import run

from headway.attach.from_transformers import subject_from_transformers
from headway.models import Head
from headway.subjects.subject import Subject
from headway.tasks import Problems
from headway.tasks.problems import Contrast

PASSES, HEADS = (10, 11), 8
SETS = 2 ** (2 * HEADS)
CHECKED = 40  # sets compared with gates on the whole model
TOLERANCE = 1e-4
OPEN = torch.tensor([[float(not number >> head & 1) for head in range(HEADS)] for number in range(2**HEADS)])
"""the gates of each set of one pass's heads, by its number: bit h closes head h"""


class Enumeration:
    """Closes every set of heads of the two passes. A set's number has the heads of pass 10 in its high bits."""

    def __init__(self, model: Any, problems: Problems, mask: int) -> None:
        self.model = model
        self.layer = model.albert.encoder.albert_layer_groups[0].albert_layers[0]
        self.at = (problems.source == mask).nonzero()[:, 1]
        self.rows, self.answer = torch.arange(len(problems)), problems.answer[:, 0]
        self.stream = model(input_ids=problems.source, output_hidden_states=True).hidden_states[PASSES[0]]

    def losses(self) -> Tensor:
        """Returns the loss of each set on each problem, [set, problem]."""
        found = []
        first = self.attend(self.stream, self.stream)
        for gates in OPEN:
            x = self.finish(self.stream, first * gates[:, None])
            own = x[self.rows, self.at][:, None]  # row 1 width: only the masked place is read in the last pass
            z = self.attend(own, x)[:, 0]  # row head dim
            every = z[None] * OPEN[:, None, :, None]  # set row head dim
            last = self.finish(own[:, 0].expand(len(OPEN), -1, -1), every)
            logits = self.model.predictions(last)
            target = self.answer.expand(len(OPEN), -1)
            found.append(cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="none").view(len(OPEN), -1))
        return torch.cat(found)

    def attend(self, x: Tensor, seen: Tensor) -> Tensor:
        """Returns the outputs of the heads, [row, query, head, dim]."""
        part = self.layer.attention
        query, key, value = (
            project(source).unflatten(-1, (HEADS, -1))
            for project, source in ((part.query, x), (part.key, seen), (part.value, seen))
        )
        scores = torch.einsum("rqhd,rkhd->rhqk", query, key) / query.shape[-1] ** 0.5
        return torch.einsum("rhqk,rkhd->rqhd", scores.softmax(-1), value)

    def finish(self, x: Tensor, z: Tensor) -> Tensor:
        """Returns what a pass makes of its input and the outputs of its heads."""
        part = self.layer.attention
        attended = part.LayerNorm(x + part.dense(z.flatten(-2)))
        inner = self.layer.ffn_output(self.layer.activation(self.layer.ffn(attended)))
        return self.layer.full_layer_layer_norm(inner + attended)


def number_of(closed: set[int]) -> int:
    """Returns the number of a set; heads are counted from 0 to 15, those of pass 10 first."""
    return sum(1 << (head + HEADS if head < HEADS else head - HEADS) for head in closed)


def choose(loss: Tensor, gradients: Tensor) -> dict[str, list[float]]:
    """Returns, for each method and each number of closed heads, the mean loss of the set that it chooses."""
    every = range(2 * HEADS)
    sizes = torch.tensor([number.bit_count() for number in range(SETS)])
    alone = torch.tensor([float(loss[number_of({head})] - loss[0]) for head in every])
    orders = {"order of costs alone": alone.argsort().tolist(), "order of gradients": gradients.argsort().tolist()}
    found = {name: [float(loss[number_of(set(order[:k]))]) for k in range(17)] for name, order in orders.items()}
    gone, greedy = set[int](), [float(loss[0])]
    while len(gone) < 2 * HEADS:
        gone.add(min(set(every) - gone, key=lambda head: float(loss[number_of(gone | {head})])))
        greedy.append(float(loss[number_of(gone)]))
    bits = torch.tensor([[float(number >> place & 1) for place in range(2 * HEADS)] for number in range(SETS)])
    places = [head + HEADS if head < HEADS else head - HEADS for head in every]
    bits = bits[:, places]  # by head
    joint = torch.zeros(2 * HEADS, 2 * HEADS)
    for one in every:
        for other in range(one):
            joint[one, other] = float(loss[number_of({one, other})] - loss[0]) - alone[one] - alone[other]
    surrogate = bits @ alone + ((bits @ joint) * bits).sum(1)
    best, pairs = [], []
    for size in range(17):
        some = (sizes == size).nonzero()[:, 0]
        best.append(float(loss[some].min()))
        pairs.append(float(loss[some[surrogate[some].argmin()]]))
    return {"exact": best, "greedy": greedy, "surrogate of pairs": pairs, **found}


def compare_with_gates(losses: Tensor, subject: Subject, problems: Problems, heads: list[Head], seed: int) -> float:
    """Returns the largest difference between some sets here and under Headway's gates on the whole model."""
    chance, worst = random.Random(seed), 0.0
    for _ in range(CHECKED):
        closed = set(chance.sample(range(2 * HEADS), chance.randrange(2 * HEADS + 1)))
        gates = subject.runner.close_heads([heads[head] for head in closed])
        logits = subject.runner.run(problems, gates)[:, 0]
        expected = cross_entropy(logits, problems.answer[:, 0], reduction="none")
        worst = max(worst, float((losses[number_of(closed)] - expected).abs().max()))
    return worst


@torch.no_grad()
def draw_right(model: Any, smiles: Smiles, count: int, seed: int) -> Problems:
    """Draws problems of one length on which the whole model is right: closing heads can then only be a loss."""
    chance, found = random.Random(seed), list[Problems]()
    length = len(draw_reaction(chance).pieces)
    while len(found) < count:
        each = draw_reaction(chance)
        problem = problems_of([each], [chance.randrange(2)], smiles)
        if len(each.pieces) == length:
            logits = model(input_ids=problem.source).logits[problem.source == smiles.mask]
            if torch.equal(logits.argmax(-1), problem.answer[:, 0]):
                found.append(problem)
    return Problems.join(found)


def main() -> None:
    parser = argparse.ArgumentParser(description="Closes every set of 16 heads of RXNMapper's model.")
    parser.add_argument("--reactions", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/real/exact.json"))
    options = parser.parse_args()
    model, smiles = load()
    problems = draw_right(model, smiles, options.reactions, options.seed + 1)

    def reader(model: Any, source: Tensor, answer: Tensor) -> Tensor:
        at = (source == smiles.mask).nonzero()[:, 1]
        return model(input_ids=source).logits[torch.arange(len(source)), at][:, None]

    subject = subject_from_transformers(model, problems, reader=reader, metric="loss", name="RXNMapper")
    heads = [head for head in subject.heads if head.site.layer in PASSES]
    began = time.process_time()
    with torch.inference_mode():
        losses = Enumeration(model, problems, smiles.mask).losses()
        took = time.process_time() - began
        worst = compare_with_gates(losses, subject, problems, heads, options.seed)
    assert worst < TOLERANCE, f"the enumeration differs from gates on the whole model by {worst:.2g}"
    contrast = Contrast("none", 0, False, problems, problems, place=0)
    trial = Trial(subject, problems, tuple(heads), frozenset(), contrast, sharpest)
    gradients = gate_gradients(trial, [1.0]).mean(1)
    curves = choose(losses.double().mean(1), gradients)
    print(
        f"{SETS:,} sets on {len(problems)} reactions in {took:.0f} s of processor time; {CHECKED} of them differ from"
    )
    print(f"Headway's gates on the whole model by at most {worst:.1g}")
    print(f"| closed | {' | '.join(curves)} |")
    print("|---" * (len(curves) + 1) + "|")
    for size in range(17):
        print(f"| {size} | {' | '.join(f'{curve[size]:.3f}' for curve in curves.values())} |")
    mapping = number_of({PASSES.index(10) * HEADS + 5})
    mean, sizes = losses.mean(1), torch.tensor([number.bit_count() for number in range(SETS)])
    kept = []
    for size in range(1, 16):
        some = (sizes == size).nonzero()[:, 0]
        kept.append(not int(some[mean[some].argmin()]) & mapping)
    print(f"the best set of 1 to 15 heads keeps the atom-mapping head open at {sum(kept)} of 15 sizes")
    found = {"reactions": len(problems), "seconds": round(took, 1), "mapping_head_kept": kept}
    options.out.write_text(json.dumps({**found, "curves": curves}, indent=1) + "\n")


if __name__ == "__main__":
    run(main)
