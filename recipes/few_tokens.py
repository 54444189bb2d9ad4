"""How far does a rule "reach" that reads only a few tokens of a sequence?

    python recipes/few_tokens.py          # 16 tokens: no more than training shows; about a minute
    python recipes/few_tokens.py 8        # fewer

A control for the study of lengths: the rule says "sorted" if the tokens that it reads are, the first ones or evenly
spaced ones. A probe that such a rule passes at every length does not show that a model compares more tokens than it was
trained to; only a probe that the rule fails can show that.
"""

import sys

import torch

from headway.compare.curves import decide
from headway.lengths.probes import ProbeProblems
from headway.tasks import create_task

PROBES = ("default", "one-inversion", "descending", "ties")
LENGTHS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
POINTS = 5_220  # of the study that results/lengths.md reports: its level of confidence is used here


def main(
    tokens: int = 16, lengths: tuple[int, ...] = LENGTHS, examples: int = 2_000
) -> dict[tuple[str, str, int], str]:
    drawn = ProbeProblems(create_task("sortedness"), lengths, PROBES, examples, 0, torch.device("cpu"))
    found = {}
    for length in lengths:
        problems, rows_of = drawn.problems_at(length)
        for rule, step in (("first", 1), ("evenly spaced", max(1, length // tokens))):
            read = problems.source[:, ::step][:, :tokens]
            wrong = (read[:, 1:] >= read[:, :-1]).all(1) != problems.answer[:, 0].bool()
            cells = []
            for probe, rows in rows_of.items():
                errors = int(wrong[rows].sum())
                found[rule, probe, length] = verdict = decide(len(rows), errors, POINTS)
                cells.append(f"{probe} {1 - errors / len(rows):.4f} ({verdict})")
            print(f"length {length:>4}, the {tokens} {rule} tokens, n = {examples:,}: {', '.join(cells)}", flush=True)
    return found


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 16)
