"""Studies of windows: a hand-wired model whose answer stands far back, and groups of heads that share keys."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headway import HeadwayError, Subject, study_heads
from headway.attach.opening import prepare_subject
from headway.heads.assignments import cache_units, measure_all, narrow_greedily
from headway.heads.question import HeadsQuestion, WindowSize
from headway.heads.together import remove_greedily
from headway.heads.units import heads_in, units_of
from headway.heads.variants import Variants
from headway.models import Head, Site
from headway.models.sites import NarrowedHead
from headway.tasks import Problems
from headway.windows.budget import Budget

WORDS, TOKENS, FACT = 12, 16, 6
"""words 6 to 11 are facts; one stands in the row, and the last token asks for it"""
SITE = Site("attention", output="out", heads=3)


class Finder(nn.Module):
    """Attention in which heads 0 and 1 look for the fact and copy it, and head 2 looks at its own token."""

    def __init__(self, finders: int) -> None:
        super().__init__()
        self.finders, self.out = finders, nn.Linear(3 * WORDS, WORDS, bias=False)
        with torch.no_grad():
            self.out.weight.copy_(
                torch.eye(WORDS).repeat(1, 3) * torch.tensor([1.0, 1.0, 0.0]).repeat_interleave(WORDS)
            )

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        tokens = x.shape[1]
        finds = x[..., FACT:].sum(-1)[:, None, None, :].expand(-1, self.finders, tokens, -1) * 30
        near = torch.eye(tokens).expand(len(x), 3 - self.finders, -1, -1) * 30
        scores = torch.cat((finds, near), 1) + mask  # row head query key
        return self.out((scores.softmax(-1) @ x[:, None]).transpose(1, 2).flatten(2))


class Recaller(nn.Module):
    def __init__(self, finders: int) -> None:
        super().__init__()
        self.attention = Finder(finders)

    def forward(self, tokens: Tensor) -> Tensor:
        x = nn.functional.one_hot(tokens, WORDS).float()
        mask = torch.full((tokens.shape[1],) * 2, torch.finfo(torch.float).min).triu(1)[None, None]
        return self.attention(x, mask)[:, -1:] * torch.tensor([1.0] * FACT + [9.0] * (WORDS - FACT))


def recaller(finders: int, back: int = 10, rows: int = 1_600) -> Subject:
    """Returns a model with so many heads that find the fact, which stands `back` tokens before the last."""
    generator = torch.Generator().manual_seed(0)
    source = torch.randint(FACT, (rows, TOKENS), generator=generator)
    fact = torch.randint(FACT, WORDS, (rows, 1), generator=generator)
    source[:, TOKENS - 1 - back] = fact[:, 0]
    return prepare_subject(
        Subject(Recaller(finders).eval(), examples=Problems(source, fact), sites=[SITE], name="recaller")
    )


def test_a_head_that_must_see_far_costs_everything_unless_the_window_covers_the_fact() -> None:
    subject = recaller(finders=1)
    problems, head = subject.draw(300, 0, False), subject.heads[0]
    for recent, expected in ((1, 0.4), (10, 0.4), (11, 1.0), (TOKENS, 1.0)):
        variants = Variants(subject, WindowSize(0, recent))
        whole, alone, useless = variants(
            problems, [frozenset(), frozenset({head}), frozenset({subject.heads[2]})]
        ).accuracy
        assert whole == useless == 1
        assert alone == 1 if expected == 1 else alone < expected
        ladder = variants(problems, [frozenset({NarrowedHead(head, 11)}), frozenset({NarrowedHead(head, 10)})]).accuracy
        assert ladder[0] == 1
        assert ladder[1] < 0.4


def test_one_at_a_time_no_head_needs_the_context_and_together_they_do(tmp_path: Path) -> None:
    asked = {"ablation": "window", "sink": 0, "recent": "2,12", "max_drop": 0.02, "brief": True, "quiet": True}
    study = study_heads(recaller(finders=2), out=tmp_path, **asked)
    assert study.windows is not None
    assert Budget.read(tmp_path) == study.windows.chosen.budget
    content = study.to_json()
    assert [row["least_window"] for row in content["heads"]] == [2, 2, 2]
    assert (content["ablation"], content["sink"], content["recent"]) == ("window", 0, [2, 12])
    assert content["alone"]["count"] == 3
    assert content["alone_removed_together"]["accuracy"] < 0.4
    assert content["together"]["count"] == 2
    assert "2 of 3 heads can be narrowed together" in content["findings"][1]
    plan = content["windows"]
    assert plan["alone"]["accuracy"] < 0.4
    assert plan["chosen"]["accuracy"] == 1
    assert sorted(content["budget"]["windows"]["attention"]) == [2, 2, 12]
    assert plan["listed"] == 3**3
    assert plan["exact"]["cache_share"] == plan["chosen"]["cache_share"]
    assert plan["chosen"]["cache_share"] == pytest.approx((2 + 2 + 12) / (3 * 17))
    assert "Under window ablation (0 first, 2 last tokens), 3 of 3 heads" in content["findings"][0]
    assert not any("removed" in finding for finding in content["findings"])


def test_a_cache_is_given_to_the_head_that_needs_it() -> None:
    study = study_heads(
        recaller(finders=1), ablation="window", sink=0, recent=2, cache="45%", max_drop=0.02, brief=True, quiet=True
    )
    plan = study.windows
    assert plan is not None
    assert plan.exact is not None
    assert plan.listed == 8
    assert plan.chosen.budget.windows == plan.greedy.budget.windows == {"attention": (None, 2, 2)}
    assert plan.chosen.effect.accuracy == 1
    assert study.to_json()["windows"]["asked"] == 0.45
    with pytest.raises(HeadwayError, match="take 12% of a cache of 17 tokens, more than 10%"):
        study_heads(recaller(1), ablation="window", sink=0, recent=2, cache=0.1, max_drop=0.02, brief=True, quiet=True)


def test_an_untrained_model_shows_no_head_that_must_see_far() -> None:
    subject = recaller(finders=1)
    problems = subject.draw(300, 0, False)
    sets = [frozenset({head}) for head in subject.heads]
    trained = Variants(subject, WindowSize(0, 2))(problems, sets).accuracy
    torch.manual_seed(1)
    nn.init.normal_(subject.model.attention.out.weight)  # type: ignore[union-attr, arg-type]
    chance = Variants(subject, WindowSize(0, 2))(
        problems, [frozenset(), *(frozenset({h}) for h in subject.heads)]
    ).accuracy
    assert trained[0] < 0.4 < trained[1]
    assert max(chance) - min(chance) < 0.3


@pytest.mark.parametrize("asked", [{"sink": 2}, {"recent": 16}, {"cache": "50%"}])
def test_windows_are_asked_for_only_with_their_ablation(asked: dict[str, Any]) -> None:
    with pytest.raises(HeadwayError, match="is about windows; use it with ablation=window"):
        HeadsQuestion(**asked)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"recent": "16,x"}, "write numbers of tokens"),
        ({"recent": 0}, "write numbers of tokens"),
        ({"sink": -1}, "0 or more"),
        ({"cache": "0%"}, "write a share of the whole cache"),
    ],
)
def test_a_wrong_size_is_refused(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(HeadwayError, match=message):
        HeadsQuestion(ablation="window", **asked)


@pytest.mark.slow
def test_heads_of_cross_attention_are_left_out_and_said_to_be() -> None:
    study = study_heads(
        "pretrained:adder", ablation="window", sink=1, recent=2, examples=1_500, max_drop=0.05, brief=True, quiet=True
    )
    content = study.to_json()
    assert {row["head"].split(".")[2] for row in content["heads"]} == {"self"}
    assert "Heads of cross-attention were not narrowed" in content["findings"][-1]
    assert set(content["budget"]["windows"]) <= {"decoder.0.self", "decoder.1.self"}  # an encoder has no cache


def grouped() -> Subject:
    """Returns a tiny Llama with random weights, whose four heads share two groups of keys and values."""
    transformers = pytest.importorskip("transformers")
    from headway.attach.from_transformers import subject_from_transformers

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24}
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(vocab_size=20, num_key_value_heads=2, initializer_range=0.6, **sizes)
    )
    source = torch.randint(20, (600, 9))
    with torch.no_grad():
        answer = model.eval()(source).logits[:, -1:].argmax(-1)
    return subject_from_transformers(model, Problems(source, answer), name="grouped")


@pytest.mark.parametrize("kind", ["zero", "mean", WindowSize(1, 2)])
def test_a_group_is_closed_as_all_its_heads_are(kind: Any) -> None:
    subject = grouped()
    units = units_of(subject, "groups")
    assert [str(unit) for unit in units] == [
        f"decoder.{layer}.self.group{group}" for layer in (0, 1) for group in (0, 1)
    ]
    assert heads_in(units[1]) == {Head(units[1].site, 2), Head(units[1].site, 3)}
    problems = subject.draw(64, 0, False)
    one, other = Variants(subject, kind, units="groups"), Variants(subject, kind)
    closed = [heads_in(unit) for unit in one.units]
    found = one(problems, closed)
    assert torch.equal(found.loss, other(problems, closed).loss)
    assert found.loss.std(0).mean() > 1e-3
    curve = remove_greedily(one, problems[:32])
    assert [len(some) for some in curve.sets] == [0, 2, 4, 6, 8]
    assert all(heads_in(*(unit for unit in units if heads_in(unit) <= some)) == some for some in curve.sets)


def test_a_study_of_groups_names_the_group_of_each_head_and_gives_a_budget() -> None:
    subject = grouped()
    study = study_heads(
        subject, ablation="window", sink=0, recent=8, units="groups", max_drop=0.2, brief=True, quiet=True
    )
    content = study.to_json()
    assert content["units"] == "groups"
    assert [row["group"] for row in content["heads"][:3]] == ["decoder.0.self.group0"] * 2 + ["decoder.0.self.group1"]
    assert content["heads"][0]["drop"] == content["heads"][1]["drop"]
    assert content["alone"]["count"] == 2 * content["alone"]["units"]
    assert "of 4 key-value groups" in content["findings"][0]
    assert {site: len(own) for site, own in content["budget"]["windows"].items()} == {
        "decoder.0.self": 2,
        "decoder.1.self": 2,
    }
    by_head = study_heads(subject, ablation="window", sink=0, recent=8, max_drop=0.2, brief=True, quiet=True)
    assert by_head.to_json()["budget"] is None  # half of a group saves no cache
    with pytest.raises(HeadwayError, match="ask with `units=groups`"):
        study_heads(subject, ablation="window", recent=4, cache="60%", max_drop=0.2, brief=True, quiet=True)


@pytest.mark.slow
def test_greedy_narrows_nearly_as_many_heads_as_the_best_of_all_sets_of_a_recall_model() -> None:
    pytest.importorskip("transformers")
    from headway.attach.from_transformers import subject_from_transformers

    folder = Path(__file__).parents[2] / "recipes" / "recall" / "rotary"
    rows = torch.randint(64, 128, (60, 4, 2), generator=torch.Generator().manual_seed(1))
    rows = torch.stack([torch.randperm(64, generator=torch.Generator().manual_seed(n))[:8] + 64 for n in range(60)])
    text = torch.randint(64, (60, 32), generator=torch.Generator().manual_seed(2))
    source = torch.cat((text[:, :8], rows, text[:, 8:], rows[:, 2:3]), 1)  # facts, text, and the key of the second fact
    subject = subject_from_transformers(folder, Problems(source, rows[:, 3:4]))
    problems, size = subject.draw(60, 0, False), WindowSize(4, 8)
    variants = Variants(subject, size)
    cache = cache_units(variants.units, [size], source.shape[1] + 1)
    assert cache is not None
    every, curve = measure_all(variants, cache, problems), narrow_greedily(variants, cache, problems)
    assert len(every) == 2**8
    for closed, accuracy in zip(curve.sets, curve.accuracy, strict=True):
        levels = cache.levels(closed)
        assert accuracy == every[levels][0]
        assert accuracy <= max(right for other, (right, _) in every.items() if sum(other) == sum(levels))
    best = max(sum(levels) for levels, (right, _) in every.items() if right >= 0.95)
    found = max(len(closed) for closed, right in zip(curve.sets, curve.accuracy, strict=True) if right >= 0.95)
    assert best - 1 <= found <= best < 8
    assert every[cache.narrowest][0] < 0.5
    assert all(every[tuple(int(a == b) for b in range(8))][0] > 0.5 for a in range(8))


def test_windows_may_be_given_to_any_number_of_heads_at_once() -> None:
    subject = recaller(finders=2)
    problems, (one, other, _) = subject.draw(100, 0, False), subject.heads
    variants = Variants(subject, WindowSize(0, 2))
    for recents in itertools.product((2, 10, 11), repeat=2):
        parts = frozenset({NarrowedHead(one, recents[0]), NarrowedHead(other, recents[1])})
        (accuracy,) = variants(problems, [parts]).accuracy
        assert (accuracy == 1) == (11 in recents)
