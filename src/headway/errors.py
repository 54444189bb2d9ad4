"""Errors that a user can cause, each one sentence: the thing, the value, the way out. Everything raised for a user is a
`HeadwayError`; the command line prints it as one line and exits with status 2. An `AssertionError` is a bug in
Headway."""

import difflib
import re
from collections.abc import Iterable

LONGEST = 1_200  # characters of a message


class HeadwayError(ValueError):
    """The request is wrong or cannot be met; the message says how to fix it."""

    def __init__(self, sentence: str) -> None:
        line = re.sub(r"\s*[\n\r]\s*", " ", sentence.strip())
        if len(line) > LONGEST:  # it quotes a very long value, whose middle is left out
            line = f"{line[: LONGEST // 2]} … {line[-LONGEST // 2 :]}"
        super().__init__(line)


class BrokenRun(HeadwayError):
    """A file of a run folder is missing, truncated or altered."""


class CannotWrite(HeadwayError):
    """The disk is full or the folder is not writable, so other runs would fail too."""


class TrainingFailed(HeadwayError):
    """Training cannot continue (the loss is not a number); the last checkpoint is kept."""


def unknown(kind: str, name: str, known: Iterable[str]) -> HeadwayError:
    """Makes an error for a name that does not exist, which suggests the nearest one that does."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(names)}"
    return HeadwayError(f"unknown {kind} {name!r}; {hint}")
