"""Cures equal transformers' own where it has them, and plain references elsewhere; the model is restored to the bit."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from language import LENGTH, OPTIONS, TRAINED, logits, make, tokens
from torch import Tensor

import headway
from headway import HeadwayError
from headway.attach.cures import config_lines, cured, cures_for, shams_for
from headway.attach.intervention import replace_forward
from headway.attach.order import Setting, TokenOrder, find_order
from headway.attach.rotations import find_rotations
from headway.attach.scores import factors
from headway.attach.tables import change_rows

SETTING = Setting(TRAINED, LENGTH)
FACTOR = LENGTH / TRAINED
LIBRARY = ("interpolation", "ntk", "dynamic-ntk", "yarn")
FAMILIES = tuple(OPTIONS)


def rope(cure: str, theta: float, width: int) -> dict[str, Any]:
    """Returns the rope parameters of transformers for a cure, written by hand."""
    if cure == "ntk":
        return {"rope_type": "default", "rope_theta": theta * FACTOR ** (width / (width - 2))}
    kind = {"interpolation": "linear", "dynamic-ntk": "dynamic", "yarn": "yarn"}[cure]
    trained = {"original_max_position_embeddings": TRAINED} if cure == "yarn" else {}
    return {"rope_type": kind, "rope_theta": theta, "factor": FACTOR, **trained}


def library_model(name: str, cure: str) -> Any:
    """Makes the model fresh with transformers' own implementation of a cure."""
    shorter = {"max_position_embeddings": TRAINED} if cure == "dynamic-ntk" else {}
    if name == "GPT-NeoX":
        return make(name, rope_parameters={**rope(cure, 1e4, 4), "partial_rotary_factor": 0.5}, **shorter)
    if name == "Gemma 3":
        local = {"rope_type": "default", "rope_theta": 1e4}
        both = {"full_attention": rope(cure, 1e6, 8), "sliding_attention": local}
        return make(name, rope_parameters=both, **shorter)
    theta = make(name).config.rope_parameters["rope_theta"]
    return make(name, rope_parameters=rope(cure, theta, 8), **shorter)


@pytest.mark.parametrize("name", ["Llama", "Qwen2", "Mistral", "GPT-NeoX", "Gemma 3"])
def test_cures_equal_those_of_transformers(name: str, tmp_path: Path) -> None:
    make(name).save_pretrained(tmp_path)
    plain = type(make(name)).from_pretrained(tmp_path)
    order, before = find_order(plain), logits(plain)
    for cure in LIBRARY:
        expected = logits(library_model(name, cure))
        with cured(plain, order, cure, SETTING):
            assert (logits(plain) - expected).abs().max() < 1e-4, cure
        assert (before - expected).abs().max() > 1e-3, cure
        pasted: dict[str, Any] = {}
        exec(config_lines(plain, order, cure, SETTING), pasted)
        assert torch.equal(logits(pasted["model"].eval()), expected), cure


def test_families_that_transformers_describes_in_their_own_way(tmp_path: Path) -> None:
    """Phi-3 keeps its training length outside the rope parameters; Mixtral leaves the width of heads open."""
    for name in ("Phi-3", "Mixtral"):
        make(name).save_pretrained(tmp_path / name)
        model = type(make(name)).from_pretrained(tmp_path / name)
        order = find_order(model)
        for cure in LIBRARY:
            pasted: dict[str, Any] = {}
            exec(config_lines(model, order, cure, SETTING), pasted)
            with cured(model, order, cure, SETTING):
                assert (logits(model) - logits(pasted["model"].eval())).abs().max() < 1e-4, cure


def test_dynamic_frequencies_follow_each_text() -> None:
    model = make("Llama")
    order = find_order(model)
    with cured(model, order, "dynamic-ntk", SETTING):
        for length in (LENGTH, 24, TRAINED, 32):
            assert (logits(model, length) - logits(library_model("Llama", "dynamic-ntk"), length)).abs().max() < 1e-4
            if length == TRAINED:
                assert torch.equal(logits(model, length), logits(make("Llama"), length))


def state(model: Any) -> tuple[Any, ...]:
    """Returns everything that a cure could leave changed."""
    modules = [
        {name: copy.copy(value) if isinstance(value, dict | set) else value for name, value in vars(module).items()}
        for module in model.modules()
    ]
    return modules, str(model.config), model.config._attn_implementation


def same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return torch.equal(one, other) and one.dtype == other.dtype and one.data_ptr() == other.data_ptr()
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one is other or one == other


def interrupted(model: Any, order: TokenOrder, cure: str, setting: Setting) -> Tensor:
    """Returns the logits under a cure whose context an exception ends."""
    found = None
    try:
        with cured(model, order, cure, setting):
            found = logits(model, setting.length)
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        assert found is not None
        return found


def powerless(name: str, cure: str) -> bool:
    """Returns whether a cure provably changes nothing: in a window of 12 no query sees more than in training."""
    return name == "Mistral" and cure in ("log-length", "temperature", "window")


@pytest.mark.parametrize("name", FAMILIES)
def test_every_cure_runs_and_restores_the_model(name: str) -> None:
    model = make(name)
    order = find_order(model)
    double = Setting(TRAINED, 2 * TRAINED)
    within = Setting(TRAINED, min(2 * TRAINED, order.longest or 2 * TRAINED))
    plain = logits(model, within.length)
    before = state(model)
    names = {name for cure in cures_for(order) for name in (cure, shams_for(order, cure)) if name}
    for cure in sorted(names - {"none"}):
        longer = order.kind != "table" or cure in ("interpolation", "clamp", "reuse")
        setting = double if longer else within
        found = interrupted(model, order, cure, setting)
        assert found.isfinite().all(), cure
        assert torch.equal(found[:, : within.length], plain) == powerless(name, cure), cure
        with cured(model, order, cure, setting):
            assert torch.equal(logits(model, setting.length), found), cure
        assert same(before, state(model)), cure
        assert torch.equal(logits(model, within.length), plain), cure


def test_a_model_that_changes_itself_is_restored() -> None:
    model = make("Llama", rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0})
    before = state(model)
    with headway.cured(model, "log-length", trained=TRAINED, length=100):
        logits(model, 100)
    assert same(before, state(model))
    with pytest.raises(HeadwayError, match="yarn does not apply to this model: its frequencies already change"):
        cured(model, find_order(model), "yarn", SETTING).__enter__()


@contextmanager
def plain_attention(model: Any, factor: Any, sees: Any) -> Iterator[None]:
    """Runs a model under an attention that computes each query by itself, over the keys that it sees."""
    from transformers import AttentionInterface, AttentionMaskInterface

    def attend(
        module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, scaling: float, **_: Any
    ) -> tuple[Tensor, None]:
        groups = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        z = torch.empty_like(query)
        for place in range(query.shape[2]):
            seen = [other for other in range(place + 1) if sees(module, place, other)]
            scores = (key[:, :, seen] @ query[:, :, place, :, None])[..., 0] * scaling * factor(place)
            z[:, :, place] = (scores.softmax(-1)[:, :, None] @ value[:, :, seen])[:, :, 0]
        return z.transpose(1, 2), None

    AttentionInterface.register("plain", attend)
    AttentionMaskInterface.register("plain", lambda *_, **__: None)
    model.set_attn_implementation("plain")
    yield


def window_of(module: Any) -> int:
    of_all = module.config.sliding_window if "Mistral" in type(module).__name__ else None
    return getattr(module, "sliding_window", of_all) or 1000


def everything(module: Any, query: int, key: int) -> bool:
    return query - key < window_of(module)


SEES = {
    "window": lambda module, query, key: everything(module, query, key) and (key < 4 or query - key < TRAINED - 4),
    "sinks": lambda module, query, key: everything(module, query, key) or key < 4,
    "sinks-elsewhere": lambda module, query, key: everything(module, query, key) or 8 <= key < 12,
}


def by_log(place: int) -> float:
    return max(1.0, math.log(place + 1) / math.log(TRAINED))


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize(
    ("name", "cure"),
    [
        *((name, cure) for name in ("Llama", "GPT-2") for cure in ("log-length", "window")),
        *(("Mistral", cure) for cure in ("window", "sinks", "sinks-elsewhere")),
        ("Gemma 3", "window"),
        ("Gemma 3", "sinks"),
    ],
)
def test_changes_of_scores_equal_a_plain_reference(name: str, cure: str, implementation: str) -> None:
    options = {"GPT-2": {"n_positions": 64}, "Mistral": {"sliding_window": 20}}.get(name, {})
    model, reference = make(name, **options), make(name, **options)
    model.set_attn_implementation(implementation)
    order = find_order(model)
    with plain_attention(reference, by_log if cure == "log-length" else lambda _: 1.0, SEES.get(cure, everything)):
        expected = logits(reference)
    if cure == "sinks" and order.window is None:
        with pytest.raises(HeadwayError, match="unknown cure 'sinks'"):
            cured(model, order, cure, SETTING).__enter__()
        return
    plain = logits(model)
    with cured(model, order, cure, SETTING):
        assert model.config._attn_implementation == {"eager": "headway", "sdpa": "headway_sdpa"}[implementation]
        found = logits(model)
    assert (found - expected).abs().max() < 1e-4
    assert (found - plain).abs().max() > 1e-3


@pytest.mark.parametrize("cure", ["log-length", "window", "interpolation", "clamp"])
def test_bloom_equals_a_plain_reference(cure: str) -> None:
    model = make("BLOOM")
    by = {"log-length": by_log}.get(cure, lambda _: 1.0)
    sees = SEES.get(cure, lambda *_: True)
    biased = FACTOR if cure == "interpolation" else 1.0

    def attend(module: Any) -> Any:
        def forward(hidden: Tensor, residual: Tensor, **_: Any) -> tuple[Tensor, None]:
            query, key, value = module._reshape(module.query_key_value(hidden))
            z = torch.empty_like(query)
            slopes = torch.tensor([2.0 ** (-8 * (head + 1) / 4) for head in range(4)])
            for place in range(hidden.shape[1]):
                seen = [other for other in range(place + 1) if sees(module, place, other)]
                scores = (key[:, :, seen] @ query[:, :, place, :, None])[..., 0] / math.sqrt(8) * by(place)
                distance = place - torch.tensor(seen)
                distance = distance.clamp(max=TRAINED) if cure == "clamp" else distance / biased
                scores = scores - slopes[:, None] * distance
                z[:, :, place] = (scores.softmax(-1)[:, :, None] @ value[:, :, seen])[:, :, 0]
            return module.dense(z.transpose(1, 2).flatten(2)) + residual, None

        return forward

    reference = make("BLOOM")
    plain = logits(model)
    for block in reference.transformer.h:
        block.self_attention.forward = attend(block.self_attention)
    with cured(model, find_order(model), cure, SETTING):
        found = logits(model)
    assert (found - logits(reference)).abs().max() < 1e-4
    assert (found - plain).abs().max() > 1e-3


def test_interpolated_alibi_is_bloom_with_other_slopes(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.bloom import modeling_bloom

    model = make("BLOOM")
    with cured(model, find_order(model), "interpolation", SETTING):
        found = logits(model)
    slopes = modeling_bloom._get_alibi_slopes
    monkeypatch.setattr(modeling_bloom, "_get_alibi_slopes", lambda *inputs: slopes(*inputs) / FACTOR)
    assert (found - logits(model)).abs().max() < 1e-5


def test_tables_have_the_rows_of_the_cure() -> None:
    rows, short = torch.randn(24, 3), Setting(16, 40)
    clamped, reused, mixed = (change_rows(rows, cure, short) for cure in ("clamp", "reuse", "interpolation"))
    assert torch.equal(clamped[:16], rows[:16])
    assert torch.equal(clamped[16:40], rows[15].expand(24, 3))
    assert all(torch.equal(reused[place], rows[place % 16]) for place in range(40))
    assert torch.equal(mixed[5], rows[2])  # 5 / 2.5
    assert torch.allclose(mixed[6], 0.6 * rows[2] + 0.4 * rows[3])
    assert torch.equal(mixed[39], rows[15])
    sham = change_rows(rows, "interpolation-in-range", short)
    assert torch.equal(sham[:16], mixed[:16])
    assert torch.equal(sham[16:], rows[16:])


@pytest.mark.parametrize("name", ["GPT-2", "OPT"])
def test_a_clamped_table_runs_past_its_end(name: str) -> None:
    model = make(name)
    place = torch.arange(LENGTH).expand(2, -1)
    with torch.no_grad():
        given = {"position_ids": place.clamp(max=TRAINED - 1), "attention_mask": torch.ones_like(place)}
        expected = model(input_ids=tokens(), **given, use_cache=False).logits
    order = find_order(model)
    with cured(model, order, "clamp", SETTING):
        assert (logits(model) - expected).abs().max() < 1e-4
    with cured(model, order, "clamp+log-length", SETTING):
        assert (logits(model) - expected).abs().max() > 1e-3
    for cure in ("none", "window", "interpolation-in-range"):
        with pytest.raises(HeadwayError, match="24 positions and cannot run at 48 tokens; with interpolation, clamp"):
            cured(model, order, cure, SETTING).__enter__()


def test_the_sham_of_interpolation_changes_only_pairs_that_turned_in_training() -> None:
    model = make("Llama")
    (module,) = [each for each in model.modules() if find_rotations(each)]
    before = module.inv_freq.clone()
    with cured(model, find_order(model), "interpolation-in-range", SETTING):
        turned = 2 * math.pi / before <= TRAINED
        assert torch.equal(module.inv_freq, torch.where(turned, before / FACTOR, before))
    assert turned.tolist() == [True, False, False, False]


def test_a_scaled_model_keeps_its_scaling_under_a_cure() -> None:
    llama3 = {"factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
    for scaling in (llama3 | {"rope_type": "llama3"}, {"rope_type": "linear", "factor": 2.0}):
        model = make("Llama", rope_parameters={"rope_theta": 1e4, **scaling})
        order, before = find_order(model), model.model.rotary_emb.inv_freq.clone()
        with cured(model, order, "interpolation", SETTING):
            assert torch.allclose(model.model.rotary_emb.inv_freq, before / FACTOR)
        with cured(model, order, "ntk", SETTING):
            powers = FACTOR ** (-torch.arange(4) * 2 / 6)
            assert torch.allclose(model.model.rotary_emb.inv_freq, before * powers)
        with cured(model, order, "yarn", SETTING):
            assert math.isclose(model.model.rotary_emb.attention_scaling, 0.1 * math.log(FACTOR) + 1)
    assert "'factor': 6.0" in config_lines(model, order, "interpolation", SETTING)
    assert "headway.cured(model, 'ntk', trained=16, length=48)" in config_lines(model, order, "ntk", SETTING)


def test_the_temperature_is_the_mean_of_the_factors() -> None:
    expected = sum(max(1.0, math.log(place + 1) / math.log(TRAINED)) for place in range(LENGTH)) / LENGTH
    for count in (5, LENGTH):
        assert torch.allclose(factors("temperature", SETTING, count), torch.full((count,), expected).double())
    assert math.isclose(float(factors("log-length", SETTING, LENGTH).mean()), expected)


def test_other_lines_run_in_python() -> None:
    model = make("GPT-2", n_positions=64)
    order = find_order(model)
    with cured(model, order, "clamp+window", SETTING):
        expected = logits(model)
    lines = config_lines(model, order, "clamp+window", SETTING).replace("...", "found = logits(model)")
    ran = {"model": model, "logits": logits}
    exec(lines, ran)
    assert torch.equal(ran["found"], expected)  # pyright: ignore[reportArgumentType]
    assert config_lines(model, order, "none", SETTING) == ""


def test_what_cannot_be_cured_is_refused_in_one_sentence() -> None:
    llama, order = make("Llama"), find_order(make("Llama"))
    with pytest.raises(HeadwayError, match="unknown cure 'yam'; did you mean 'yarn'"):
        cured(llama, order, "yam", SETTING).__enter__()
    with pytest.raises(HeadwayError, match="ntk and yarn both change the model's order"):
        cured(llama, order, "ntk+yarn", SETTING).__enter__()
    pair = make("GPT-NeoX", rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25})
    for cure in ("ntk", "dynamic-ntk"):
        with (
            pytest.raises(
                HeadwayError, match=f"{cure} needs more than 2 rotated numbers a head, and this model rotates 2"
            ),
            cured(pair, find_order(pair), cure, SETTING),
        ):
            logits(pair)
    for name in ("Llama", "BLOOM"):
        model = make(name)
        with torch.no_grad(), headway.cured(model, "log-length", trained=16, length=48):
            cache = model(input_ids=tokens(), use_cache=True).past_key_values
            with pytest.raises(HeadwayError, match="1 queries for 49 keys; run the model with use_cache=False"):
                model(input_ids=tokens(1), past_key_values=cache)


def test_a_cure_that_does_not_reach_every_attention_raises() -> None:
    model = make("Llama")
    layer: Any = model.model.layers[0].self_attn
    with (
        cured(model, find_order(model), "log-length", SETTING),
        replace_forward(layer, lambda hidden_states, **_: (hidden_states, None)),
        pytest.raises(HeadwayError, match="log-length did not reach the scores of 1 attention modules"),
    ):
        logits(model)


def test_other_models_are_not_changed_meanwhile() -> None:
    model, bystander = make("Llama"), make("Llama")
    before = logits(bystander)
    with cured(model, find_order(model), "log-length", SETTING):
        bystander.set_attn_implementation("headway_sdpa")
        assert torch.equal(logits(bystander), before)


def test_cures_of_models_without_order() -> None:
    assert cures_for(TokenOrder("none", (), None, None, None, 2)) == ("none", "log-length", "window")
