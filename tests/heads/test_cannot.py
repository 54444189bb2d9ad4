"""A site that sees no difference cannot flip an answer: derived from the wiring, and so in untrained models too."""

from __future__ import annotations

import pytest
import torch

from headway.attach.opening import open_subject, prepare_subject
from headway.causes.flips import measure_strengths
from headway.causes.patching import Pairs, Patch
from headway.models import build_model
from headway.models.sites import site_of
from headway.runs.config import Overrides
from headway.subjects.subject import Subject
from headway.tasks import Addition
from headway.tasks.contrasts import sum_contrasts
from headway.training.defaults import plan

TASK = Addition()


def untrained(**overrides: object) -> Subject:
    config = plan("addition", Overrides(d_model=32, d_ff=64, **overrides), 0).model  # pyright: ignore
    return prepare_subject(Subject(
        build_model(config, 3).eval(), examples=lambda rows, seed, held_out: TASK.testing(seed, rows),
        contrasts=lambda pairs, seed: sum_contrasts(TASK, pairs, seed),
    ))  # fmt: skip


def single_patches(subject: Subject) -> list[Patch]:
    sites = list(subject.runner.sites)
    answering = [Patch(frozenset({site}), at_answer=True) for site in sites if site_of(site).stack == "decoder"]
    return [*(Patch(frozenset({site})) for site in sites), *answering]


@torch.inference_mode()
def largest_changes(pairs: Pairs, patches: list[Patch]) -> list[list[float]]:
    """Really patches every site, whatever can be derived, and returns the largest change of a logit, by contrast."""
    found = pairs._patch_rows(pairs.problems, pairs.donors, pairs.place, patches, slice(0, None))
    change = (found - pairs.base).abs().amax(-1)  # patch row
    every = range(len(pairs.contrasts))
    return [[float(row[pairs.contrast == number].max()) for number in every] for row in change]


@pytest.mark.parametrize(
    ("overrides", "tight"),
    [({}, True), ({"layers": 1, "decoder_layers": 3}, True), ({"index": "randomized", "positions": "rope"}, False)],
)
def test_what_cannot_does_not_and_what_can_does_in_an_untrained_model(overrides, tight: bool) -> None:
    subject = untrained(**overrides)
    pairs, patches = Pairs(subject, [c for c in sum_contrasts(TASK, 6, 0) if not c.placebo]), single_patches(subject)
    changes, cannot = largest_changes(pairs, patches), 0
    for patch, row in zip(patches, changes, strict=True):
        for contrast, able, change in zip(pairs.contrasts, pairs.can(patch), row, strict=True):
            assert able or change <= 1e-5, (patch, contrast.name)
            assert not able or not tight or change > 1e-4, (patch, contrast.name)
            cannot += not able
    assert cannot > 0


def test_the_first_self_attention_cannot_tell_a_carry_unless_the_written_digits_do(adder) -> None:
    """So "it flips 0%" of those pairs is no evidence about an adder."""
    from headway.subjects.own import subject_of

    for subject in (untrained(), subject_of(adder)):
        pairs = Pairs(subject, [c for c in sum_contrasts(TASK, 6, 0) if not c.placebo])
        table = measure_strengths(pairs, single_patches(subject))
        cells = {(str(each.part), each.contrast): each.to_json() for each in table if not each.at_answer}
        for (part, contrast), cell in cells.items():
            sees = contrast.startswith("written") and not contrast.endswith("source")
            if part == "decoder.0.self":
                assert (cell["flips"] != "cannot") == sees
            if part.startswith("encoder"):
                assert (cell["flips"] == "cannot") == contrast.endswith("prefix")
            if cell["flips"] == "cannot":
                assert (cell["interval"], cell["by_direction"], cell["moved"], cell["named"]) == (
                    None,
                    None,
                    None,
                    False,
                )


def test_skipping_what_cannot_flip_gives_the_same_flips() -> None:
    subject = open_subject("pretrained:adder")
    pairs = Pairs(subject, sum_contrasts(TASK, 4, 0))
    patches = single_patches(subject)
    quick = pairs(patches)
    pairs.carrying = None  # as if nothing could be derived
    slow = pairs(patches)
    assert torch.equal(quick.flipped, slow.flipped)
    torch.testing.assert_close(quick.moved, slow.moved, atol=1e-4, rtol=1e-4)


def test_the_shipped_adder_takes_a_carry_from_the_digit_it_has_written() -> None:
    """Its own source says that column 2 gets no carry, the written digit of another sum that it does."""
    subject = open_subject("pretrained:adder")
    contrasts = [c for c in sum_contrasts(TASK, 400, 5) if c.name in ("written 2 prefix", "written 2 source")]
    pairs = Pairs(subject, contrasts)
    assert pairs.known.all()
    written = pairs.swapped()
    shares = {
        (contrast.swap, side): float(written[(pairs.contrast == number) & (pairs.forward == side)].float().mean())
        for number, contrast in enumerate(contrasts)
        for side in (True, False)
    }
    assert shares["prefix", True] == pytest.approx(0.9, abs=0.02)
    assert shares["prefix", False] == 0  # the other way round the source decides
    assert shares["source", True] == 1
    assert shares["source", False] == pytest.approx(0.1, abs=0.02)


def test_a_held_part_keeps_its_output_whatever_changes_before_it() -> None:
    """With every head of the decoder held at its own output, patching the encoder changes nothing."""
    subject = untrained()
    pairs = Pairs(subject, sum_contrasts(TASK, 4, 0)[:4])
    encoder, decoder = (frozenset(h for h in subject.runner.heads if h.site.stack == s) for s in ("encoder", "decoder"))
    live, held = pairs._patch_rows(
        pairs.problems, pairs.donors, pairs.place, [Patch(encoder), Patch(encoder, held=decoder)], slice(0, None)
    )
    torch.testing.assert_close(held, pairs.base, atol=1e-5, rtol=1e-5)
    assert float((live - pairs.base).abs().max()) > 1e-3
