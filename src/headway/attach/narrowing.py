"""Narrows heads of attention modules that take a mask as an argument, and proves that narrowing works.

Such a module first runs with a mask that hides from each head what it shall not see; what its heads output then goes to
the gate, and the module runs as usual. Modules that dispatch (dispatch.py) and nn.MultiheadAttention (multihead.py)
need no such detour. Where no mask can be narrowed, the site is refused.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from headway.attach.intervention import Attached, Hook, Intervention, Projection, replace_forward
from headway.attach.proofs import difference_of, limit_of
from headway.errors import HeadwayError
from headway.machine import full_precision_matmul
from headway.models.narrowed import narrow_mask
from headway.models.sites import Gate, Gates, Narrowing, Site
from headway.subjects.subject import Reader
from headway.tasks import Problems

MASKS = ("attention_mask", "attn_mask", "mask")
"""names of the argument with the mask of an attention module"""
ADDED = -1e3
"""numbers below it in a mask hide a key when they are added to its score"""


def narrow_hook(site: Site, owner: nn.Module, projection: Projection) -> Hook:
    """Returns the hook that narrows the heads of a module gated at its projection."""

    @contextmanager
    def hook(intervention: Intervention) -> Iterator[None]:
        forward = owner.forward

        def run(*inputs: Any, **named: object) -> Any:
            gate = intervention.gates.get(site)
            if gate is not None and gate.narrowing is not None and site not in intervention.narrowed:
                call = _narrowed_call(site, forward, gate.narrowing, projection.heads, inputs, named)
                _capture(intervention, site, call)
            return forward(*inputs, **named)

        with replace_forward(owner, run):
            yield

    return hook


def _capture(intervention: Intervention, site: Site, call: Callable[[], Any]) -> None:
    """Runs a module so that the intervention gets what its heads output."""
    intervention.narrowed[site] = None
    try:
        call()
    except HeadwayError:
        raise
    except Exception as error:  # a user's module may raise anything on a mask it did not expect
        cause = f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
        raise HeadwayError(f"{site} cannot be narrowed: it failed with a mask for each head ({cause})") from error
    finally:
        if intervention.narrowed[site] is None:
            del intervention.narrowed[site]


def _narrowed_call(
    site: Site,
    forward: Callable[..., Any],
    narrowing: Narrowing,
    heads: int,
    inputs: tuple[Any, ...],
    named: Mapping[str, object],
) -> Callable[[], Any]:
    """Returns the call of a module with its mask narrowed; raises where it is called without a mask."""
    try:
        given = inspect.signature(forward).bind(*inputs, **named)
    except (TypeError, ValueError) as error:
        raise HeadwayError(f"{site} cannot be narrowed: the arguments of its module are not known") from error
    name = next((name for name in MASKS if isinstance(given.arguments.get(name), Tensor)), None)
    mask = given.arguments[name] if name is not None else None
    if name is None or mask is None or mask.ndim not in (2, 4) or mask.shape[-2] != mask.shape[-1]:
        raise HeadwayError(
            f"{site} cannot be narrowed: its module is not given a mask of queries and keys that could hide more; "
            "leave its heads out"
        )
    given.arguments[name] = _narrow(site, mask if mask.ndim == 4 else mask[None, None], narrowing, heads)
    return partial(forward, *given.args, **given.kwargs)


def _narrow(site: Site, mask: Tensor, narrowing: Narrowing, heads: int) -> Tensor:
    """Narrows a mask of any convention: numbers to add, or two values of which the one that the first query has for the
    last key, which comes later, hides."""
    tokens = mask.shape[-1]
    if mask.is_floating_point() and float(mask.min()) < ADDED:
        return narrow_mask(narrowing, mask, tokens)
    hides = mask[:1, :1, :1, -1:]
    if tokens == 1 or not bool((mask != hides).any()):
        raise HeadwayError(f"{site} cannot be narrowed: its mask hides no later token; leave its heads out")
    left = narrow_mask(narrowing, mask != hides, tokens)
    shape = (*left.shape[:1], heads, tokens, tokens)
    seen = mask[mask != hides][0]
    return torch.where(left.expand(shape), seen, hides)


@torch.no_grad()
@full_precision_matmul()
def prove_narrowing(attached: Attached, reader: Reader, problems: Problems, sites: tuple[Site, ...]) -> None:
    """Proves on a few problems of one length that narrowing works: open gates change no bit; a window longer than the
    sequence changes nothing; and where every head sees only its own token, no earlier token changes an answer, if none
    does without heads (a pooled answer reads every token, and layers besides attention may mix tokens)."""
    width, device = attached.width, problems.source.device
    tokens = problems.source.shape[1] + problems.answer.shape[1]

    def logits(some: Problems, closed: float, recent: int | None) -> Tensor:
        gates: Gates = {
            site: Gate(
                torch.full((1, width[site]), 1 - closed, device=device),
                narrowing=None if recent is None else Narrowing(0, torch.full((1, width[site]), recent, device=device)),
            )
            for site in sites
        }
        return attached.run(partial(reader, attached.model, some.source, some.answer), gates)

    plain = attached.run(partial(reader, attached.model, problems.source, problems.answer))
    name = type(attached.model).__name__
    if not torch.equal(logits(problems, 0.0, 1).nan_to_num(), plain.nan_to_num()):
        raise HeadwayError(f"open gates of narrowed heads change the logits of {name}; they must change no bit")
    wide = logits(problems, 1.0, tokens + 1)
    if difference_of(wide, plain) > limit_of(plain):
        raise HeadwayError(
            f"a window longer than the sequence changes the logits of {name} by {difference_of(wide, plain):.2g}; it "
            "must change nothing: its heads cannot be narrowed"
        )
    if set(sites) != set(attached.sites) or any(site.stack == "encoder" for site in sites):
        return  # the others still see everything; an encoder's answer is not at the last token
    earlier = problems.source.roll(1, 0) if len(problems) > 1 else problems.source.roll(1, 1)
    other = torch.cat((earlier[:, :-1], problems.source[:, -1:]), dim=1)
    own, none = logits(problems, 1.0, 1), logits(problems, 1.0, None)
    changed = Problems(other, problems.answer)
    moved = difference_of(logits(changed, 1.0, 1), own)
    if moved > limit_of(own) and difference_of(logits(changed, 1.0, None), none) <= limit_of(none):
        raise HeadwayError(
            f"where every head of {name} sees only its own token, earlier tokens still move the logits by {moved:.2g}: "
            "its attention does not heed a narrower mask, so its heads cannot be narrowed"
        )
