"""Users' models as studies run them: gone through again from the changed layer on, which must be the whole pass."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("transformers")

from families import CAUSAL_ONES, FAMILIES, TWO_STACKS, WORDS
from own_attention import HEADS, TOKENS, Apart, Fused, Named, Net
from references import Unchanged, randomised

from headway.attach.foreign import Foreign
from headway.attach.huggingface import attach_huggingface
from headway.attach.projections import weight_of
from headway.attach.readers import NOTHING, reader_of
from headway.errors import HeadwayError
from headway.heads.variants import Variants
from headway.models import Gate, Head, Site
from headway.subjects.subject import Subject
from headway.tasks import Problems

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script`")  # DeBERTa's file uses it
MASK = 3


def problems_of(name: str) -> Problems:
    """Of two lengths, except where a source is a picture or a sound."""
    generator = torch.Generator().manual_seed(3)
    answer = torch.randint(4, WORDS, (6, 3), generator=generator)
    if name == "ViT":
        return Problems(torch.randn(6, 3, 8, 8, generator=generator), answer[:, :1] % 2)
    if name == "Whisper":
        return Problems(torch.randn(6, 4, 12, generator=generator), answer)
    source = torch.randint(4, WORDS, (6, 9), generator=generator)
    if name not in CAUSAL_ONES and name not in TWO_STACKS:
        source[:, 2] = MASK
        answer = answer[:, :1] % (2 if "classifying" in name else WORDS)
    source[4:, 7:] = NOTHING
    return Problems(source, answer)


def foreign_of(name: str) -> Foreign:
    model = FAMILIES[name][0]()
    return Foreign(attach_huggingface(model), reader_of(model, MASK))


def zeroed(foreign: Foreign, head: Head) -> nn.Module:
    """The slow way: a copy with the head's columns at zero."""
    model = copy.deepcopy(foreign.inner)
    projection = foreign.attached.projections[head.site]
    weight = weight_of(model.get_submodule(projection.path))
    assert weight is not None
    with torch.no_grad():
        projection.of_head(weight, head.number).zero_()
    return model


@pytest.mark.parametrize("name", FAMILIES)
def test_every_head_of_a_family_closed_by_a_study_is_the_copy_with_zeros(name: str) -> None:
    foreign, problems = foreign_of(name), problems_of(name)
    with Unchanged(foreign.inner, lambda model: foreign.reader(model, problems.source[:4], problems.answer[:4])):
        subject = Subject(foreign, examples=problems, metric="loss")
        variants = Variants(subject)
        outcome = variants(problems, [frozenset(), *(frozenset({head}) for head in subject.heads)])
        assert foreign.layers, "nothing was skipped"
        assert foreign.still or name == "BLOOM", "no attention stood still"  # BLOOM's adds the stream to what it says
    for number, head in enumerate([None, *subject.heads]):
        model = foreign.inner if head is None else zeroed(foreign, head)
        expected = [loss_of(foreign, model, problems[row : row + 1]) for row in range(len(problems))]
        torch.testing.assert_close(outcome.loss[number], torch.stack(expected), atol=1e-5, rtol=1e-5)


@torch.no_grad()
def loss_of(foreign: Foreign, model: nn.Module, problem: Problems) -> Tensor:
    """One problem at a time, nothing padded."""
    if not problem.source.is_floating_point():
        there = (problem.source != NOTHING)[0]
        problem = Problems(problem.source[:, there], problem.answer)
    logits = foreign.reader(model, problem.source, problem.answer)
    return nn.functional.cross_entropy(logits[0], problem.answer[0])


@pytest.mark.parametrize("name", ["GPT-2", "T5", "BERT"])
@torch.no_grad()
def test_variants_in_one_pass_are_variants_one_by_one(name: str) -> None:
    foreign, problems = foreign_of(name), problems_of(name)[:4]
    kept = foreign.keep(problems.source, problems.answer)
    for site in foreign.attached.sites:
        width = foreign.attached.width[site]
        passed = 1 - torch.eye(width)
        stacked = foreign.again(kept, {site: Gate(passed.repeat_interleave(4, dim=0))}, site, width)
        for head in range(width):
            gates = {site: Gate(passed[head : head + 1])}
            alone = foreign.again(kept, gates, site)
            torch.testing.assert_close(stacked[4 * head : 4 * head + 4], alone, atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(alone, foreign(problems.source, problems.answer, gates), atol=1e-5, rtol=1e-5)


def test_what_lies_before_the_changed_layer_is_not_run_again() -> None:
    foreign, problems = foreign_of("GPT-2"), problems_of("GPT-2")[:4]
    kept, ran = foreign.keep(problems.source, problems.answer), []
    for number, block in enumerate(foreign.inner.transformer.h):  # pyright: ignore
        block.mlp.register_forward_pre_hook(lambda *_, number=number: ran.append(number))
        block.attn.c_attn.register_forward_pre_hook(lambda *_, number=number: ran.append(f"attention {number}"))
    last = foreign.attached.sites[-1]
    foreign.again(kept, {last: Gate(torch.zeros(1, 4))}, last)
    assert ran == [1]


@pytest.mark.parametrize("name", ["T5", "BART", "Marian", "Whisper"])
def test_the_source_is_read_once_where_a_decoder_head_changes(name: str) -> None:
    foreign, problems = foreign_of(name), problems_of(name)[:4]
    kept, ran = foreign.keep(problems.source, problems.answer), []
    assert len(foreign.across) == 4  # keys and values of two layers
    for path in foreign.across + [path for path in foreign.layers if "encoder" in path]:
        own = foreign.inner.get_submodule(path)
        inside = next((m for m in own.modules() if not list(m.children()) and m is not own), None)
        if inside is not None:
            inside.register_forward_pre_hook(lambda *_, path=path: ran.append(path))
    site = next(site for site in foreign.attached.sites if str(site) == "decoder.0.self")
    foreign.again(kept, {site: Gate(torch.zeros(1, foreign.attached.width[site]))}, site)
    assert ran == []


def test_only_answered_positions_are_unembedded() -> None:
    foreign, problems = foreign_of("Llama"), problems_of("Llama")[:4]
    seen: list[int] = []
    foreign.inner.lm_head.register_forward_hook(lambda _, inputs, output: seen.append(output.shape[1]))  # pyright: ignore
    foreign(problems.source, problems.answer)
    assert seen == [problems.answer.shape[1]]


STYLES: dict[str, tuple[Any, Any]] = {
    "fused": (lambda: Net(Fused(), Fused()), "layers.*.proj"),
    "named": (lambda: Net(Named(), Named()), Site("*.linear_out", heads=HEADS)),
    "apart": (
        lambda: Net(Apart(True), Apart(True)),
        [Site(f"layers.{n}", output="output", heads=HEADS) for n in (0, 1)],
    ),
    "PyTorch's own": (
        lambda: nn.Sequential(
            nn.Embedding(TOKENS, 12),
            nn.TransformerEncoder(nn.TransformerEncoderLayer(12, 4, 24, batch_first=True), 2),
            nn.Linear(12, TOKENS),
        ),
        "auto",
    ),
}


@pytest.mark.parametrize("style", STYLES)
def test_hand_written_attention_is_studied(style: str) -> None:
    make, sites = STYLES[style]
    model, tokens = randomised(make()).eval(), torch.randint(0, TOKENS, (8, 7))
    problems = Problems(tokens, tokens.roll(1, dims=1))
    with Unchanged(model, lambda own: own(tokens)):
        subject = Subject(model, sites=sites, examples=problems, metric="loss")
        outcome = Variants(subject)(problems, [frozenset(), *(frozenset({head}) for head in subject.heads)])
    foreign = subject.model
    assert isinstance(foreign, Foreign)
    assert len(subject.heads) == 2 * (4 if sites == "auto" else HEADS)
    for number, head in enumerate(subject.heads, start=1):
        copied = zeroed(foreign, head)
        with torch.no_grad():
            logits = copied(tokens)
        expected = nn.functional.cross_entropy(logits.transpose(1, 2), problems.answer, reduction="none").mean(1)
        torch.testing.assert_close(outcome.loss[number], expected, atol=1e-5, rtol=1e-5)


def test_memory_bounds_the_problems_of_a_pass() -> None:
    foreign, problems = foreign_of("GPT-2"), problems_of("GPT-2")
    foreign.memory = foreign._bytes(problems.source, problems.answer) * 2
    assert max(piece.stop - piece.start for piece in foreign.slices(problems)) == 2
    assert [len(piece) for piece in foreign.pieces(problems)] == [2, 2, 2]


def test_without_memory_the_batch_is_halved_and_it_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    foreign, problems = foreign_of("GPT-2"), problems_of("GPT-2")
    subject = Subject(foreign, examples=problems, metric="loss")
    variants, reader = Variants(subject), foreign.reader
    expected = variants(problems, [frozenset()]).loss

    def tight(model: nn.Module, source: Tensor, answer: Tensor) -> Tensor:
        if len(source) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return reader(model, source, answer)

    foreign.reader = tight
    torch.testing.assert_close(variants(problems, [frozenset()]).loss, expected)
    assert "out of memory: going on with 2 problems at a time" in capsys.readouterr().err


def test_a_model_that_answers_nothing_is_refused() -> None:
    from transformers import BertConfig, BertModel

    with pytest.raises(HeadwayError, match="BertModel has no head that answers"):
        reader_of(BertModel(BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, vocab_size=9)))


class Careless(nn.Module):
    """A block that writes into what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = Fused()

    def forward(self, x: Tensor) -> Tensor:
        x += self.attention(x)
        return x


class Wrapping(nn.Module):
    """A block that returns a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = Fused()

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"x": x + self.attention(x)}


class Stack(nn.Module):
    def __init__(self, block: type[nn.Module]) -> None:
        super().__init__()
        self.embed, self.blocks = nn.Embedding(TOKENS, 12), nn.ModuleList([block(), block(), block()])
        self.head = nn.Linear(12, TOKENS)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            said = block(x)
            x = said["x"] if isinstance(said, dict) else said
        return self.head(x)


@pytest.mark.parametrize("block", [Careless, Wrapping])
def test_blocks_that_write_into_their_input_or_return_a_dict(block: type[nn.Module]) -> None:
    model, tokens = randomised(Stack(block)).eval(), torch.randint(0, TOKENS, (6, 5))
    problems = Problems(tokens, tokens.roll(1, dims=1))
    subject = Subject(model, sites="*.proj", examples=problems, metric="loss")
    foreign = subject.model
    assert isinstance(foreign, Foreign)
    outcome = Variants(subject)(problems, [frozenset(), *(frozenset({head}) for head in subject.heads)])
    for number, head in enumerate(subject.heads, start=1):
        with torch.no_grad():
            logits = zeroed(foreign, head)(tokens)
        expected = nn.functional.cross_entropy(logits.transpose(1, 2), problems.answer, reduction="none").mean(1)
        torch.testing.assert_close(outcome.loss[number], expected, atol=1e-5, rtol=1e-5)


def test_what_cannot_stand_still_is_gone_through_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    foreign, problems = foreign_of("GPT-2"), problems_of("GPT-2")
    subject = Subject(foreign, examples=problems, metric="loss")
    sets = [frozenset(), *(frozenset({head}) for head in subject.heads)]
    expected = Variants(subject)(problems, sets).loss
    again = foreign_of("GPT-2")
    broken = Foreign.again
    monkeypatch.setattr(
        Foreign, "again", lambda self, *rest: broken(self, *rest) + (1.0 if self is again and self.skips else 0.0)
    )
    found = Variants(Subject(again, examples=problems, metric="loss"))(problems, sets).loss
    assert not again.skips
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_half_precision_is_studied_under_every_ablation() -> None:
    model = FAMILIES["Llama"][0]().bfloat16()
    foreign = Foreign(attach_huggingface(model), reader_of(model))
    problems = problems_of("Llama")[:4]
    subject = Subject(foreign, examples=problems, metric="loss")
    for kind in ("zero", "mean", "resample"):
        outcome = Variants(subject, kind)(problems, [frozenset(), *(frozenset({head}) for head in subject.heads)])
        assert bool(outcome.loss.isfinite().all())


@torch.no_grad()
def test_answers_of_different_lengths_are_never_padded() -> None:
    foreign = foreign_of("GPT-2")
    tokens = torch.randint(4, WORDS, (6, 9))
    answer = tokens[:, 1:].clone()
    answer[3:, 4:] = NOTHING
    problems = Problems(tokens[:, :1], answer, answer != NOTHING)
    assert [tuple(piece.answer.shape) for piece in foreign.pieces(problems)] == [(3, 8), (3, 4)]
    subject = Subject(foreign, examples=problems, metric="loss")
    whole = Variants(subject)(problems, [frozenset()]).loss[0]
    for row, length in enumerate([9, 9, 9, 5, 5, 5]):
        logits = foreign.inner(input_ids=tokens[row : row + 1, : length - 1]).logits[0]  # pyright: ignore
        torch.testing.assert_close(whole[row], nn.functional.cross_entropy(logits, tokens[row, 1:length]))
