"""The command line: parses a command's flags, runs it and prints its output. Only the named command is imported from
`commands.py`, so that `headway --help` answers at once."""

import contextlib
import importlib
import io
import re
import shlex
import sys
from collections import Counter
from dataclasses import fields, make_dataclass
from typing import Annotated, Any, Union, cast

import tyro

from headway.errors import HeadwayError, unknown

ABOUT = "Which attention heads does a transformer need, and how far past its training length does it work?"
COMMANDS = {
    "train": "Train one run, or one per seed.",
    "evaluate": "Measure exact match, by strata, of a run or of a folder of runs.",
    "heads": "Find which heads a model needs, and which can be removed together.",
    "prune": "Write a model without the heads that can be removed together.",
    "lengths": "Measure how far past its training length an encoding or a model of yours works, and what stops it.",
    "certify": "Prove that a model is right at every length, in float32: check every context, bound all else.",
    "doctor": "Check whether conclusions may be drawn: tests a model and its evaluation, and says what is wrong.",
    "new": "Write a commented adapter: how the doctor runs your model, or each submission of a class.",
    "add": "Add two numbers with a trained model, decoded digit by digit.",
    "data": "Write a data set as train.json, val.json and test.json.",
    "list": "List the available tasks, positions, runs, checks or pretrained models.",
    "compare": "Compare many runs in one table, grouped by their settings, and say what else differs between groups.",
    "lab": "Train, evaluate and study the standard models, from nothing to one report.",
    "report": "Write the results in these folders as one HTML file, with the trained adder inside.",
    "sweep": "Run many trials, a grid of settings and seeds, on this machine's processes or on a Ray cluster.",
    "bench": "Time Headway against plain reference implementations, in one process.",
    "completion": "Print a script that completes commands and flags in your shell.",
}
EXAMPLES = {
    "train": "headway train addition --seeds 5 --out runs/adders",
    "evaluate": "headway evaluate pretrained:adder --all",
    "heads": "headway heads pretrained:adder",
    "prune": "headway prune pretrained:adder --out runs/smaller",
    "lengths": "headway lengths sortedness --track tuned --positions kerple,rope --lengths 32,64,128",
    "certify": "headway certify pretrained:certified-adder",
    "doctor": "headway doctor subject.py:build",
    "new": "headway new subject --out subject.py",
    "add": "headway add 99999999999999999999 1",
    "data": "headway data addition --out sums",
    "list": "headway list positions",
    "compare": "headway compare runs --by positions",
    "lab": "headway lab --open",
    "report": "headway report lab",
    "sweep": "headway sweep recipes/leaderboard.toml --dry-run",
    "bench": "headway bench train",
    "completion": "source <(headway completion bash)",
}
"""The command line that the help of each command begins with."""
FIRST = f"""{ABOUT}

  headway add 99999999999999999999 1    a sum by a trained adder that is proved right at every length
  headway heads pretrained:adder        which of its 24 heads an adder needs, in two minutes
  headway lab --open                    trains, checks and studies the standard models; one HTML page
  headway new subject                   a file to fill in; then the doctor checks your own experiment
  headway lengths --positions FILE.py:CLASS,kerple    how far an encoding of yours works
  headway lengths FOLDER --text FILE    how long a context your language model uses, and what helps
  headway COMMAND --help                an example, and every flag of a command
  headway --help                        all commands
"""
"""The answer to `headway` alone."""


def main(arguments: list[str] | None = None) -> int:
    words = sys.argv[1:] if arguments is None else arguments
    if not words:
        print(FIRST, end="")
        return 0
    try:
        command = parse(words)
        output = command.run()
        output.print(as_json=command.json)
        return output.status
    except HeadwayError as error:
        print_error(with_flags(str(error), words))
        return 2
    except BrokenPipeError:  # the reader closed the pipe
        sys.stderr.close()
        return 0
    except OSError as error:  # an unreadable file, a name that is too long
        print_error(f"{error.filename or 'the system'}: {error.strerror or error}")
        return 2
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "out of memory" not in str(error) and "can't allocate" not in str(error):
            raise
        print_error("out of memory; use a smaller --batch, --length or model")
        return 2
    except KeyboardInterrupt:
        print_error(f"stopped{suggest_resuming(words)}")
        return 130


def print_error(sentence: str) -> None:
    print("error: " + " ".join(sentence.split()), file=sys.stderr)


def parse(words: list[str]) -> Any:
    """Parses a command line; what tyro objects to becomes one sentence."""
    first = words[0]
    completes = first.startswith("--tyro-")  # shell completion needs the flags of all commands
    if first not in (*COMMANDS, "-h", "--help") and not completes:
        raise unknown("command", first, COMMANDS)
    if first in EXAMPLES and not {"-h", "--help"}.isdisjoint(words):
        print(f"example: {EXAMPLES[first]}\n")
        words = [first, "--help"]  # help answers whatever else was typed, also a flag that does not exist
    if first in COMMANDS:
        words = join_repeated(words, command_class(first))
    choices = [
        Annotated[
            command_class(name) if completes or name == first else make_dataclass(name, ()),
            tyro.conf.subcommand(name, description=about, prefix_name=False),
        ]
        for name, about in COMMANDS.items()
    ]
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            command, extra = tyro.cli(
                cast(Any, Union[tuple(choices)]),  # noqa: UP007
                prog="headway",
                args=words,
                return_unknown_args=True,
                config=(tyro.conf.FlagCreatePairsOff, tyro.conf.OmitArgPrefixes),
                description=ABOUT,
            )
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        error = stop.__context__
        while error is not None and not isinstance(error, HeadwayError):  # raised by the question's own validation
            error = error.__context__
        raise error or HeadwayError(_one_line(complaint.getvalue())) from None
    if extra:
        flags = [f"--{entry.name.replace('_', '-')}" for entry in fields(command)]
        raise unknown(f"flag of 'headway {first}'", extra[0], flags)
    return command


def command_class(name: str) -> type:
    return getattr(importlib.import_module("headway.commands"), name.capitalize())


def join_repeated(words: list[str], command: type) -> list[str]:
    """Joins the values of a repeated flag that takes several, such as `--option a=1 --option b=2`: otherwise only the
    last would count."""
    several = {f"--{entry.name.replace('_', '-')}" for entry in fields(command) if isinstance(entry.default, tuple)}
    values: dict[str, list[str]] = {}
    rest, into, times = list[str](), None, Counter[str]()
    for word in words:
        flag, equals, value = word.partition("=")
        flag = flag.replace("_", "-")
        if flag in several:
            times[flag] += 1
            into = values.setdefault(flag, [])
            into.extend([value] if equals else [])
        elif into is not None and not word.startswith("--"):
            into.append(word)
        else:
            into = None
            rest.append(word)
    if not times or max(times.values()) == 1:
        return words
    return rest + [word for flag, found in values.items() for word in (flag, *found)]


def _one_line(box: str) -> str:
    """Extracts the sentence from the box that tyro draws around an error."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", box)
    lines = [line.strip("│╭╰╮╯─ \t") for line in plain.splitlines() if not line.startswith("╭")]
    return re.sub(r"\s*For full helptext, run:?", "; see", " ".join(filter(None, lines)))


def with_flags(sentence: str, words: list[str]) -> str:
    """Replaces fields of the question, which a message names in backticks, by the flags of this command."""
    known = {entry.name for entry in fields(command_class(words[0]))} if words and words[0] in COMMANDS else set()

    def flag(found: re.Match[str]) -> str:
        name, value = found.groups()
        written = f"--{name.replace('_', '-')}" + ("" if value is None else f" {value}")
        return written if name in known else found[0]

    return re.sub(r"`(\w+)(?:=([^`]*))?`", flag, sentence)


def suggest_resuming(words: list[str]) -> str:
    """Says what was kept of an interrupted command, and which command continues it."""
    command = shlex.join(["headway", *(word for word in words if word != "--resume")])
    match words[:1]:
        case ["train"] if "--population" in words:
            return f"; finished members and the last checkpoint of the rest are kept; continue with: {command} --resume"
        case ["train"]:
            return f"; the last checkpoint is kept; continue with: {command} --resume"
        case ["lab" | "lengths" | "sweep"]:
            return f"; finished work is kept; continue with: {command}"
        case ["doctor"] if "--each" in words:
            return f"; examined submissions are kept; continue with: {command}"
    return ""


if __name__ == "__main__":
    sys.exit(main())
