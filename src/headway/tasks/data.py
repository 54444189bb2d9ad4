"""Problems in JSON files, in the format that people already have.

A folder with `train.json`, `val.json` and `test.json`, each a list of items:
addition      {"input": [1, 2, 3, 10, 4, 5, 6], "target": [0, 5, 7, 9]}    10 is the plus sign
sortedness    {"sequence": [3, 7, 7, 40], "is_sorted": 1, "length": 4}
A user's task has `input` and `target` too, unless it overrides `item` and `read_item`. Every item is checked against
the task, and so is its answer where the task has `solve`: a wrong answer in a file is an error, not training data.
"""

import json
from bisect import bisect
from collections import defaultdict
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import torch

from headway.errors import HeadwayError, unknown
from headway.runs import disk
from headway.runs.config import check_seed
from headway.tasks import random
from headway.tasks.problems import Problems
from headway.tasks.random import Dice
from headway.tasks.task import Item, Task

SPLITS = ("train", "val", "test")


@dataclass(frozen=True)
class Stored:
    """The problems of one file, by length."""

    by_length: dict[int, Problems]

    @property
    def count(self) -> int:
        return sum(map(len, self.by_length.values()))

    def lengths(self) -> tuple[int, int]:
        return min(self.by_length), max(self.by_length)

    def length_at(self, step: int) -> int:
        """Returns the length of a step's problems; each length is as frequent as in the file."""
        word = Dice.of(random.TRAINING, seed=0, step=step, rows=1, device="cpu").words(1)
        lengths = sorted(self.by_length)
        ends = list(accumulate(len(self.by_length[length]) for length in lengths))
        return lengths[bisect(ends, int(random.below(word, self.count)))]

    def training(self, dice: Dice, length: int) -> Problems:
        problems = self.by_length[length]
        chosen = random.below(dice.words(1)[:, 0], len(problems))
        return problems[chosen.to(problems.source.device)].to(dice.row.device)


def read_split(task: Task, folder: Path, split: str) -> Stored:
    """Reads one file of a data folder and checks every item."""
    if split not in SPLITS:
        raise unknown("split", split, SPLITS)
    path = folder / f"{split}.json"
    if not path.is_file():
        raise HeadwayError(f"there is no {path}; a data folder has train.json, val.json and test.json")
    content = disk.read_bytes(path)
    try:
        items = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise HeadwayError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(items, list) or not items:
        raise HeadwayError(f"{path} must be a list with at least one problem")
    rows: dict[int, list[tuple[int, list[int], list[int]]]] = defaultdict(list)
    for number, item in enumerate(items):
        try:
            length, source, answer = task.read_item(item)
        except HeadwayError as error:
            raise HeadwayError(f"{path}, item {number}: {error}") from error
        rows[length].append((number, source, answer))
    by_length = {}
    for length, entries in rows.items():
        source = torch.tensor([source for _, source, _ in entries])
        given = torch.tensor([answer for _, _, answer in entries])
        problems = task.solve(source) or Problems(source, given)
        for at in (problems.answer != given).any(1).nonzero()[:1, 0].tolist():
            right = task.show(source[at].tolist(), problems.answer[at].tolist())
            raise HeadwayError(f"{path}, item {entries[at][0]}: the answer {given[at].tolist()} is wrong; {right}")
        by_length[length] = problems
    return Stored(by_length)


def drop_held_out(task: Task, stored: Stored) -> tuple[Stored, int]:
    """Drops the problems of the held-out tenth, which no run trains on; returns the rest and the number dropped."""
    kept = {length: problems[~task.held_out(problems)] for length, problems in stored.by_length.items()}
    left = Stored({length: problems for length, problems in kept.items() if len(problems)})
    if not left.by_length:
        raise HeadwayError("every problem of train.json belongs to the held-out tenth; add problems to train on")
    return left, stored.count - left.count


def write_data(task: Task, folder: Path, counts: dict[str, int], seed: int) -> list[Path]:
    """Writes the files: train and val from the trainable problems, test from the held-out tenth.
    No problem is in two of them, nor one that gives it away (b + a for a + b)."""
    for split, count in counts.items():
        if count < 0:
            raise HeadwayError(f"{split} is {count}; it must be at least 0")
        if count and (folder / f"{split}.json").exists():
            raise HeadwayError(f"{folder / split}.json already exists; choose another `out`")
    check_seed(seed)
    drawn, owner, content = 0, dict[int, str](), dict[str, list[Item]]()
    for split, count in counts.items():
        items, fruitless = dict[tuple[int, ...], Item](), 0
        while len(items) < count:
            before = len(items)
            for source, answer, identity in _rows(task, seed, drawn, held_out=split == "test"):
                if len(items) < count and owner.setdefault(identity, split) == split:
                    items[tuple(source)] = task.item(source, answer)
            drawn += 1
            fruitless = 0 if len(items) > before else fruitless + 1
            if fruitless > 100:
                few = f"{task.name} has hardly more than {len(items)} problems for {split}.json"
                raise HeadwayError(f"{few}; ask for fewer")
        content[split] = list(items.values())
    written = {folder / f"{split}.json": problems for split, problems in content.items() if problems}
    for path, problems in written.items():
        disk.write_bytes(path, json.dumps(problems).encode())
    return list(written)


def _rows(task: Task, seed: int, step: int, held_out: bool) -> list[tuple[list[int], list[int], int]]:
    """Draws problems that are held out, or that are not: the source, answer and identity of each."""
    problems = task.draw(Dice.of(random.STORING, seed, step, 256, "cpu"), "default", task.training_length(step))
    if problems.scored is not None and task.solve(problems.source) is None:
        raise HeadwayError(f"only some answer tokens of {task.name} are scored; implement `solve`, which marks them")
    kept = problems[task.held_out(problems) == held_out]
    return list(zip(kept.source.tolist(), kept.answer.tolist(), task.identity(kept).tolist(), strict=True))
