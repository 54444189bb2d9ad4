"""Attaches to any nn.Module, so that its heads can be gated.

`nn.MultiheadAttention` is found automatically, and so are `nn.Transformer` and its layers. Hand-written attention must
be named: `Site("layers.0.attention", output="linear_out", heads=4)`, or all of them at once by a pattern,
`Site("*.linear_out", heads=4)`; `candidates` suggests sites.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor, nn

from headway.attach.intervention import Attached, Hook, Projection, blocks_of, check_ready
from headway.attach.multihead import multihead_hook
from headway.attach.narrowing import narrow_hook
from headway.attach.projections import candidates, child, map_hook, module_at, projection_hook, projection_of
from headway.attach.proofs import prove
from headway.errors import HeadwayError
from headway.models.sites import Site
from headway.subjects.subject import Maps


def attach_module(
    model: nn.Module,
    sites: Site | str | Iterable[Site | str] | None = None,
    *,
    call: Callable[[], Any] | None = None,
    logits_of: Callable[[Any], Tensor] | None = None,
    maps: Maps | None = None,
) -> Attached:
    """Attaches to these sites of a model, or to every nn.MultiheadAttention in it.

    Given `call`, which runs the model once, the sites are sorted in the order they fire, and every intervention is
    proved (proofs.py). `maps` reads the map of a hand-written attention.
    """
    check_ready(model)
    chosen = _find_multihead(model) if sites is None else _expand_patterns(model, sites)
    hooks: list[Hook] = []
    projections: dict[Site, Projection] = {}
    ways: dict[Site, str] = {}
    for site in chosen:
        owner = module_at(model, site.stack)
        if isinstance(owner, nn.MultiheadAttention) and not site.output:
            path = f"{site}.out_proj".lstrip(".")
            projections[site] = Projection(owner.out_proj, path, owner.num_heads, owner.head_dim)
            hooks.append(multihead_hook(site, owner))
            ways[site] = "MultiheadAttention"
            continue
        projections[site] = projection_of(model, site, owner)
        hooks.append(projection_hook(site, projections[site]))
        if projections[site].module is not owner:
            hooks.append(narrow_hook(site, owner, projections[site]))
            hooks.append(map_hook(site, owner, projections[site].heads, maps))
        ways[site] = "projection"
    taken = Counter(id(projection.module) for projection in projections.values())
    for site, projection in projections.items():
        if taken[id(projection.module)] > 1:
            raise HeadwayError(
                f"{projection.path} is the output projection of two sites, one of them {site}; name it once"
            )
    owners = {site: site.stack for site in chosen}
    attached = Attached(model, tuple(projections), projections, blocks_of(model, owners), owners, hooks, ways)
    return attached if call is None else replace(attached, sites=prove(attached, call, logits_of).sites)


def _find_multihead(model: nn.Module) -> list[Site]:
    found = [
        Site(path, kind="cross" if path.endswith("multihead_attn") else "self", heads=module.num_heads)
        for path, module in model.named_modules()
        if isinstance(module, nn.MultiheadAttention)
    ]
    if not found:
        likely = ", ".join(
            f"Site({s.stack!r}, output={s.output!r}, heads={s.heads or '…'})" for s in candidates(model)[:3]
        )
        raise HeadwayError(
            f"{type(model).__name__} has no nn.MultiheadAttention; name its sites, such as "
            + (likely or "Site('layers.0.attention', output='linear_out', heads=4)")
        )
    return found


def _expand_patterns(model: nn.Module, sites: Site | str | Iterable[Site | str]) -> list[Site]:
    listed: list[Site] = []
    for each in [sites] if isinstance(sites, Site | str) else sites:
        site = Site(each) if isinstance(each, str) else each
        listed += _match_pattern(model, site) if any(sign in site.stack for sign in "*?[") else [site]
    return list(dict.fromkeys(listed))


def _match_pattern(model: nn.Module, pattern: Site) -> list[Site]:
    """Returns a site for each output projection that a pattern matches, named after the module that contains it."""
    paths = [path for path, _ in model.named_modules() if path and fnmatchcase(path, pattern.stack)]
    if pattern.output:
        paths = [path for path in paths if child(model, f"{path}.{pattern.output}") is not None]
    if not paths:
        raise HeadwayError(f"no module of {type(model).__name__} matches {pattern.stack!r}; see its named_modules()")
    parents = Counter(path.rpartition(".")[0] for path in paths)
    found = []
    for path in paths:
        parent, _, name = path.rpartition(".")
        named = pattern.output or isinstance(module_at(model, path), nn.MultiheadAttention)
        if not named and isinstance(module_at(model, parent), nn.MultiheadAttention):
            found.append(replace(pattern, stack=parent))
        elif not named and parent and parents[parent] == 1:
            found.append(replace(pattern, stack=parent, output=name))
        else:
            found.append(replace(pattern, stack=path))
    return found
