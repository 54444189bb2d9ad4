"""The errors a person can cause, each one sentence: the thing, the value, the way out.

Everything raised for a user is a `HeadwayError`; the command line prints it as one line and exits with
status 2. An `AssertionError` anywhere else is a bug of ours.
"""

import difflib
import re
from collections.abc import Iterable

LONGEST = 1_200
"""letters of a sentence"""


class HeadwayError(ValueError):
    """The request is wrong or cannot be met; the message says how to mend it."""

    def __init__(self, sentence: str) -> None:
        super().__init__(one_line(sentence))


class BrokenRun(HeadwayError):
    """A file of a run folder is missing, truncated or altered."""


class CannotWrite(HeadwayError):
    """The disk is full, or this folder may not be written to: no other run would fare better."""


class TrainingFailed(HeadwayError):
    """Training cannot go on (the loss is not a number); what was reached is kept."""


def one_line(text: str) -> str:
    """Fit for one line, whatever it quotes: of very long values the middle is left out."""
    line = re.sub(r"\s*[\n\r]\s*", " ", text.strip())
    return line if len(line) <= LONGEST else f"{line[: LONGEST // 2]} … {line[-LONGEST // 2 :]}"


def unknown(kind: str, name: str, known: Iterable[str]) -> HeadwayError:
    """An error for a name that does not exist, with the nearest one that does."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(names)}"
    return HeadwayError(f"unknown {kind} {name!r}; {hint}")
