"""What stops a model is named, and nothing else: models whose limit is known because it was built into them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, MistralConfig, MistralForCausalLM

from headway.attach.order import find_order
from headway.lengths.language.answer import LanguageLengths
from headway.lengths.language.causes import LanguageCause, Suspects
from headway.lengths.language.cells import RecallCell
from headway.lengths.language.study import study_language
from headway.lengths.question import LengthsQuestion

RECALL = Path(__file__).parents[2] / "recipes" / "recall"


def load(family: str) -> Any:
    return AutoModelForCausalLM.from_pretrained(RECALL / family).eval()


def study(model: Any, **asked: Any) -> LanguageLengths:
    return study_language(model, None, LengthsQuestion(text=RECALL / "text.jsonl", **asked), "model")


def established(found: LanguageLengths, task: str) -> list[str]:
    return [each.cause for each in found.causes if each.task == task and each.established]


def test_rotary_angles_that_training_never_reached() -> None:
    found = study(load("rotary"), to=256)
    for task in found.tasks:
        assert established(found, task) == ["untrained angles"]
        assert {each.length for each in found.effective if each.task == task and each.cure == "none"} == {64}
    cause = next(each for each in found.causes if each.established)
    assert cause.gain is not None
    assert cause.gain.low > 0.2


def test_rows_of_a_table_that_were_never_trained() -> None:
    found = study(load("table"), to=256)
    for task in found.tasks:
        assert established(found, task) == ["untrained rows"]


def penalize(model: Any, trained: int) -> Any:
    """Multiplies the penalty on distance by n / trained where there are n > trained tokens."""

    def scale(module: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return inputs, {**options, "alibi": options["alibi"] * max(1.0, options["alibi"].shape[-1] / trained)}

    for layer in model.transformer.h:
        layer.self_attention.register_forward_pre_hook(scale, with_kwargs=True)
    return model


def test_a_penalty_on_distance() -> None:
    """The model was trained on 64 tokens, so that nothing but the penalty that was added stops it before."""
    asked = {"train_lengths": "32", "lengths": "32,48,64", "depths": 2}
    found = study(penalize(load("alibi"), 32), **asked)
    assert [established(found, task) for task in found.tasks] == [["distance penalty"], ["distance penalty"]]
    assert study(load("alibi"), **asked).causes == ()


def test_the_penalty_of_alibi_itself_stops_it_at_last() -> None:
    """Clamped distances bring recall back; what is then left is dispersion, so that log-length adds to it."""
    found = study(load("alibi"), lengths="64,512", probes="repeat")
    first = next(each for each in found.causes if each.established)
    assert (first.cause, first.cure) == ("distance penalty", "clamp")
    assert (first.after or 0.0) > 0.9 > 0.7 > (first.before or 1.0)


def disperse(model: Any, trained: int, power: float) -> Any:
    """Multiplies the scores by (ln trained / ln n) to a power, where a query sees n > trained tokens."""

    def scale(module: nn.Module, inputs: tuple[Tensor, ...], query: Tensor) -> Tensor:
        seen = torch.arange(1, query.shape[1] + 1).clamp(min=trained)
        return query * ((math.log(trained) / seen.log()) ** power)[None, :, None]

    for layer in model.model.layers:
        layer.self_attn.q_proj.register_forward_hook(scale)
    return model


def test_attention_that_spreads_over_more_tokens() -> None:
    """The model was trained on 64 tokens, so that its angles are in range throughout."""
    asked = {"train_lengths": "32", "lengths": "32,48,64", "depths": 2}
    found = study(disperse(load("rotary"), 32, 5.0), **asked)
    assert [established(found, task) for task in found.tasks] == [["dispersion"], ["dispersion"]]
    assert study(load("rotary"), **asked).causes == ()  # nothing stops it there


def test_a_window_hides_facts_and_that_is_proved() -> None:
    rotary = load("rotary")
    config = {
        key: value for key, value in rotary.config.to_dict().items() if key not in ("model_type", "architectures")
    }
    model = MistralForCausalLM(MistralConfig(**config, sliding_window=40))
    model.load_state_dict(rotary.state_dict())
    found = study(model.eval(), train_lengths="40", lengths="40,160", depths=2)
    for task in found.tasks:
        assert established(found, task) == ["cannot see"]


def test_constant_answers_are_not_learned_and_nothing_else() -> None:
    model = load("rotary")
    model.lm_head.weight = nn.Parameter(torch.zeros_like(model.lm_head.weight))
    found = study(model)
    assert [(each.cause, each.established) for each in found.causes] == [("not learned", True)] * 2
    assert {each.length for each in found.effective} == {None}
    assert found.losses is not None
    assert found.losses.rises_at is None
    assert "100% of its answers are token" in found.findings()[0]


def test_an_untrained_model_has_not_learned() -> None:
    torch.manual_seed(0)
    model = type(load("rotary"))(load("rotary").config).eval()
    assert [each.cause for each in study(model, probes="repeat").causes] == ["not learned"]


class Answers:
    """Cells by cure, as if they had been measured: so many of 400 answers right, the same ones first."""

    def __init__(self, **right: int) -> None:
        self.right = {name.replace("_", "-"): count for name, count in right.items()}

    def __call__(self, task: str, length: int, cure: str, target: int | None = None) -> RecallCell:
        count = self.right["in-range" if length == 64 else cure]
        right = (torch.arange(400) < count).view(20, 20).T  # every prompt gets as many right
        return RecallCell(task, length, cure, 2.0, 0.05, right, torch.zeros(20, 20, dtype=torch.long))


def judge(**right: int) -> list[LanguageCause]:
    order = find_order(load("rotary"))
    ask = Answers(**{"in_range": 400, "temperature": 100, "interpolation_in_range": 100, "none": 100, **right})
    found = Suspects(order, "repeat", [128], 64, ask, 10, lambda cause, length: "").find(("none", "yarn", "log-length"))
    return [each for each in found if each.established]


def test_a_cure_that_its_sham_equals_establishes_nothing() -> None:
    assert [each.cause for each in judge(yarn=300, log_length=100)] == ["untrained angles"]
    pair = {"yarn+log-length": 300, "log-length+yarn": 300, "interpolation-in-range+temperature": 300}
    assert judge(yarn=300, log_length=100, temperature=300, **pair) == []


def test_the_lesser_of_two_cures_yields_unless_both_together_bring_more() -> None:
    both = {"yarn+log-length": 300}
    assert [each.cause for each in judge(yarn=300, log_length=200, **both)] == ["untrained angles"]
    both = {"yarn+log-length": 390}
    assert [each.cause for each in judge(yarn=300, log_length=200, **both)] == ["untrained angles", "dispersion"]


def test_a_pair_of_cures_is_tried_before_the_cause_is_unknown() -> None:
    pair = {"yarn+log-length": 300, "interpolation-in-range+temperature": 100}
    assert [each.cause for each in judge(yarn=100, log_length=100, **pair)] == ["untrained angles and dispersion"]
    pair = {"yarn+log-length": 100, "interpolation-in-range+temperature": 100}
    assert judge(yarn=100, log_length=100, **pair) == []
