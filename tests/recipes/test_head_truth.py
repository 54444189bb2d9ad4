"""The scoreboard of head truth: its scores, its judges' truths, and its enumeration against gates on a whole model."""

from __future__ import annotations

import importlib
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("transformers")

from headway.attach.huggingface import attach_huggingface
from headway.attach.runner import UserRunner
from headway.models import Head
from headway.subjects.subject import Subject
from headway.tasks import Problems

REAL = Path(__file__).parents[2] / "recipes" / "real"


@pytest.fixture
def recipes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Imports the recipes by name, as `python recipes/real/NAME.py` would."""
    monkeypatch.syspath_prepend(str(REAL))
    yield importlib.import_module
    for name in {path.stem for path in REAL.glob("*.py")} - {"__main__"}:
        sys.modules.pop(name, None)


def test_auroc_is_the_share_of_pairs_in_the_right_order(recipes: Any) -> None:
    scoring, generator = recipes("scoring"), torch.Generator().manual_seed(0)
    for _ in range(20):
        scores = torch.randint(5, (12,), generator=generator).float()
        true = torch.randperm(12, generator=generator) < 4
        pairs = [(a > b) + (a == b) / 2 for a in scores[true].tolist() for b in scores[~true].tolist()]
        assert scoring.auroc(scores, true) == pytest.approx(sum(pairs) / len(pairs))


def test_a_perfect_and_a_reversed_ranking_have_their_scores(recipes: Any) -> None:
    scoring, true = recipes("scoring"), torch.tensor([False, True, True, False, False, False])
    best = scoring.score([true.float()[:, None].expand(-1, 9)], [true])
    assert (best.auroc, best.low, best.precision, best.recall, best.best_rank) == (1, 1, 1, 1, 1)
    worst = scoring.score([-true.float()[:, None].expand(-1, 9)], [true])
    assert (worst.auroc, worst.precision, worst.recall, worst.best_rank) == (0, 0, 0, 5)
    noise = torch.rand(6, 9, generator=torch.Generator().manual_seed(1))
    wide = scoring.score([noise], [true])
    assert wide.low < wide.auroc < wide.high


def test_word_times_are_read_off_a_diagonal(recipes: Any) -> None:
    begins = [0, 4, 9, 15, 18]
    weights = np.full((5, 24), 0.001)
    for row, (first, last) in enumerate(zip(begins, [*begins[1:], 24], strict=True)):
        weights[row, first:last] = 1.0
    assert recipes("judge_whisper").align(weights) == begins


def test_speech_says_when_its_words_begin(recipes: Any) -> None:
    speech = recipes("speech")
    try:
        speaker = speech.Speaker()
    except recipes("wheels").CannotBeHad:
        pytest.skip("espeak-ng is not installed")
    spoken = speaker.say("The farmer lost a red umbrella.")
    assert spoken.words == ("The", "farmer", "lost", "a", "red", "umbrella.")
    assert list(spoken.begins) == sorted(spoken.begins)
    assert 0 == spoken.begins[0] < spoken.begins[-1] < spoken.seconds
    slow = speaker.say("The farmer lost a red umbrella.", speed=90)
    assert slow.begins[-1] > 1.3 * spoken.begins[-1]


def test_every_atom_of_a_drawn_reaction_is_the_one_that_it_came_from(recipes: Any) -> None:
    judge, chance, orders = recipes("judge_rxn"), random.Random(0), set()
    for _ in range(200):
        reaction = judge.draw_reaction(chance)
        arrow = reaction.pieces.index(">>")
        for place, origin in reaction.origins.items():
            assert origin < arrow < place
            assert reaction.pieces[place] == reaction.pieces[origin]
        assert set(reaction.sides) <= set(reaction.origins)
        assert len(set(reaction.origins.values())) == len(reaction.origins)
        orders.add(reaction.origins[reaction.sides[0]] < reaction.origins[reaction.sides[1]])
    assert orders == {True, False}, "the parts always stand in one order"


def test_an_exchange_takes_the_heads_of_its_kind_and_changes_the_right_answer(recipes: Any) -> None:
    planted, generator = recipes("planted"), torch.Generator().manual_seed(0)
    marks = torch.zeros(1, 2, 2, 4, dtype=torch.bool)
    marks[0, 0, 0, 1] = marks[0, 1, 1, 2] = True
    kind = torch.arange(5)
    assert planted.draw_exchange(marks, kind)[0].flatten(1).sum(1).tolist() == [0, 6, 1, 1, 2]
    tokens, others = planted.draw_rows(5, generator), planted.draw_rows(5, generator)
    own, given = tokens[:, 1:7], others[:, 1:7]
    first = [own[0, 0], own[1, 0], given[2, 0], own[3, 0], given[4, 0]]
    second = [own[0, 3], own[1, 3], own[2, 3], given[3, 3], given[4, 3]]
    expected = [4 * int(one) + int(two) for one, two in zip(first, second, strict=True)]
    assert planted.right_answers(tokens, others, kind).tolist() == expected
    assert planted.answers_of(tokens)[:, 1].tolist() == (4 * own[:, 1] + own[:, 4]).tolist()


def test_an_exchange_of_everything_writes_the_other_rows_answers(recipes: Any) -> None:
    planted, generator = recipes("planted"), torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    model = planted.SmallModel().eval()
    tokens, others = planted.draw_rows(6, generator), planted.draw_rows(6, generator)
    nothing = torch.zeros(6, 2, 4, dtype=torch.bool)
    with torch.no_grad():
        logits, outputs = model.exchange(others, nothing, None)
        assert torch.equal(logits, model(others))
        same, _ = model.exchange(others, ~nothing, outputs)
        assert torch.equal(same, logits)
        changed, _ = model.exchange(tokens, ~nothing, outputs)
        assert not torch.allclose(changed, model(tokens))


@pytest.mark.slow
def test_training_plants_what_it_says(recipes: Any) -> None:
    (made,) = recipes("planted").train([3])
    assert min(made.right, made.right_without_others, made.right_exchanged) > 0.95
    judge = recipes("judge_planted")
    trial = judge.trial_of(made, 60, 0)
    scores = recipes("methods").ablate(trial, "resample", 0).mean(1)
    assert {trial.heads[n] for n in scores.topk(2).indices.tolist()} == trial.true


def test_the_induction_heads_are_recovered_and_not_by_chance(recipes: Any) -> None:
    rows = recipes("judge_induction").judge(40, 0)
    assert rows["ablation, zero"].auroc == rows["patching (ours)"].auroc == 1
    assert rows["random"].auroc < 1
    assert len(rows) == 9


@torch.no_grad()
def test_the_enumeration_is_gates_on_the_whole_model(recipes: Any) -> None:
    from transformers import AlbertConfig, AlbertForMaskedLM

    exact, mask = recipes("exact_rxn"), 3
    torch.manual_seed(0)
    shape: dict[str, Any] = {"hidden_size": 32, "num_attention_heads": 8, "intermediate_size": 24, "vocab_size": 30}
    config = AlbertConfig(num_hidden_layers=12, embedding_size=8, initializer_range=0.4, **shape)
    model = AlbertForMaskedLM(config).eval()
    source = torch.randint(4, 30, (2, 6))
    source[0, 1] = source[1, 4] = mask
    problems = Problems(source, torch.tensor([[7], [9]]))

    def reader(model: Any, source: torch.Tensor, answer: torch.Tensor) -> torch.Tensor:
        return model(input_ids=source).logits[torch.arange(2), (source == mask).nonzero()[:, 1]][:, None]

    runner = UserRunner(attach_huggingface(model), reader)
    subject = Subject(model, examples=problems, metric="loss").with_runner(runner)
    heads = [head for head in subject.heads if head.site.layer in (10, 11)]
    assert heads[5] == Head.parse("L10H5", subject.heads)
    losses = exact.Enumeration(model, problems, mask).losses()
    assert losses.shape == (65_536, 2)
    assert exact.compare_with_gates(losses, subject, problems, heads, 0) < 1e-4
    assert losses.std(0).min() > 1e-3, "all sets cost the same, so the comparison says nothing"
    curves = exact.choose(losses.double().mean(1), torch.arange(16.0))
    for name, curve in curves.items():
        assert all(best <= own + 1e-9 for best, own in zip(curves["exact"], curve, strict=True)), name
        assert curve[16] == curves["exact"][16]
