"""One model is trained, and the head that costs most is called "the head that adds".

Looked right: without it most sums are wrong. In the next seed it is another head.
"""

from dataclasses import replace

from lab import adder_subject, heads_of, trained_adder

from headway import Subject


def build() -> Subject:
    first, *others = (adder_subject(trained_adder(seed)) for seed in range(3))
    return replace(first, claimed=heads_of(trained_adder(0))[:1], others=others, max_drop=1.0)
