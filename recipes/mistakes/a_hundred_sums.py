"""Heads are called redundant because the accuracy on 100 sums fell by less than 1% without them.

Looked right: the rule was stated in advance and followed. On 100 sums, one more wrong answer is 1%, which is chance.
"""

from dataclasses import replace

from lab import adder_subject, trained_adder

from headway import Subject


def build() -> Subject:
    return replace(adder_subject(trained_adder()), claimed_on=100, max_drop=0.01)
