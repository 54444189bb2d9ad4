"""Training stops when the loss "has come down", and the heads of the unfinished model are studied.

Looked right: the loss fell by nine tenths. Many of the sums are still wrong, and which heads those need is anyone's
guess.
"""

from lab import adder_subject, trained_adder

from headway import Subject


def build() -> Subject:
    return adder_subject(trained_adder(steps=150))
