"""How long idle threads wait before they sleep. GNU's OpenMP reads it once, when torch is first imported.

By default they spin for milliseconds. On a machine with other work small training steps then take many
times as long, so ours go to sleep soon; on a quiet one that costs our steps a few hundredths, and loops of
smaller steps more. The bench lets them spin, because that is what suits its references.
"""

import os


def sleep_soon() -> None:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")


def spin() -> None:
    os.environ["GOMP_SPINCOUNT"] = "300000"  # libgomp's own default
