"""Headway's encodings equal those of other libraries, where they exist."""
# pyright: reportArgumentType=false, reportCallIssue=false, reportAttributeAccessIssue=false

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from headway.positions import Shape, find_positions
from headway.positions.alibi import Alibi
from headway.positions.rope import Rope
from headway.positions.t5 import T5
from headway.positions.transformer_xl import TransformerXL

pytestmark = pytest.mark.filterwarnings("ignore")  # of the other libraries
TOKENS = 50
INDEX = torch.arange(TOKENS)[None]


@pytest.mark.parametrize(("asked", "theirs"), [
    ("rope", {}),
    ("rope+interpolation=4", {"interpolate_factor": 4.0}),
    ("rope+ntk=8", {"theta_rescale_factor": 8.0}),
])  # fmt: skip
def test_rope_equals_rotary_embedding_torch(asked: str, theirs: dict[str, float]) -> None:
    from rotary_embedding_torch import RotaryEmbedding

    torch.manual_seed(0)
    ours = find_positions(asked)(Shape(d_model=64, heads=4, trained=16))
    query, key = torch.randn(2, 3, 4, TOKENS, 16).unbind(0)
    turned = ours.rotate(query, key, INDEX, INDEX)
    other = RotaryEmbedding(dim=16, **theirs)
    for mine, plain in zip(turned, (query, key), strict=True):
        assert (mine - other.rotate_queries_or_keys(plain)).abs().max() < 1e-5


@pytest.mark.parametrize("heads", [2, 4, 6, 8, 12])
def test_alibi_equals_x_transformers(heads: int) -> None:
    from x_transformers.x_transformers import AlibiPositionalBias

    ours = Alibi(Shape(d_model=96, heads=heads, trained=16)).bias(INDEX, INDEX)
    assert (ours[0] - AlibiPositionalBias(heads=heads)(TOKENS, TOKENS)).abs().max() < 1e-5


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("distance", "buckets"), [(128, 32), (16, 16), (40, 16)])
def test_t5_equals_transformers_and_x_transformers(causal: bool, distance: int, buckets: int) -> None:
    from transformers.models.t5.modeling_t5 import T5Attention
    from x_transformers.x_transformers import RelativePositionBias

    ours = T5(Shape(64, 4, 16, causal), distance=distance, buckets=buckets)
    far = torch.arange(-300, 301)
    if causal:
        far = far[far <= 0]  # what lies ahead is hidden there
    hugging = T5Attention._relative_position_bucket(far, not causal, buckets, distance)
    assert torch.equal(ours.bucket(far), hugging)
    other = RelativePositionBias(1.0, causal, buckets, distance, heads=4)
    other.relative_attention_bias.weight.data = ours.table.data
    mine, theirs = ours.bias(INDEX, INDEX)[0], other(TOKENS, TOKENS)
    seen = INDEX[0][:, None] >= INDEX[0] if causal else torch.ones(TOKENS, TOKENS, dtype=torch.bool)
    assert (mine - theirs)[:, seen].abs().max() < 1e-6


def test_transformer_xl_equals_xlnets_attention() -> None:
    from transformers.models.xlnet.modeling_xlnet import XLNetModel, XLNetRelativeAttention

    torch.manual_seed(0)
    ours = TransformerXL(Shape(d_model=32, heads=4, trained=16))
    for parameter in (ours.u, ours.v):
        parameter.data.normal_()
    query, key, value = torch.randn(3, 2, 4, TOKENS, 8).unbind(0)
    wide_query, wide_key = ours.rotate(query, key, INDEX, INDEX)
    mine = (wide_query @ wide_key.transpose(-1, -2) * 8**-0.5).softmax(-1) @ value
    theirs = XLNetRelativeAttention(SimpleNamespace(d_model=32, n_head=4, d_head=8, layer_norm_eps=1e-5, dropout=0.0))
    theirs.r_w_bias.data, theirs.r_r_bias.data = ours.u.data, ours.v.data
    model = SimpleNamespace(d_model=32, attn_type="bi", bi_data=False, clamp_len=-1)
    model.positional_embedding = XLNetModel.positional_embedding
    waves = XLNetModel.relative_positional_encoding(model, TOKENS, TOKENS, 2)  # distance batch d_model: sines, cosines
    by_distance = torch.einsum("jbf,hdf->jbhd", waves, ours.w.flatten(2))
    turned = [tensor.permute(2, 0, 1, 3) for tensor in (query, key, value)]
    said = theirs.rel_attn_core(*turned, by_distance)
    assert (mine - said.permute(1, 2, 0, 3)).abs().max() < 1e-4


def test_sinusoids_equal_the_ones_of_transformers() -> None:
    from transformers.models.xlnet.modeling_xlnet import XLNetModel

    ours = find_positions("sinusoidal")(Shape(d_model=32, heads=4, trained=16)).embed(torch.zeros(1, TOKENS, 32), INDEX)
    inverse = 1 / torch.pow(10000, torch.arange(0, 32, 2.0) / 32)
    sines, cosines = XLNetModel.positional_embedding(INDEX[0].float(), inverse)[:, 0].chunk(2, dim=-1)
    assert (ours[0] - torch.stack((sines, cosines), dim=-1).flatten(-2)).abs().max() < 1e-4
    assert isinstance(find_positions("rope")(Shape(64, 4, 16)), Rope)
