"""Shows small adders at work: ten digits by the protocol of a public list, and a million digits.

    python recipes/show_smallest_adder.py [pretrained:smallest-adder] [--digits 1000000]

1. 10 edge cases and 10,000 pairs below 10^10 from Python's random with seed 2025, decoded by a plain loop that knows
   nothing of sums: all tokens written so far go through the model, and the likeliest next token is appended.
2. A carry through every column, and random digits, of `--digits` digits each: decoded digit by digit, and once more in
   one pass given the right digits before each.
"""

import argparse
import random
import time

import torch

from headway.models import Model
from headway.subjects.own import open_one
from headway.tasks import Problems, Task

TEN = 10**10
EDGES = [
    (0, 0), (0, 1), (TEN - 1, 0), (TEN - 1, 1), (TEN - 1, TEN - 1), (TEN // 2, TEN // 2),
    (1_111_111_111, 8_888_888_889), (1_234_567_890, 9_876_543_210), (1, TEN - 1), (0, TEN - 1),
]  # fmt: skip


def join(task: Task, pairs: list[tuple[int, int]]) -> Problems:
    """Returns these sums as problems of ten digits."""
    return Problems.join([task.read(f"{a}+{b}", length=10) for a, b in pairs])


@torch.inference_mode()
def decode(model: Model, problems: Problems) -> torch.Tensor:
    """Decodes greedily by whole passes."""
    assert model.start is not None
    written = torch.full_like(problems.answer[:, :1], model.start)
    for _ in range(problems.answer.shape[1]):
        logits = model.decode(problems.source, written)
        written = torch.cat((written, logits[:, -1:].argmax(-1)), dim=1)
    return written[:, 1:]


def count_right(model: Model, problems: Problems) -> int:
    return int((decode(model, problems) == problems.answer).all(1).sum())


@torch.inference_mode()
def show_long(model: Model, task: Task, probe: str, digits: int) -> str:
    """Adds two long numbers; says how many digits of the sum are right, decoded and given the right digits."""
    problems, began = task.testing(0, 1, probe=probe, length=digits), time.perf_counter()
    decoded = int((model.generate(problems.source, digits + 1) == problems.answer).sum())
    took = time.perf_counter() - began
    given = int((model(problems.source, problems.answer).argmax(-1) == problems.answer).sum())
    of = f"of {digits + 1:,} digits"
    return f"{probe}, {digits:,} digits: decoded {decoded:,} {of} right in {took:.0f} s; in one pass {given:,} {of}"


def main(subject: str, digits: int) -> list[str]:
    run = open_one(subject)
    model, task, dice = run.model, run.task, random.Random(2025)
    numbers = sum(weight.numel() for weight in model.parameters())
    pairs = [(dice.randint(0, TEN - 1), dice.randint(0, TEN - 1)) for _ in range(10_000)]
    said = [f"{subject}: {numbers} trained numbers"]
    said.append(f"edge cases: {count_right(model, join(task, EDGES))} of {len(EDGES)} right")
    said.append(f"random pairs, seed 2025: {count_right(model, join(task, pairs)):,} of {len(pairs):,} right")
    said += [show_long(model, task, probe, digits) for probe in ("default", "carry-chain")]
    print("\n".join(said))
    return said


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("subject", nargs="?", default="pretrained:smallest-adder")
    parser.add_argument("--digits", type=int, default=1_000_000)
    args = parser.parse_args()
    torch.set_num_threads(1)
    main(args.subject, args.digits)
