"""Nothing is wrong here: the doctor has nothing to say."""

import lab

from headway import Subject


def build() -> Subject:
    return lab.adder_subject(lab.trained_adder())
