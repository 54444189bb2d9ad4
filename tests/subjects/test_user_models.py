"""Users' models in studies: replaying from the changed layer on must equal the full pass."""

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

from headway.attach.huggingface import attach_huggingface
from headway.attach.opening import prepare_subject
from headway.attach.projections import weight_of
from headway.attach.readers import reader_of
from headway.attach.runner import UserRunner
from headway.errors import HeadwayError
from headway.heads.variants import Variants
from headway.models import Gate, Head, Site
from headway.subjects.ragged import PADDING
from headway.subjects.subject import Subject
from headway.tasks import Problems

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script`")  # DeBERTa's file uses it
MASK = 3


def problems_of(name: str) -> Problems:
    """Makes problems of two lengths, unless the source is an image or audio."""
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
    source[4:, 7:] = PADDING
    return Problems(source, answer)


def runner_of(name: str) -> UserRunner:
    model = FAMILIES[name][0]()
    return UserRunner(attach_huggingface(model), reader_of(model, MASK))


def by_loss(runner: UserRunner, problems: Problems) -> Subject:
    return Subject(runner.model, examples=problems, metric="loss").with_runner(runner)


def zeroed(runner: UserRunner, head: Head) -> nn.Module:
    """Computes the loss the slow way: with a copy whose columns for the head are zero."""
    model = copy.deepcopy(runner.model)
    projection = runner.attached.projections[head.site]
    weight = weight_of(model.get_submodule(projection.path))
    assert weight is not None
    with torch.no_grad():
        projection.of_head(weight, head.number).zero_()
    return model


@pytest.mark.parametrize("name", FAMILIES)
def test_every_head_of_a_family_closed_by_a_study_is_the_copy_with_zeros(name: str) -> None:
    runner, problems = runner_of(name), problems_of(name)
    with Unchanged(runner.model, lambda model: runner.reader(model, problems.source[:4], problems.answer[:4])):
        subject = by_loss(runner, problems)
        variants = Variants(subject)
        outcome = variants(problems, [frozenset(), *(frozenset({head}) for head in subject.heads)])
        assert runner.layers, "nothing was skipped"
        assert runner.reusable or name == "BLOOM", "no attention stood still"  # BLOOM's adds the stream to what it says
    for number, head in enumerate([None, *subject.heads]):
        model = runner.model if head is None else zeroed(runner, head)
        expected = [loss_of(runner, model, problems[row : row + 1]) for row in range(len(problems))]
        torch.testing.assert_close(outcome.loss[number], torch.stack(expected), atol=1e-5, rtol=1e-5)


@torch.no_grad()
def loss_of(runner: UserRunner, model: nn.Module, problem: Problems) -> Tensor:
    """Returns the loss of one problem at a time, without padding."""
    if not problem.source.is_floating_point():
        there = (problem.source != PADDING)[0]
        problem = Problems(problem.source[:, there], problem.answer)
    logits = runner.reader(model, problem.source, problem.answer)
    return nn.functional.cross_entropy(logits[0], problem.answer[0])


@pytest.mark.parametrize("name", ["GPT-2", "T5", "BERT"])
@torch.no_grad()
def test_variants_in_one_pass_are_variants_one_by_one(name: str) -> None:
    runner, problems = runner_of(name), problems_of(name)[:4]
    recording = runner.record(problems)
    for site in runner.sites:
        width = runner.width[site]
        passed = 1 - torch.eye(width)
        stacked = runner.replay(recording, {site: Gate(passed.repeat_interleave(4, dim=0))}, site, width)
        for head in range(width):
            gates = {site: Gate(passed[head : head + 1])}
            alone = runner.replay(recording, gates, site)
            torch.testing.assert_close(stacked[4 * head : 4 * head + 4], alone, atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(alone, runner.run(problems, gates), atol=1e-5, rtol=1e-5)


def test_layers_before_the_change_are_not_run_again() -> None:
    runner, problems = runner_of("GPT-2"), problems_of("GPT-2")[:4]
    recording, ran = runner.record(problems), []
    for number, block in enumerate(runner.model.transformer.h):  # pyright: ignore
        block.mlp.register_forward_pre_hook(lambda *_, number=number: ran.append(number))
        block.attn.c_attn.register_forward_pre_hook(lambda *_, number=number: ran.append(f"attention {number}"))
    last = runner.sites[-1]
    runner.replay(recording, {last: Gate(torch.zeros(1, 4))}, last)
    assert ran == [1]


@pytest.mark.parametrize("name", ["T5", "BART", "Marian", "Whisper"])
def test_the_source_is_read_once_where_a_decoder_head_changes(name: str) -> None:
    runner, problems = runner_of(name), problems_of(name)[:4]
    recording, ran = runner.record(problems), []
    assert len(runner.cross_projections) == 4  # keys and values of two layers
    for path in runner.cross_projections + [path for path, _ in runner.layers if "encoder" in path]:
        own = runner.model.get_submodule(path)
        inside = next((m for m in own.modules() if not list(m.children()) and m is not own), None)
        if inside is not None:
            inside.register_forward_pre_hook(lambda *_, path=path: ran.append(path))
    site = next(site for site in runner.sites if str(site) == "decoder.0.self")
    runner.replay(recording, {site: Gate(torch.zeros(1, runner.width[site]))}, site)
    assert ran == []


def test_only_answered_positions_are_unembedded() -> None:
    runner, problems = runner_of("Llama"), problems_of("Llama")[:4]
    seen: list[int] = []
    runner.model.lm_head.register_forward_hook(lambda _, inputs, output: seen.append(output.shape[1]))  # pyright: ignore
    runner.run(problems)
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
        subject = prepare_subject(Subject(model, sites=sites, examples=problems, metric="loss"))
        outcome = Variants(subject)(problems, [frozenset(), *(frozenset({head}) for head in subject.heads)])
    runner = subject.runner
    assert isinstance(runner, UserRunner)
    assert len(subject.heads) == 2 * (4 if sites == "auto" else HEADS)
    for number, head in enumerate(subject.heads, start=1):
        copied = zeroed(runner, head)
        with torch.no_grad():
            logits = copied(tokens)
        expected = nn.functional.cross_entropy(logits.transpose(1, 2), problems.answer, reduction="none").mean(1)
        torch.testing.assert_close(outcome.loss[number], expected, atol=1e-5, rtol=1e-5)


def test_memory_bounds_the_problems_of_a_pass() -> None:
    runner, problems = runner_of("GPT-2"), problems_of("GPT-2")
    runner.memory = runner.bytes_of(problems.source, problems.answer) * 2
    assert max(piece.stop - piece.start for piece in runner.pieces(problems)) == 2
    assert [len(piece) for piece in runner.batches(problems)] == [2, 2, 2]


def test_out_of_memory_halves_the_batch_with_a_message(capsys: pytest.CaptureFixture[str]) -> None:
    runner, problems = runner_of("GPT-2"), problems_of("GPT-2")
    subject = by_loss(runner, problems)
    variants, reader = Variants(subject), runner.reader
    expected = variants(problems, [frozenset()]).loss

    def tight(model: nn.Module, source: Tensor, answer: Tensor) -> Tensor:
        if len(source) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return reader(model, source, answer)

    runner.reader = tight
    torch.testing.assert_close(variants(problems, [frozenset()]).loss, expected)
    assert "out of memory; continuing with 2 problems at a time" in capsys.readouterr().err


def test_a_model_that_answers_nothing_is_refused() -> None:
    from transformers import BertConfig, BertModel

    with pytest.raises(HeadwayError, match="BertModel has no output head"):
        reader_of(BertModel(BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, vocab_size=9)))


class Careless(nn.Module):
    """A block that writes into its input."""

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
    subject = prepare_subject(Subject(model, sites="*.proj", examples=problems, metric="loss"))
    runner = subject.runner
    assert isinstance(runner, UserRunner)
    outcome = Variants(subject)(problems, [frozenset(), *(frozenset({head}) for head in subject.heads)])
    for number, head in enumerate(subject.heads, start=1):
        with torch.no_grad():
            logits = zeroed(runner, head)(tokens)
        expected = nn.functional.cross_entropy(logits.transpose(1, 2), problems.answer, reduction="none").mean(1)
        torch.testing.assert_close(outcome.loss[number], expected, atol=1e-5, rtol=1e-5)


def test_a_model_that_cannot_be_cached_is_run_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    runner, problems = runner_of("GPT-2"), problems_of("GPT-2")
    subject = by_loss(runner, problems)
    sets = [frozenset(), *(frozenset({head}) for head in subject.heads)]
    expected = Variants(subject)(problems, sets).loss
    again = runner_of("GPT-2")
    broken = UserRunner.replay
    monkeypatch.setattr(
        UserRunner, "replay", lambda self, *rest: broken(self, *rest) + (1.0 if self is again and self.skips else 0.0)
    )
    found = Variants(by_loss(again, problems))(problems, sets).loss
    assert not again.skips
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_half_precision_is_studied_under_every_ablation() -> None:
    model = FAMILIES["Llama"][0]().bfloat16()
    runner = UserRunner(attach_huggingface(model), reader_of(model))
    problems = problems_of("Llama")[:4]
    subject = by_loss(runner, problems)
    for kind in ("zero", "mean", "resample"):
        outcome = Variants(subject, kind)(problems, [frozenset(), *(frozenset({head}) for head in subject.heads)])
        assert bool(outcome.loss.isfinite().all())


@torch.no_grad()
def test_answers_of_different_lengths_are_never_padded() -> None:
    runner = runner_of("GPT-2")
    tokens = torch.randint(4, WORDS, (6, 9))
    answer = tokens[:, 1:].clone()
    answer[3:, 4:] = PADDING
    problems = Problems(tokens[:, :1], answer, answer != PADDING)
    assert [tuple(piece.answer.shape) for piece in runner.batches(problems)] == [(3, 8), (3, 4)]
    subject = by_loss(runner, problems)
    whole = Variants(subject)(problems, [frozenset()]).loss[0]
    for row, length in enumerate([9, 9, 9, 5, 5, 5]):
        logits = runner.model(input_ids=tokens[row : row + 1, : length - 1]).logits[0]  # pyright: ignore
        torch.testing.assert_close(whole[row], nn.functional.cross_entropy(logits, tokens[row, 1:length]))


def test_constructing_a_subject_runs_nothing_and_opening_it_finds_its_heads() -> None:
    model, tokens = randomised(Net(Fused(), Fused())).eval(), torch.randint(0, TOKENS, (8, 7))
    calls: list[int] = []
    model.register_forward_pre_hook(lambda *_: calls.append(1))
    problems = Problems(tokens, tokens.roll(1, dims=1))
    subject = Subject(model, sites="layers.*.proj", examples=problems)
    wrong = Subject(model, sites="*.nowhere", examples=problems)
    assert not calls
    assert subject.heads == ()
    with pytest.raises(HeadwayError, match="is not opened"):
        _ = subject.runner
    opened = prepare_subject(subject)
    assert calls
    assert len(opened.heads) == 2 * HEADS
    assert prepare_subject(opened) is opened
    with pytest.raises(HeadwayError, match="no module of Net matches"):
        prepare_subject(wrong)
