"""A margin that is a share of the whole model's loss: it means the same for a good and a bad model, and nothing where
there is hardly a loss."""

from __future__ import annotations

from dataclasses import replace

import numpy
import pytest
import torch

from headway.api import prune
from headway.errors import HeadwayError
from headway.heads import study as study_module
from headway.heads.ablation import EffectSums, Judge
from headway.heads.question import HeadsQuestion, Margin, parse_loss_increase
from headway.heads.study import study_subject
from headway.heads.variants import Outcome
from headway.runs.folder import RunFolder
from headway.subjects.own import open_run, subject_of


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, count in {"SELECTED": 100, "CONFIRMED": 1000, "PAIRED": 5}.items():
        monkeypatch.setattr(study_module, name, count)


def test_a_share_and_an_amount_are_read_apart() -> None:
    assert parse_loss_increase("1%") == (None, 0.01)
    assert parse_loss_increase(" 250% ") == (None, 2.5)
    assert parse_loss_increase("0.01") == parse_loss_increase(0.01) == (0.01, None)
    for wrong in ("", "%", "-1%", "0", "inf", "inf%", "1%%", "a tenth"):
        with pytest.raises(HeadwayError, match="write a share of the loss such as 1%"):
            parse_loss_increase(wrong)
    with pytest.raises(HeadwayError, match="not both"):
        HeadsQuestion(max_drop=0.01, max_loss_increase="1%")


def test_the_margin_grows_with_the_loss_of_the_whole_model() -> None:
    margin = Margin(0.01, share=0.1)
    assert margin.allows(drop=1.0, loss_increase=0.09, whole=1.0)
    assert not margin.allows(drop=0.0, loss_increase=0.09, whole=0.5)
    assert Margin(0.01, loss=0.1).allows(drop=1.0, loss_increase=0.09, whole=0.5)


def test_a_set_just_over_the_share_is_rarely_confirmed() -> None:
    """The loss of the whole model is a sample too. Of sets that really cost the margin, at most 2.5% may be confirmed,
    whether the increase follows the loss, is opposed to it or has nothing to do with it."""
    chance, share = numpy.random.default_rng(0), 0.5
    for slope in (-0.4, 0.0, 1.5):
        confirmed = 0
        for _ in range(600):
            whole = chance.gamma(4.0, 0.25, 400)  # mean 1
            increase = share + slope * (whole - 1) + chance.normal(0, 0.1, 400)
            sums = EffectSums()
            sums.add(
                Outcome(torch.ones(2, 400, dtype=torch.bool), torch.tensor(numpy.stack((whole, whole + increase)))), {}
            )
            effect = sums.effects([frozenset()])[1]
            confirmed += Judge(Margin(0.01, share=share), 1, exact=False).confirms(effect)
        assert confirmed <= 600 * 0.025 + 12, slope  # three standard deviations


def test_a_share_of_the_loss_is_the_same_rule_as_that_amount(folders: list[RunFolder]) -> None:
    """With every problem there is nothing left to chance: 40% of a loss is a number."""
    subject = subject_of(open_run(folders[0]))
    asked = HeadsQuestion(all=True, budget=0, brief=True, max_loss_increase="40%")
    share = study_subject(subject, asked)
    amount = study_subject(subject, replace(asked, max_loss_increase=0.4 * share.whole.loss))
    assert [row.verdict for row in share.heads] == [row.verdict for row in amount.heads]
    assert share.alone.heads == amount.alone.heads
    content = share.to_json()
    assert content["max_loss_increase_share"] == 0.4
    assert content["max_loss_increase"] == pytest.approx(0.4 * content["baseline_loss"])
    assert content["interval_of"] == "loss_increase"
    assert "(0.4 of the" in share.findings()[0]


def test_more_heads_can_go_within_a_larger_share(folders: list[RunFolder]) -> None:
    subject, asked = subject_of(open_run(folders[0])), HeadsQuestion(examples=600, budget=0, brief=True)
    small, large = (study_subject(subject, replace(asked, max_loss_increase=share)) for share in ("1%", "10000%"))
    assert small.together.count < large.together.count
    assert large.together.effect.loss_increase < 100 * large.whole.loss


def test_a_share_of_nothing_is_refused() -> None:
    """The KL divergence of the whole model from itself is 0, and a logit difference may be negative."""
    for whole in (0.0, -1.5, float("nan")):
        with pytest.raises(HeadwayError, match="a share of that is no margin; give an amount such as"):
            Judge(Margin(0.01, share=0.01), 1, exact=False).check_share(whole, "kl")
        Judge(Margin(0.01, loss=0.01), 1, exact=False).check_share(whole, "kl")


def test_a_run_is_pruned_by_a_share_of_its_loss(folders: list[RunFolder], tmp_path) -> None:
    found = prune(folders[0].path, tmp_path / "smaller", max_loss_increase="10000%", quiet=True)
    assert found["heads_after"] < found["heads_before"]
