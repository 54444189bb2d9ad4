"""Breaks files in many ways, and runs a reader on thousands of broken ones.

A mutation is a kind and a seed, so that a failure can be repeated. A reader must read right or say in one sentence
why it does not: no other exception, no hang, nothing written outside its folder.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import random
import resource
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from headway.errors import HeadwayError

SECONDS = 20.0
"""The time after which a reader counts as hanging."""
MEMORY = 6 << 30
"""The most bytes that a reader may take."""

REFUSED, DOUBTED, RIGHT = "refused in a sentence", "not believed", "read right or made again"

Bytes = Callable[[bytes, random.Random], bytes]


def truncated(content: bytes, dice: random.Random) -> bytes:
    return content[: dice.randrange(len(content) + 1)]


def flipped(content: bytes, dice: random.Random) -> bytes:
    found = bytearray(content)
    for _ in range(dice.choice((1, 1, 1, 2, 8))):
        if found:
            found[dice.randrange(len(found))] ^= 1 << dice.randrange(8)
    return bytes(found)


def inserted(content: bytes, dice: random.Random) -> bytes:
    at = dice.randrange(len(content) + 1)
    return content[:at] + dice.randbytes(dice.choice((1, 3, 40, 3000))) + content[at:]


def deleted(content: bytes, dice: random.Random) -> bytes:
    at = dice.randrange(len(content) + 1)
    return content[:at] + content[at + dice.choice((1, 2, 30, 400)) :]


def overwritten(content: bytes, dice: random.Random) -> bytes:
    at, count = dice.randrange(len(content) + 1), dice.choice((1, 4, 8, 100))
    return content[:at] + dice.randbytes(count) + content[at + count :]


def repeated(content: bytes, dice: random.Random) -> bytes:
    at, count = dice.randrange(len(content) + 1), dice.choice((1, 5, 80, 5000))
    return content[: at + count] + content[at:]


def swapped(content: bytes, dice: random.Random) -> bytes:
    one, two, three = sorted(dice.randrange(len(content) + 1) for _ in range(3))
    return content[:one] + content[two:three] + content[one:two] + content[three:]


def no_text(content: bytes, dice: random.Random) -> bytes:
    at = dice.randrange(len(content) + 1)
    return (
        content[:at]
        + dice.choice((b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf8\x88", b"\x00", b"\xef\xbb\xbf"))
        + content[at:]
    )


def other(content: bytes, dice: random.Random) -> bytes:
    """Replaces the content by something else altogether."""
    whole = (b"", b"\n", b"null", b"[]", b"{}", b"0", b'""', b"NaN", b"[" * 100_000, b'{"a":' * 100_000, b"\x00" * 99)
    return dice.choice(
        (*whole, b"\xff\xfe", b"PK\x03\x04" + bytes(80), b"9" * 5_000, b"SQLite format 3\x00" + bytes(84))
    )


IN_BYTES: dict[str, Bytes] = {
    each.__name__: each
    for each in (truncated, flipped, inserted, deleted, overwritten, repeated, swapped, no_text, other)
}


class Raw:
    """Text that goes into JSON unchanged, even if Python would never write it."""

    def __init__(self, text: str) -> None:
        self.text = text


def nested(depth: int, opening: str = "[", closing: str = "]") -> Raw:
    return Raw(opening * depth + closing * depth)


VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 7, 255, 2**31, 2**63, -(2**63) - 1, 10**12, 10**30, 10**400, 10**4_000,
    Raw("9" * 9_000),
    0.5, -0.5, 1e-300, 1e300, Raw("1e999"), Raw("-1e999"), Raw("NaN"), "", " ", "a", "0", "../../x", "/etc/passwd",
    "..", ".", "a:b", "os:system", "\x00", "\ud800", "‮", "x" * 100_000, "a\nb", "<script>", [], [[]], [None], [1, 2],
    ["a"], [1.5, "a", None], [0] * 5_000, {}, {"a": 1}, {"": {}}, {"file": "../../x"}, nested(50), nested(400),
    nested(900), nested(3_000), nested(100_000), Raw('{"a":' * 600 + "1" + "}" * 600),
)  # fmt: skip


def in_json(content: bytes, dice: random.Random) -> bytes:
    """Changes one thing in a JSON file; JSON lines are changed one at a time."""
    lines = content.decode().splitlines()
    if len(lines) > 1 and lines[0].lstrip().startswith("{") and lines[0].rstrip().endswith("}"):
        at = dice.randrange(len(lines))
        lines[at] = _changed(json.loads(lines[at]), dice)
        return "\n".join(lines).encode(errors="surrogatepass") + b"\n"
    return _changed(json.loads(content), dice).encode(errors="surrogatepass")


def _changed(whole: Any, dice: random.Random) -> str:
    whole = copy.deepcopy(whole)
    for _ in range(dice.choice((1, 1, 1, 2))):
        holder, key = _place(whole, dice)
        if holder is None:
            whole = _value(dice)
            continue
        match dice.choice(("replace", "replace", "replace", "delete", "add", "swap", "move")):
            case "replace":
                holder[key] = _value(dice)
            case "delete":
                del holder[key]
            case "add" if isinstance(holder, dict):
                holder[dice.choice(("", "a", "sha256", "__class__", "../x", key + "\x00"))] = copy.deepcopy(
                    dice.choice(VALUES)
                )
            case "add":
                holder.insert(key, _value(dice))
            case "swap":
                holder[key] = _other_type(holder[key])
            case "move":
                from_holder, from_key = _place(whole, dice)
                if from_holder is not None:
                    holder[key] = copy.deepcopy(from_holder[from_key])
    return _dump(whole)


def _value(dice: random.Random) -> Any:
    """Returns a copy of a value, so that later changes inside it leave the original alone."""
    return copy.deepcopy(dice.choice(VALUES))


def _place(whole: Any, dice: random.Random) -> tuple[Any, Any]:
    """Chooses a list or an object somewhere inside, and one of its keys."""
    holder, key, here = None, None, whole
    while isinstance(here, dict | list) and here:
        holder, key = here, dice.choice(list(here)) if isinstance(here, dict) else dice.randrange(len(here))
        here = here[key]
        if dice.random() < 0.25:
            break
    return holder, key


def _other_type(value: Any) -> Any:
    match value:
        case bool() | None:
            return str(value)
        case str():
            return [value]
        case int() | float():
            return str(value)
        case list():
            return dict.fromkeys(map(str, range(len(value))), 0)
        case dict():
            return [*value.values()]
    return None


def _dump(value: Any) -> str:
    if isinstance(value, Raw):
        return value.text
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(str(key))}: {_dump(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_dump, value)) + "]"
    with contextlib.suppress(ValueError):
        return json.dumps(value, ensure_ascii=not isinstance(value, str) or "\ud800" not in value)
    return f"1{'0' * 4_000}"


def as_folder(path: Path) -> None:
    path.mkdir()


def as_dangling(path: Path) -> None:
    path.symlink_to(path.with_name("nothing-is-here"))


def as_loop(path: Path) -> None:
    path.symlink_to(path.name)


def as_pipe(path: Path) -> None:
    os.mkfifo(path)


def as_endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def as_missing(path: Path) -> None:
    pass


ON_DISK: dict[str, Callable[[Path], None]] = {
    each.__name__: each for each in (as_folder, as_dangling, as_loop, as_pipe, as_endless, as_missing)
}


def put(path: Path, content: bytes) -> None:
    """Writes a file with this content, whatever was there before."""
    take_away(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def take_away(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


class Bench:
    """Breaks the files of a folder one at a time and checks that nothing around it is touched."""

    def __init__(self, home: Path, folder: Path) -> None:
        self.home = home
        self.inside = home / "inside"
        shutil.copytree(folder, self.inside)
        (home / "elsewhere").mkdir()
        (home / "elsewhere" / "kept").write_text("as it was")
        self.whole = {path: path.read_bytes() for path in self.inside.rglob("*") if path.is_file()}
        self.counts: Counter[str] = Counter()

    def restore(self) -> None:
        for path in sorted(self.inside.rglob("*"), reverse=True):
            if path not in self.whole and (path.is_symlink() or not path.is_dir()):
                path.unlink()
        for path, content in self.whole.items():
            if path.is_symlink() or not path.is_file() or path.read_bytes() != content:
                put(path, content)

    def breaks(
        self,
        path: Path,
        reader: Callable[[], Any],
        right: Callable[[Any], bool | str],
        examples: int,
        mend: Callable[[], None] = lambda: None,
        kinds: tuple[str, ...] | None = None,
    ) -> None:
        """Runs the reader on many broken versions of a file. `mend` recomputes the hashes, as a forger would."""
        text = path.suffix in (".json", ".jsonl")
        known = [*IN_BYTES, *ON_DISK, *(["in_json"] * len(IN_BYTES) if text else [])]

        @settings(
            max_examples=examples,
            phases=[Phase.generate],
            database=None,
            derandomize=True,
        )
        @given(kind=st.sampled_from(kinds or known), seed=st.integers(0, 2**32 - 1))
        def broken(kind: str, seed: int) -> None:
            dice, content = random.Random(f"{path.name} {kind} {seed}"), self.whole[path]
            if kind in ON_DISK:
                take_away(path)
                ON_DISK[kind](path)
            else:
                made = in_json(content, dice) if kind == "in_json" else IN_BYTES[kind](content, dice)
                if made == content:
                    return
                put(path, made)
            self.ask(reader, right, mend)

        broken()

    def ask(
        self, reader: Callable[[], Any], right: Callable[[Any], bool | str], mend: Callable[[], None] = lambda: None
    ) -> None:
        """Runs the reader once on the current files, and restores everything afterwards."""
        try:
            mend()
            with limited(), contextlib.chdir(self.home / "elsewhere"):
                found = reader()
            verdict = right(found)
            assert verdict, f"silently believed: {str(found)[:500]}"
            self.counts[verdict if isinstance(verdict, str) else RIGHT] += 1
        except HeadwayError as error:
            said = str(error)
            assert said, "nothing said"
            assert "\n" not in said, f"more than a line: {said[:500]!r}"
            assert len(said) < 2_000, f"no sentence but {len(said)} letters: {said[:500]!r}"
            self.counts[REFUSED] += 1
        finally:
            self.restore()
        assert sorted(each.name for each in self.home.iterdir()) == ["elsewhere", "inside"]
        assert [each.read_text() for each in (self.home / "elsewhere").iterdir()] == ["as it was"]

    def summary(self) -> str:
        counted = [f"{self.counts[each]:,} {each}" for each in (REFUSED, DOUBTED, RIGHT) if self.counts[each]]
        return f"{self.counts.total():,} mutated files: {', '.join(counted)}"


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """Raises an exception in a reader that takes too long or too much memory."""

    def ring(*_: object) -> None:
        raise TimeoutError(f"it hangs: longer than {SECONDS:g} seconds")

    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    before = signal.signal(signal.SIGALRM, ring)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, hard))
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
