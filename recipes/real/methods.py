"""Ways to rank heads, all on the same prompts: each returns a number for every head and prompt, larger for a head that
matters more.

A method may spend at most a pass for each head and prompt, and one for the prompt itself: what ablating every head
costs. The gradients cost three passes a prompt; integrated gradients use as many steps as that budget allows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from headway.causes.patching import Pairs, Patch
from headway.evaluation.verdicts import losses_of
from headway.heads.variants import Variants
from headway.models import Gate, Head, Trace
from headway.subjects.subject import Subject
from headway.tasks import Problems
from headway.tasks.problems import Contrast

BACKWARD = 3
"""passes that a forward and a backward pass cost"""
Mass = Callable[[Tensor, Problems], Tensor]
"""Called with a site's maps [row, head, query, key] and the problems; returns the attention mass [row, head]."""


@dataclass(frozen=True)
class Trial:
    """A subject, the prompts, the heads to rank, and those that are known to matter."""

    subject: Subject
    problems: Problems
    heads: tuple[Head, ...]
    true: frozenset[Head]
    contrast: Contrast
    mass: Mass
    at_answer: bool = False
    """whether a patch is made only where the answer is written"""


def rank_by_all(trial: Trial, seed: int = 0) -> dict[str, Tensor]:
    """Returns the scores [head, prompt] of every method; those of patching are by pair, not by prompt."""
    steps = max(1, (len(trial.heads) + 1) // BACKWARD)
    generator = torch.Generator().manual_seed(seed)
    return {
        **{f"ablation, {kind}": ablate(trial, kind, seed) for kind in ("zero", "mean", "resample")},
        "patching (ours)": patch(trial),
        "gradient": gate_gradients(trial, [1.0]),
        "gradient, absolute": gate_gradients(trial, [1.0]).abs(),
        "integrated gradients": gate_gradients(trial, [(step + 0.5) / steps for step in range(steps)]),
        "attention mass": attend(trial),
        "random": torch.rand(len(trial.heads), 1, generator=generator).expand(-1, len(trial.problems)),
    }


@torch.no_grad()
def ablate(trial: Trial, kind: str, seed: int) -> Tensor:
    """Returns the increase in loss when each head is closed."""
    variants = Variants(trial.subject, kind, seed)
    losses = variants(trial.problems, [frozenset(), *(frozenset({head}) for head in trial.heads)]).loss
    return (losses[1:] - losses[0]).cpu()


@torch.no_grad()
def patch(trial: Trial) -> Tensor:
    """Returns how far each head's output on the other problem of a pair moves the answer towards that problem's."""
    pairs = Pairs(trial.subject, [trial.contrast])
    moved = pairs([Patch(frozenset({head}), trial.at_answer) for head in trial.heads]).moved
    return moved[:, pairs.known].cpu()


def gate_gradients(trial: Trial, openings: list[float]) -> Tensor:
    """Returns minus the gradient of the loss at each head's gate, averaged over these openings of all gates."""
    runner, found = trial.subject.runner, []
    sites = list(dict.fromkeys(head.site for head in trial.heads))
    for batch in runner.batches(trial.problems):
        total = torch.zeros(len(trial.heads), len(batch))
        for opening in openings:
            passed = {site: torch.full((len(batch), runner.width[site]), opening, requires_grad=True) for site in sites}
            with torch.enable_grad():
                logits = runner.run(batch, {site: Gate(gate) for site, gate in passed.items()})
                gradients = dict(
                    zip(sites, torch.autograd.grad(losses_of(logits, batch).sum(), list(passed.values())), strict=True)
                )
            total -= torch.stack([gradients[head.site][:, head.number] for head in trial.heads])
        found.append(total / len(openings))
    return torch.cat(found, dim=1)


@torch.no_grad()
def attend(trial: Trial) -> Tensor:
    """Returns the attention mass of each head."""
    runner, found = trial.subject.runner, []
    for batch in runner.batches(trial.problems):
        trace = Trace()
        runner.run(batch, trace=trace)
        by_site = {site: trial.mass(maps, batch) for site, maps in trace.maps.items()}
        found.append(torch.stack([by_site[head.site][:, head.number] for head in trial.heads]))
    return torch.cat(found, dim=1)


def sharpest(maps: Tensor, problems: Problems) -> Tensor:
    """Returns the mean over all queries of the largest weight: how sharply each head looks."""
    return maps.amax(-1).mean(-1)
