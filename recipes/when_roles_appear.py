"""When does an adder come to carry? The causal tests at several moments of one training.

    python recipes/when_roles_appear.py            # some minutes on two cores
    python recipes/when_roles_appear.py 1 30,60    # another seed, other moments

Prints, for each moment, how often the model is right and in what share of the pairs the answer digit turns when a
site is patched: the carry into column 2, and the digits of column 1. "not yet" stands where the model is wrong on more
than half of the pairs: nothing can be tested then.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from headway.causes.kinds import measure_profile, profile_contrasts
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

MOMENTS = "100,150,200,250,300,400,600"
SITES = ("encoder.0.self", "encoder.1.self", "decoder.0.cross", "decoder.1.self", "decoder.1.cross")
ASKED = ("operand 1", "carry 2")


def main(seed: int = 0, moments: str = MOMENTS) -> list[dict[str, object]]:
    device, config = choose_device("cpu"), plan("addition", Overrides(), seed)
    task, learner = create_task("addition"), Learner(build_model(config.model, seed), config.training)
    batches, found = draw_batches(task, config.training, [seed], None, 0, device), []
    print(f"{'step':>5} {'right':>7}  " + "  ".join(f"{asked}: {site}" for asked in ASKED for site in SITES))
    for moment in map(int, moments.split(",")):
        while learner.steps < moment:
            learner.step(next(batches))
        run = Run(RunFolder(Path("nowhere")), config, task, learner.model.eval())
        right = evaluate_sample(learner.model, task, 5000).exact_match
        with torch.no_grad():
            subject = subject_of(run)
            profile = measure_profile(subject, profile_contrasts(subject))
        learner.model.train()
        shares = None if profile is None else {a: {s: profile.flips[s][a] for s in SITES} for a in ASKED}
        found.append({"step": moment, "right": right, "flips": shares})
        cells = ["not yet"] if shares is None else [f"{shares[a][s]:.2f}" for a in ASKED for s in SITES]
        print(f"{moment:>5} {right:>7.4f}  " + "  ".join(cells), flush=True)
    return found


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 0, sys.argv[2] if len(sys.argv) > 2 else MOMENTS)
