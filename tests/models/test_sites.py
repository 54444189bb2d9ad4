"""Names of sites and heads: in Headway's models, in users' modules, and as people write them."""

from __future__ import annotations

import pytest

from headway.errors import HeadwayError
from headway.models import Head, Site, find_heads

ONE_STACK = [Head(Site("decoder", layer, "self"), number) for layer in range(12) for number in range(12)]
SITES = [Site("encoder", 1, "self"), Site("decoder", 1, "self"), Site("decoder", 1, "cross")]
TWO_STACKS = [Head(site, number) for site in SITES for number in range(4)]
BY_PATH = [Head(Site(f"layers.{layer}.attention", heads=4), number) for layer in range(2) for number in range(4)]


def test_sites_with_the_same_name_are_equal():
    site = Site("encoder_layers.0.self_attn", output="linear_out", heads=4)
    assert site == Site("encoder_layers.0.self_attn", kind="cross")
    assert hash(site) == hash(Site("encoder_layers.0.self_attn"))
    assert (str(site), site.title) == ("encoder_layers.0.self_attn", "encoder_layers.0.self_attn")
    assert Site("decoder", 1, "self") != Site("decoder", 1, "cross")
    assert Site("decoder", 1, "cross").title == "Decoder cross L1"


def test_sites_of_all_kinds_can_be_sorted_with_numbers_as_numbers():
    sites = [Site("layers.10"), Site("decoder", 0, "self"), Site("layers.9"), Site("encoder", 1, "cross"), Site("a")]
    names = [str(site) for site in sorted(sites)]
    assert names == ["a", "decoder.0.self", "encoder.1.cross", "layers.9", "layers.10"]


def test_heads_are_found_by_every_common_name():
    head = Head(Site("decoder", 9, "self"), 6)
    for name in ("L9H6", "decoder.9.self.6", "Decoder self L9 H6", (9, 6), head):
        assert find_heads(name, ONE_STACK) == [head]
        assert find_heads([name], ONE_STACK) == [head]
    assert find_heads({9: [6, 7], 10: [0]}, ONE_STACK) == find_heads(["L9H6", "L9H7", (10, 0)], ONE_STACK)
    assert find_heads("L1H2", BY_PATH) == find_heads("layers.1.attention.2", BY_PATH)
    assert Head.parse("L9H6", ONE_STACK).label == "L9H6"
    assert Head.parse("decoder.9.self.6") == head


def test_an_ambiguous_or_unknown_head_name_gives_a_one_line_error():
    with pytest.raises(
        HeadwayError, match=r"L1H2 is ambiguous: 3 heads have that name; write one of encoder\.1\.self\.2, "
    ):
        find_heads("L1H2", TWO_STACKS)
    with pytest.raises(HeadwayError, match=r"'L12H0' is not a head of this model; its heads are decoder\.0\.self\.0, "):
        find_heads({12: [0]}, ONE_STACK)
    with pytest.raises(HeadwayError, match="heads are written like"):
        Head.parse("L9H6")


def test_an_empty_request_names_no_head() -> None:
    assert find_heads((), [Head(Site("decoder", 0, "self"), 0)]) == []
