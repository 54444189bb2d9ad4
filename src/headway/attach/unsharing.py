"""Gives each pass of a model's shared layers weights of its own, so that one pass can lose heads that another keeps.

ALBERT runs few groups of layers many times; the same model with as many groups as layers computes the same, and is
still plain `transformers`.
"""

import copy
from collections.abc import Collection
from typing import Any

from headway.attach.intervention import Attached
from headway.errors import HeadwayError
from headway.models import Head

GROUPS = "albert_layer_groups"


def unshare(attached: Attached, heads: Collection[Head]) -> tuple[Any, dict[Head, str]]:
    """Returns a copy of the model, and for each head the path of its output projection there. Weights are shared no
    longer where the heads are not the same in every turn of their module."""
    model: Any = attached.model
    paths = {head: attached.projections[head.site].path for head in heads}
    if all(_same_in_every_turn(attached, head, heads) for head in heads):
        return copy.deepcopy(model), paths
    config: Any = copy.deepcopy(getattr(model, "config", None))
    layers, groups = getattr(config, "num_hidden_layers", None), getattr(config, "num_hidden_groups", None)
    if not layers or not groups or layers % groups or not all(f"{GROUPS}." in path for path in paths.values()):
        shared = next(str(head) for head in heads if not _same_in_every_turn(attached, head, heads))
        raise HeadwayError(
            f"{type(model).__name__} uses the weights of {shared} in several layers, so it cannot be saved without "
            "that head in one of them; name the head in all of them"
        )
    config.num_hidden_groups = layers
    passes = layers // groups
    weights = {}
    for name, weight in model.state_dict().items():
        before, found, after = name.partition(f"{GROUPS}.")
        group, _, rest = after.partition(".")
        for turn in range(passes if found else 1):
            weights[f"{before}{found}{int(group) * passes + turn}.{rest}" if found else name] = weight.clone()
    apart = type(model)(config)
    apart.load_state_dict(weights)
    return apart.to(model.device, model.dtype).eval(), {
        head: _path_in_turn(path, attached.turns.get(head.site, 0), passes) for head, path in paths.items()
    }


def _path_in_turn(path: str, turn: int, passes: int) -> str:
    before, _, after = path.partition(f"{GROUPS}.")
    group, _, rest = after.partition(".")
    return f"{before}{GROUPS}.{int(group) * passes + turn}.{rest}"


def _same_in_every_turn(attached: Attached, head: Head, heads: Collection[Head]) -> bool:
    """Returns whether all turns of a head's module lose this head."""
    owner = attached.owners[head.site]
    turns = [site for site in attached.turns if attached.owners[site] == owner]
    return all(Head(site, head.number) in heads for site in turns)
