"""From what a person types to what they see: the command's flags are parsed, it is run, and its output printed. Only
the named command is imported from `commands.py`, so that `headway --help` answers at once."""

import contextlib
import importlib
import io
import re
import shlex
import sys
from dataclasses import fields, make_dataclass
from typing import Annotated, Any, Union, cast

import tyro

from headway.errors import HeadwayError, unknown

ABOUT = "Which attention heads does a transformer need, and how far past its training length does it work?"
COMMANDS = {
    "train": "Train one run, or one per seed.",
    "evaluate": "Exact match, by strata, of a run or a folder of runs.",
    "heads": "Which heads a model needs, and which can go together.",
    "prune": "Write a model without the heads that can go together.",
    "lengths": "How far past its training length each position encoding works, and what stops it.",
    "certify": "Prove a windowed model right at every length, by going through every local context.",
    "doctor": "May a conclusion be drawn at all? Checks a model and its evaluation, and says what is wrong.",
    "add": "A sum by real decoding, digit by digit.",
    "data": "Write a data set as train.json, val.json and test.json.",
    "list": "What there is: tasks, positions, runs or checks.",
    "compare": "Many runs in one table, grouped by what they are; says what else differs between the groups.",
    "lab": "The main job: train, evaluate and compare, from nothing to one table.",
    "report": "One HTML file of what folders hold, with the trained adder inside.",
    "sweep": "Many trials: a grid of settings and seeds, on this machine's processes or on a Ray cluster.",
    "bench": "Ours beside a plain reference, in one process.",
}


def main(arguments: list[str] | None = None) -> int:
    words = sys.argv[1:] if arguments is None else arguments
    try:
        command = parse(words)
        output = command.run()
        output.print(as_json=command.json)
        return output.status
    except HeadwayError as error:
        print_error(with_flags(str(error), words))
        return 2
    except BrokenPipeError:  # the reader of a pipe has left
        sys.stderr.close()
        return 0
    except OSError as error:  # a file that may not be read, a name that is too long
        print_error(f"{error.filename or 'the system'}: {error.strerror or error}")
        return 2
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "out of memory" not in str(error) and "can't allocate" not in str(error):
            raise
        print_error("out of memory; use a smaller --batch, --length or model")
        return 2
    except KeyboardInterrupt:
        print_error(f"stopped{how_to_go_on(words)}")
        return 130


def print_error(sentence: str) -> None:
    print("error: " + " ".join(sentence.split()), file=sys.stderr)


def parse(words: list[str]) -> Any:
    """The command a person typed; what tyro has to say against it becomes one sentence."""
    first = words[0] if words else ""
    completes = first.startswith("--tyro-")  # a shell completes the flags of all commands
    if first not in (*COMMANDS, "", "-h", "--help") and not completes:
        raise unknown("command", first, COMMANDS)
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
        while error is not None and not isinstance(error, HeadwayError):  # what a question itself says against it
            error = error.__context__
        raise error or HeadwayError(_one_line(complaint.getvalue())) from None
    if extra:
        flags = [f"--{entry.name.replace('_', '-')}" for entry in fields(command)]
        raise unknown(f"flag of 'headway {first}'", extra[0], flags)
    return command


def command_class(name: str) -> type:
    return getattr(importlib.import_module("headway.commands"), name.capitalize())


def _one_line(box: str) -> str:
    """tyro draws a box; its text is the sentence."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", box)
    lines = [line.strip("│╭╰╮╯─ \t") for line in plain.splitlines() if not line.startswith("╭")]
    return re.sub(r"\s*For full helptext, run:?", "; see", " ".join(filter(None, lines)))


def with_flags(sentence: str, words: list[str]) -> str:
    """A sentence that names fields of the question in backticks, with the flags of this command in their place."""
    known = {entry.name for entry in fields(command_class(words[0]))} if words and words[0] in COMMANDS else set()

    def flag(found: re.Match[str]) -> str:
        name, value = found.groups()
        written = f"--{name.replace('_', '-')}" + ("" if value is None else f" {value}")
        return written if name in known else found[0]

    return re.sub(r"`(\w+)(?:=([^`]*))?`", flag, sentence)


def how_to_go_on(words: list[str]) -> str:
    again = shlex.join(["headway", *(word for word in words if word != "--resume")])
    match words[:1]:
        case ["train"] if "--population" in words:
            return f"; what has ended is kept, and the last checkpoint of the rest; go on with: {again} --resume"
        case ["train"]:
            return f"; the last checkpoint is kept, go on with: {again} --resume"
        case ["lab" | "lengths" | "sweep"]:
            return f"; what is done is kept, go on with: {again}"
    return ""


if __name__ == "__main__":
    sys.exit(main())
