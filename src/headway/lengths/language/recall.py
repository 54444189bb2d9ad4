"""Recall tasks: prompts whose right answers are known exactly, made from the model's own vocabulary.

Facts stand at several depths of the context, and every one of them is asked for at its end, so that a single pass
answers many questions at all depths. Prompts of all lengths hold the same number of facts: only the filler between them
grows.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Generator, Tensor

from headway.errors import HeadwayError, unknown
from headway.lengths.language.corpus import Material

SEGMENT = 8  # tokens of a segment that is repeated
MOST_FACTS = 16  # at each depth
LEAD, TAIL = 16, 8  # tokens of filler before all facts (what keeps the first tokens must not keep a fact), and after
SHARE = 0.5  # of the shortest prompt, at most, that facts and questions take
_NAMES = """Anna Ben Carl Dora Emma Frank Greta Henry Ida Jack Karen Leo Mary Nick Olga Paul Rita Sam Tina Victor Wendy
Adam Bella Clara David Ella Felix Grace Hugo Irene Jane Kurt Laura Mark Nora Oscar Peter Rosa Simon Tom Alice Bruno
Cora Dean Edith Fred Gina Harry Iris Jonas Kate Luke Mona Nell Otto Ruth Sara Theo Vera Will"""
NAMES = tuple(_NAMES.split())
DIGITS = 5


@dataclass(frozen=True)
class RecallPrompts:
    """Prompts of one task at one length, as long as that in tokens, and where their answers stand."""

    task: str
    length: int
    tokens: Int[Tensor, "row token"]
    at: Int[Tensor, "row answer"]
    """where the answer tokens stand; the logits before each predict it"""
    question: Int[Tensor, "row answer"]
    """which question of its row an answer token belongs to; −1 where there is none"""
    depth: Int[Tensor, "row question"]
    """the depth that a question asks about, as a number from 0 on"""
    chance: float
    """the accuracy of choosing among the answers in the context at random"""
    facts: Int[Tensor, "row answer"]
    """where the token stands in the context that an answer token repeats; changing it changes the right answer"""

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def answers(self) -> Int[Tensor, "row answer"]:
        return self.tokens.gather(1, self.at)

    @property
    def questions(self) -> int:
        return self.depth.shape[1]

    def right(self, written: Int[Tensor, "row answer"]) -> Bool[Tensor, "row question"]:
        """Decides every question: it is right if all tokens of its answer are."""
        wrong = (written != self.answers) & (self.question >= 0)
        missed = torch.zeros(len(self), self.questions, dtype=torch.long)
        missed.scatter_add_(1, self.question.clamp(min=0), wrong.long())
        return missed == 0


@dataclass(frozen=True)
class PromptLayout:
    """Where facts stand in prompts of one length."""

    length: int
    depths: int
    facts: int
    """at each depth"""
    width: int
    """tokens of a fact"""

    @property
    def all_facts(self) -> int:
        return self.depths * self.facts

    @property
    def depth_of(self) -> Int[Tensor, " fact"]:
        return torch.arange(self.depths).repeat_interleave(self.facts)

    def gaps(self, filler: int) -> list[int]:
        """Returns how much of the filler stands before each fact: those of a depth stand close together. Some filler
        stands before the first fact, and between the last one and the questions."""
        lead = min(LEAD, filler // 8)
        filler -= lead + min(TAIL, filler // 8)
        middle = [n / (self.depths - 1) if self.depths > 1 else 0.5 for n in range(self.depths)]
        spread = 0.25 / max(1, self.depths - 1) / self.facts
        places = [m + spread * (n - (self.facts - 1) / 2) for m in middle for n in range(self.facts)]
        return [lead + round(min(max(place, 0.0), 1.0) * filler) for place in places]


@dataclass(frozen=True)
class RecallTask:
    """A way to ask for what stands in the context."""

    name: str
    about: str
    draw: Callable[[PromptLayout, Material, int, Generator], RecallPrompts]
    widths: tuple[int, int] = (2, 2)
    """the fewest and the most tokens of a fact"""
    in_words: bool = False
    """whether it is written in words, which takes a text and a tokenizer"""

    def fits(self, shortest: int, depths: int, material: Material) -> bool:
        """Whether prompts of this length have room for facts at so many depths."""
        try:
            self.layout(shortest, depths, material)
        except HeadwayError:
            return False
        return True

    def layout(self, shortest: int, depths: int, material: Material) -> PromptLayout:
        """Returns the layout of the shortest prompts; longer ones hold the same facts."""
        least, most = (_passkey_width(material),) * 2 if self.in_words else self.widths
        room = int(SHARE * shortest) // (2 * depths)  # a fact stands in the context and again at the end
        width = min(most, max(least, room))
        words = len(NAMES) // depths if self.in_words else len(material.words) // (depths * width)
        facts = min(room // width, words, MOST_FACTS)
        if facts < 1:
            raise HeadwayError(
                f"prompts of {shortest} tokens are too short for facts at {depths} depths (task {self.name}); use "
                "fewer `depths`, or longer `lengths`"
            )
        return PromptLayout(shortest, depths, facts, width)


def draw_recall(task: RecallTask, layout: PromptLayout, material: Material, rows: int, seed: int) -> RecallPrompts:
    """Draws prompts; the same seed gives the same ones."""
    generator = Generator().manual_seed(1_000_003 * seed + layout.length)
    return task.draw(layout, material, rows, generator)


def _draw_key_value(layout: PromptLayout, material: Material, rows: int, generator: Generator) -> RecallPrompts:
    return _write("key-value", layout, material, rows, generator)


def _draw_repeat(layout: PromptLayout, material: Material, rows: int, generator: Generator) -> RecallPrompts:
    return _write("repeat", layout, material, rows, generator)


def _write(task: str, layout: PromptLayout, material: Material, rows: int, generator: Generator) -> RecallPrompts:
    """Writes facts into filler, and asks for all of them at the end in random order: the first token of each is given,
    and every other is the answer to a question of its own."""
    count, width = layout.all_facts, layout.width
    answered = width - 1
    facts = material.draw_words(rows, count * width, generator).view(rows, count, width)
    begin = int(material.start is not None)
    filler_tokens = layout.length - begin - 2 * count * width
    filler = material.draw_filler(rows, filler_tokens, generator)
    parts, read, places, at = [], 0, [], begin
    if material.start is not None:
        parts.append(torch.full((rows, 1), material.start))
    for number, gap in enumerate(layout.gaps(filler_tokens)):
        parts += [filler[:, read:gap], facts[:, number]]
        at += gap - read
        places.append(at)
        at, read = at + width, gap
    parts.append(filler[:, read:])
    order = torch.rand(rows, count, generator=generator).argsort(1)  # row question
    parts.append(facts.gather(1, order[..., None].expand(-1, -1, width)).flatten(1))
    tokens = torch.cat(parts, 1)
    inside = torch.arange(1, width)  # of a fact: its answers
    ends = layout.length - count * width + width * torch.arange(count)
    number = torch.arange(count * answered).expand(rows, -1)
    stands = torch.tensor(places)[order][..., None] + inside  # row question answered
    return RecallPrompts(
        task=task,
        length=layout.length,
        tokens=tokens,
        at=(ends[:, None] + inside).flatten().expand(rows, -1),
        question=number,
        depth=layout.depth_of[order].repeat_interleave(answered, 1),
        chance=1 / (count * answered),
        facts=stands.flatten(1),
    )


def _draw_passkey(layout: PromptLayout, material: Material, rows: int, generator: Generator) -> RecallPrompts:
    drawn = [_write_passkeys(layout, material, generator) for _ in range(rows)]
    longest = max(len(at) for _, at, _, _, _ in drawn)

    def table(which: int, empty: int) -> Tensor:
        return torch.tensor([row[which] + [empty] * (longest - len(row[which])) for row in drawn])

    return RecallPrompts(
        task="passkey",
        length=layout.length,
        tokens=torch.tensor([row[0] for row in drawn]),
        at=table(1, 1),
        question=table(2, -1),
        depth=torch.tensor([row[3] for row in drawn]),
        chance=1 / layout.all_facts,
        facts=table(4, 0),
    )


def _write_passkeys(
    layout: PromptLayout, material: Material, generator: Generator
) -> tuple[list[int], list[int], list[int], list[int], list[int]]:
    """Writes one prompt: its tokens, where its answers stand, the question of each, the depth of each question, and
    where the facts stand that answer them."""

    def tokens_of(text: str) -> list[int]:
        return list(material.tokenizer(text, add_special_tokens=False).input_ids)

    count = layout.all_facts
    names = [NAMES[n] for n in torch.randperm(len(NAMES), generator=generator)[:count].tolist()]
    keys = torch.randint(10 ** (DIGITS - 1), 10**DIGITS, (count,), generator=generator).tolist()
    facts = [
        (tokens_of(f" The passkey of {name} is"), tokens_of(f" {key}"), tokens_of("."))
        for name, key in zip(names, keys, strict=True)
    ]
    order = torch.randperm(count, generator=generator).tolist()
    begin = [] if material.start is None else [material.start]
    used = len(begin) + 2 * sum(len(part) for fact in facts for part in fact)
    room = layout.length - used
    if room < 0:
        raise HeadwayError(f"prompts of {layout.length} tokens are too short for {count} passkeys; use fewer `depths`")
    filler = material.draw_filler(1, room, generator)[0].tolist()
    tokens, read, places = list(begin), 0, []
    for (words, key, dot), gap in zip(facts, layout.gaps(room), strict=True):
        tokens += filler[read:gap] + words
        places.append(len(tokens))
        tokens += key + dot
        read = gap
    tokens += filler[read:]
    at, question, stands = [], [], []
    for number, fact in enumerate(order):
        words, key, dot = facts[fact]
        tokens += words
        at += range(len(tokens), len(tokens) + len(key))
        stands += range(places[fact], places[fact] + len(key))
        question += [number] * len(key)
        tokens += key + dot
    return tokens, at, question, layout.depth_of[order].tolist(), stands


def _passkey_width(material: Material) -> int:
    """Returns the most tokens that a passkey and its name take."""
    if material.tokenizer is None:
        return 0
    texts = [f" The passkey of {name} is {10**DIGITS - 1 - 1234 * n}." for n, name in enumerate(NAMES)]
    return 1 + max(len(material.tokenizer(text, add_special_tokens=False).input_ids) for text in texts)


TASKS = {
    task.name: task
    for task in (
        RecallTask("repeat", "a segment of random tokens is continued as before", _draw_repeat, (2, SEGMENT)),
        RecallTask("key-value", "the token after a key is given again", _draw_key_value),
        RecallTask("passkey", "a number in a text is given again", _draw_passkey, in_words=True),
    )
}


def choose_tasks(asked: Sequence[str], material: Material) -> list[RecallTask]:
    """Returns the tasks asked for, or all that the material allows."""
    has_text = material.text is not None and material.tokenizer is not None
    for name in asked:
        if name not in TASKS:
            raise unknown("recall task", name, TASKS)
        if TASKS[name].in_words and not has_text:
            raise HeadwayError(f"the task {name} is written in words; it needs `text` and a model with a tokenizer")
    return [TASKS[name] for name in asked] or [task for task in TASKS.values() if has_text or not task.in_words]
