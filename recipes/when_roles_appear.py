"""When does an adder learn to carry? Runs the causal tests at several steps of one training run.

    python recipes/when_roles_appear.py            # a few minutes on two cores
    python recipes/when_roles_appear.py 1 30,60    # another seed, other steps

Prints, for each of these steps, the accuracy and the share of pairs in which patching a site flips the answer digit:
for the carry into column 2, and for the digits of column 1. "not yet" means that the model is wrong on more than half
of the pairs, so nothing can be tested.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from headway.causes.profiles import measure_profile, profile_contrasts
from headway.evaluation.exact import evaluate_sample
from headway.machine import choose_device
from headway.models import build_model
from headway.runs.config import Overrides
from headway.runs.folder import RunFolder
from headway.subjects.own import Run, subject_of
from headway.tasks import create_task
from headway.training.batches import draw_batches
from headway.training.defaults import plan
from headway.training.learner import Learner

STEPS = "100,150,200,250,300,400,600"
SITES = ("encoder.0.self", "encoder.1.self", "decoder.0.cross", "decoder.1.self", "decoder.1.cross")
CONTRASTS = ("operand 1", "carry 2")


def main(seed: int = 0, steps: str = STEPS) -> list[dict[str, object]]:
    device, config = choose_device("cpu"), plan("addition", Overrides(), seed)
    task, learner = create_task("addition"), Learner(build_model(config.model, seed), config.training)
    batches, found = draw_batches(task, config.training, [seed], None, 0, device), []
    print(f"{'step':>5} {'right':>7}  " + "  ".join(f"{name}: {site}" for name in CONTRASTS for site in SITES))
    for step in map(int, steps.split(",")):
        while learner.steps < step:
            learner.step(next(batches))
        run = Run(RunFolder(Path("nowhere")), config, task, learner.model.eval())
        right = evaluate_sample(learner.model, task, 5000).exact_match
        with torch.no_grad():
            subject = subject_of(run)
            profile = measure_profile(subject, profile_contrasts(subject))
        learner.model.train()
        shares = None if profile is None else {c: {s: profile.flips[s][c] for s in SITES} for c in CONTRASTS}
        found.append({"step": step, "right": right, "flips": shares})
        cells = ["not yet"] if shares is None else [f"{shares[c][s]:.2f}" for c in CONTRASTS for s in SITES]
        print(f"{step:>5} {right:>7.4f}  " + "  ".join(cells), flush=True)
    return found


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 0, sys.argv[2] if len(sys.argv) > 2 else STEPS)
