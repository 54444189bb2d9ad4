"""The errors a person can cause, each one sentence: the thing, the value, the way out. Everything raised for a user is
a `HeadwayError`; the command line prints it as one line and exits with status 2. An `AssertionError` anywhere else is a
bug of ours."""

import difflib
import re
from collections.abc import Iterable

LONGEST = 1_200  # letters of a sentence


class HeadwayError(ValueError):
    """The request is wrong or cannot be met; the message says how to mend it."""

    def __init__(self, sentence: str) -> None:
        line = re.sub(r"\s*[\n\r]\s*", " ", sentence.strip())
        if len(line) > LONGEST:  # of very long values that it quotes the middle is left out
            line = f"{line[: LONGEST // 2]} … {line[-LONGEST // 2 :]}"
        super().__init__(line)


class BrokenRun(HeadwayError):
    """A file of a run folder is missing, truncated or altered."""


class CannotWrite(HeadwayError):
    """The disk is full, or this folder may not be written to: no other run would fare better."""


class TrainingFailed(HeadwayError):
    """Training cannot go on (the loss is not a number); what was reached is kept."""


def unknown(kind: str, name: str, known: Iterable[str]) -> HeadwayError:
    """An error for a name that does not exist, with the nearest one that does."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(names)}"
    return HeadwayError(f"unknown {kind} {name!r}; {hint}")
