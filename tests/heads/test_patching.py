"""Causal tests find the wiring of a hand-wired model, all of it and nothing else.

The adder built here adds three digits a side without propagating carries. Its parts:
encoder.0.self.0      copies each digit of b to its column's digit of a; the feed-forward block makes sum and carry
decoder.0.cross.0     copies the sum of column k to answer digit k
decoder.0.cross.1, 2  copy the carry of the column below, depending on the wiring; if both do, either is enough
all other heads       do nothing
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest
import torch

from headway.attach.opening import prepare_subject
from headway.causes import roles as module
from headway.causes.patching import Pairs, Patch
from headway.causes.roles import Roles, find_roles
from headway.errors import HeadwayError
from headway.models import EncoderDecoder, Head, Site, build_model
from headway.runs.config import Overrides
from headway.subjects.subject import Subject
from headway.tasks import Addition
from headway.tasks.contrasts import sum_contrasts
from headway.training.defaults import plan

TASK, WIDTH, LARGE, SHARP = Addition(), 64, 3000.0, 40.0
# features of the stream: a constant that keeps the norms still, places, and numbers, each with its negative
PLACES, VALUE, PARTNER, CARRY, SUM, FIRST, SECOND, INTO, WRAP = 2, 20, 22, 24, 26, 28, 30, 32, 34


def a_at(column: int) -> int:
    return 2 - column


def b_at(column: int) -> int:
    return 6 - column


PLUS = 3


@torch.no_grad()
def wire_adder(carries: dict[int, list[int]]) -> EncoderDecoder:
    """Builds the adder; `carries` sets which columns' carries the cross heads 1 and 2 copy."""
    config = plan("addition", Overrides(layers=1, decoder_layers=2, d_model=WIDTH, heads=4, d_ff=8), 0).model
    model = build_model(config)
    assert isinstance(model, EncoderDecoder)
    for weight in model.parameters():
        weight.zero_()
    for norm in (m for m in model.modules() if isinstance(m, torch.nn.LayerNorm)):
        norm.weight.fill_(LARGE * (2 / WIDTH) ** 0.5)
    model.tokens.weight[:, 0], model.tokens.weight[:, 1] = LARGE, -LARGE
    model.tokens.weight[:10, VALUE] = torch.arange(10.0)
    model.tokens.weight[:10, VALUE + 1] = -torch.arange(10.0)
    for table in (cast(Any, model.source_positions).table, cast(Any, model.answer_positions).table):
        table[:8, PLACES : PLACES + 8] = torch.eye(8)
    encoder, first, second = cast(list[Any], [*model.encoder, *model.decoder])
    partners = {a_at(k): b_at(k) for k in range(3)} | dict.fromkeys((3, 4, 5, 6), PLUS)
    wire(encoder.attentions["self"], 0, partners, [VALUE], PARTNER)
    step(encoder.feed, [VALUE, PARTNER], CARRY, at=10)
    digit = {3 - k: a_at(k) for k in range(3)} | {0: PLUS}
    wire(first.attentions["cross"], 0, digit, [VALUE, PARTNER], SUM)
    for head, into in ((1, FIRST), (2, SECOND)):
        below = {3 - k: a_at(k - 1) if k in carries.get(head, []) else PLUS for k in range(4)}
        wire(first.attentions["cross"], head, below, [CARRY], into)
    step(first.feed, [FIRST, SECOND], INTO, at=1)
    step(second.feed, [SUM, INTO], WRAP, at=10)
    for token in range(10):
        for feature, times in ((SUM, 1), (INTO, 1), (WRAP, -10)):  # the digit d, for logits 2·d·token − token²
            model.unembed.weight[token, feature] = times * token
            model.unembed.weight[token, feature + 1] = -times * token
    model.unembed.bias[:10] = -torch.arange(10.0).square()
    model.unembed.bias[10:] = -1e4
    return model.eval()


def wire(site: Any, head: int, looks: dict[int, int], reads: list[int], writes: int) -> None:
    """Wires a head to look from each position in `looks` at one position, and copy what is there."""
    keys = sorted(set(looks.values()))
    for query, key in looks.items():
        site.query[head * site.dim + keys.index(key), PLACES + query] = SHARP
    for number, key in enumerate(keys):
        site.key_value[0, head * site.dim + number, PLACES + key] = SHARP
    for feature in reads:
        site.key_value[1, head * site.dim, feature], site.key_value[1, head * site.dim, feature + 1] = 0.5, -0.5
    site.out.weight[writes, head * site.dim] = 1.0
    site.out.weight[writes + 1, head * site.dim] = -1.0


def step(feed: Any, reads: list[int], writes: int, at: int) -> None:
    """Wires a unit to write 1 where the integers it reads sum to `at` or more, else 0."""
    feed.into.weight[:2, reads] = 0.5
    feed.into.weight[:2, [feature + 1 for feature in reads]] = -0.5
    feed.into.bias[0], feed.into.bias[1] = 1.0 - at, -at
    feed.out.weight[writes, 0], feed.out.weight[writes, 1] = 1.0, -1.0
    feed.out.weight[writes + 1, 0], feed.out.weight[writes + 1, 1] = -1.0, 1.0


def subject_with(carries: dict[int, list[int]]) -> Subject:
    model = wire_adder(carries)
    sites = [Site("encoder", 0, "self")] + [Site("decoder", layer, k) for layer in range(2) for k in ("self", "cross")]  # pyright: ignore
    heads = tuple(Head(site, number) for site in sites for number in range(4))
    return prepare_subject(Subject(
        model, heads=heads, examples=lambda rows, seed, held_out: TASK.testing(seed, rows),
        contrasts=lambda pairs, seed: [c for c in sum_contrasts(TASK, pairs, seed) if c.kind != "written"],
    ))  # fmt: skip


def named_parts(roles: Roles, contrast: str, at_answer: bool = False) -> set[str]:
    return {
        str(s.part)
        for s in roles.table
        if s.named and s.contrast == contrast and s.at_answer == at_answer and isinstance(s.part, Head)
    }


@pytest.fixture(autouse=True)
def _fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAIRS", 100)
    monkeypatch.setattr(module, "GROWN", 30)
    monkeypatch.setattr(module, "RANDOM_SETS", 30)


@torch.no_grad()
def test_the_wired_model_adds() -> None:
    model = wire_adder({1: [1, 2, 3]})
    problems = TASK.testing(0, 3000)
    right = (model(problems.source, problems.answer).argmax(-1) == problems.answer).all(1)
    assert torch.equal(right, TASK.strata(problems)["propagated carries"] == 0)


ENCODER, DIGITS = "encoder.0.self.0", "decoder.0.cross.0"


def test_every_part_of_the_wiring_is_found_at_its_column_only() -> None:
    """Head 1 copies the carry into column 2 only, head 2 those into columns 1 and 3."""
    roles = find_roles(subject_with({1: [2], 2: [1, 3]}))
    carriers = {1: "decoder.0.cross.2", 2: "decoder.0.cross.1", 3: "decoder.0.cross.2"}
    for column in range(3):
        assert named_parts(roles, f"operand {column}") == {ENCODER, DIGITS}
        assert named_parts(roles, f"operand {column}", at_answer=True) == {DIGITS}
    for column, head in carriers.items():
        assert named_parts(roles, f"carry {column}") == {ENCODER, head}
        assert named_parts(roles, f"carry {column}", at_answer=True) == {head}
        explained = next(each for each in roles.explained if each.contrast == f"carry {column}")
        assert explained.heads == (Head.parse(head),)
        assert explained.real.share == 1.0
        assert explained.sound
    for strength in roles.table:
        assert strength.placebo.pairs >= 40
        assert not strength.placebo.can or strength.placebo.share is not None
        assert (strength.placebo.share or 0) <= 0.02, strength
        if strength.contrast.startswith("propagated"):  # which this model cannot do
            assert strength.pairs == 0
            assert strength.to_json()["flips"] == (None if strength.can else "cannot")
    for each in roles.explained:
        assert each.placebo.share is not None
        assert each.placebo.share <= 0.02
        assert each.sound == each.contrast.startswith(("operand", "carry"))
        if each.sound:
            assert each.by_named.share == 1.0
    sites = roles.by_site()
    for column in (1, 2, 3):  # made, brought, joined
        assert {"encoder.0.feed", "decoder.0.cross", "decoder.0.feed"} <= set(sites[f"carry {column}"])
    for column in range(3):
        assert "decoder.0.cross" in sites[f"operand {column}"]
        assert "decoder.0.feed" not in sites[f"operand {column}"]
    assert not any(contrast.startswith("propagated") for contrast in sites)
    said = roles.findings()
    assert len([each for each in said if "suffice" in each]) == 6
    assert all("decoder.0.self cannot" in each for each in said if each.startswith(("The digits of", "A carry:")))


def test_a_head_that_carries_everything_flips_every_pair() -> None:
    subject = subject_with({1: [1, 2, 3]})
    roles = find_roles(subject)
    by = {(str(s.part), s.contrast, s.at_answer): s for s in roles.table}
    for column in (1, 2, 3):
        carrier = by["decoder.0.cross.1", f"carry {column}", False]
        assert carrier.flips == (carrier.pairs, carrier.pairs)
        assert carrier.moved == pytest.approx(1, abs=0.01)
        idle = by["decoder.0.cross.3", f"carry {column}", False]
        assert idle.flips == (0, 0)
        assert idle.moved == pytest.approx(0, abs=1e-4)


def test_two_redundant_heads_are_found_together() -> None:
    """A carry that both heads copy is added by one patch and removed only by both."""
    roles = find_roles(subject_with({1: [1, 2, 3], 2: [1, 2, 3]}))
    both = {"decoder.0.cross.1", "decoder.0.cross.2"}
    for column in (1, 2, 3):
        assert not named_parts(roles, f"carry {column}") & both  # in one of the directions neither does anything alone
        explained = next(each for each in roles.explained if each.contrast == f"carry {column}")
        assert {str(head) for head in explained.heads} == both
        assert explained.real.share == 1.0
        assert explained.necessity is not None
        assert explained.necessity.holds
        assert explained.necessity.all_heads == 1.0
        assert explained.necessity.all_others.left == 0.0
        assert explained.controls is not None
        assert explained.controls.all_heads.sets == 30


def test_patching_equals_a_full_pass_with_the_other_problems_output() -> None:
    """Compares with the slow, obvious way: every head's output written out, in a full pass."""
    from headway.models import Gate, Trace

    subject = subject_with({1: [2], 2: [1, 3]})
    pairs = Pairs(subject, sum_contrasts(TASK, 2, 0)[::3])
    heads = [Head.parse(name) for name in (ENCODER, DIGITS, "decoder.0.cross.2")]
    patches = [Patch(frozenset({head})) for head in heads]
    patches += [Patch(frozenset(heads)), Patch(frozenset(heads[1:]), at_answer=True)]
    found = pairs(patches)
    model = subject.model
    with torch.no_grad():
        for number, patch in enumerate(patches):
            for row in range(len(pairs.problems)):
                own, donor, trace = pairs.problems[row : row + 1], pairs.donors[row : row + 1], Trace()
                model(donor.source, donor.answer, None, trace)
                gates, place = {}, int(pairs.place[row])
                for site in {head.site for head in patch.parts if isinstance(head, Head)}:
                    passed = torch.ones(1, trace.outputs[site].shape[1], 4)
                    for head in patch.parts:
                        if isinstance(head, Head) and head.site == site:
                            passed[:, slice(place, place + 1) if patch.at_answer else slice(None), head.number] = 0
                    gates[site] = Gate(passed, trace.outputs[site])
                digit = int(model(own.source, own.answer, gates)[0, place].argmax())
                expected = digit != int(pairs.own[row]) if pairs.placebo[row] else digit == int(pairs.other[row])
                assert bool(found.flipped[number, row]) == (expected and bool(pairs.known[row]))


def test_an_encoder_has_no_answer_position() -> None:
    pairs = Pairs(subject_with({1: [2]}), sum_contrasts(TASK, 2, 0))
    with pytest.raises(HeadwayError, match="patch it at all positions"):
        pairs([Patch(frozenset({Head.parse(ENCODER)}), at_answer=True)])


def test_patching_from_an_identical_problem_changes_nothing(adder) -> None:
    """Identical problems: every patch is the problem's own output."""
    same = [replace(c, other=c.clean, placebo=True) for c in sum_contrasts(TASK, 20, 1)[:4]]
    from headway.subjects.own import subject_of

    subject = subject_of(adder)
    found = Pairs(subject, same)([Patch(frozenset({head})) for head in subject.heads])
    assert not found.flipped.any()
