"""The same lab without a mistake: the doctor finds nothing wrong."""

import lab

from headway import Subject


def build() -> Subject:
    return lab.adder_subject(lab.trained_adder())
