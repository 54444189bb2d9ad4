"""What a certificate assumes, checked as far as it can be checked, and written down.

The proof is about a model made of known parts, whose encoding gives every place the same. Of Headway's own encodings
that is known by construction. A user's may override only what gives the bias of a distance; it is tried at small, large
and random indices, and the certificate says that it was tried.
"""

import copy
import hashlib
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

import headway
from headway.certify.averages import TANH_ULPS
from headway.certify.locality import SAME, Certifiable, NotLocal
from headway.certify.rounding import EXP_ULPS, RSQRT_ULPS
from headway.machine import environment
from headway.models import MODELS, Attention
from headway.models.attention import _Constant
from headway.models.averaging import Averages, AveragingBlock, Bend, DigitLine, DigitTable, NearestDigit
from headway.models.blocks import Block, FeedForward, Tokens
from headway.models.linear import Linear
from headway.positions import INDICES, POSITIONS, Positions, Relative
from headway.positions.one_each import OneEach

PARTS = {*MODELS.values(), Attention, Block, FeedForward, Tokens, _Constant}
PARTS |= {Averages, AveragingBlock, Bend, DigitLine, DigitTable, NearestDigit}
PARTS |= {nn.LayerNorm, Linear, nn.Linear, nn.ModuleList, nn.ModuleDict, nn.Identity}
MAY_OVERRIDE = {"of_distance", "offsets", "unseen", "untrained"}  # of a user's encoding, beside names of its own
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
SHIFTS = (1, 2, 3, 10, 1_000, 1_001, 100_000, 2**20, 2**31, 2**40)
RANDOM_SHIFTS = 16
ROOMS = ("certify", "models", "positions", "kernels")

ULPS = {"averaging": {"tanh": TANH_ULPS}}
"""of functions by kind of model, where they are not those of softmax and norms"""
ALGORITHMS = (
    "sums and products in any order, fused or not, in batches, blocks and threads of any size, cached or not",
    "norms by two passes, or by means and squares merged along any tree (Welford)",
    "softmax minus the maximum, at once or online, by exp or exp2, with exp(0) = 1; masked keys weigh exactly 0",
    "results below 2^-126 rounded gradually or set to 0",
)
FADING = (
    "exp of less than −110 is 0; adding 0, or multiplying by it, rounds nothing; partial sums stay finite",
    "log, power and sigmoid as exact as exp; at most 2^62 places",
)  # what is assumed beside, where no key is masked but the bias falls with distance
OUTSIDE = ("TF32, bfloat16 and float16", "variances as E[x²] − E[x]²", "more than 2^63 places")


@dataclass(frozen=True)
class Assumptions:
    """The conditions under which a certificate holds."""

    dtype: str  # of weights, results and sums; wider sums are covered
    ulps: dict[str, int]
    algorithms: tuple[str, ...]
    outside: tuple[str, ...]
    positions: str  # known or tried
    versions: dict[str, str]
    code_sha256: str  # of the modules that were part of the proof

    def to_json(self) -> dict[str, Any]:
        content = asdict(self)
        return {**content, "algorithms": [*self.algorithms], "outside": [*self.outside]}


def write_assumptions(model: Certifiable) -> Assumptions:
    """Returns what a certificate of this model assumes."""
    here = environment(next(model.parameters()).device)
    versions = {name: str(here[name]) for name in ("headway", "torch", "python")}
    ulps = ULPS.get(model.config.kind, {"exp": EXP_ULPS, "rsqrt": RSQRT_ULPS})
    known = "known" if is_known(model.positions) else "tried"
    algorithms = ALGORITHMS if model.positions.offsets is not None else ALGORITHMS + FADING
    return Assumptions("float32", ulps, algorithms, OUTSIDE, known, versions, hash_code())


def is_known(positions: Positions) -> bool:
    """Returns whether the encoding is one of Headway's, whose invariance is known by construction."""
    return type(positions) in (*POSITIONS.values(), OneEach)


def hash_code() -> str:
    """Returns the hash of the modules that compute a certificate."""
    root, digest = Path(headway.__file__).parent, hashlib.sha256()
    for path in sorted(path for room in ROOMS for path in (root / room).rglob("*.py")):
        digest.update(f"{path.relative_to(root).as_posix()}\n".encode() + path.read_bytes())
    return digest.hexdigest()


def check_parts(model: Certifiable) -> None:
    """Rejects a model with a part, a hook, a buffer or an attribute that a model of its config does not have."""
    if any(getattr(torch_module, f"_global{kind}") for kind in HOOKS):
        raise NotLocal("a hook is registered for all modules; remove it")
    if type(model.index) not in INDICES.values():
        raise NotLocal(f"its index is a {type(model.index).__name__}, which is not one of Headway's")
    _check_attributes("the index", model.index)
    for name, part in model.named_modules():
        where = name or "the model"
        if type(part) not in PARTS and not f"{name}.".startswith("positions."):
            raise NotLocal(f"{where} is a {type(part).__name__}, not a part of Headway's models")
        if any(getattr(part, kind) for kind in HOOKS):
            raise NotLocal(f"{where} has a hook, which may change what it computes; remove it")
        if buffers := [*part._buffers]:
            raise NotLocal(f"{where} has the buffer {buffers[0]}, whose effect at other places is not known")
        _check_attributes(where, part)
    if not is_known(model.positions):
        _check_encoding(model.positions)


def _check_attributes(where: str, part: object) -> None:
    """Rejects methods that are replaced on the instance."""
    held = vars(part)
    names = {*held, *held.get("_parameters", ()), *held.get("_modules", ())}
    for name in sorted(names):
        if callable(getattr(type(part), name, None)):
            raise NotLocal(f"{where} has its own {name} in place of that of {type(part).__name__}")


def _check_encoding(positions: Positions) -> None:
    """Rejects a user's encoding that overrides more than the bias of a distance, or holds other tensors."""
    name = type(positions).__name__
    own = [kind for kind in type(positions).__mro__ if not issubclass(Relative, kind)]
    for method in sorted({method for kind in own for method in vars(kind)}):
        special = method in ("__getattribute__", "__getattr__", "__call__", "__setattr__", "__class__")
        known = hasattr(Relative, method) and callable(getattr(Relative, method)) and not method.startswith("__")
        if special or (known and method not in MAY_OVERRIDE):
            raise NotLocal(
                f"{name} overrides {method}, which may depend on the place; only a bias of distances can be tried"
            )
    for part in positions.modules():
        if held := [key for key, value in vars(part).items() if isinstance(value, Tensor)]:
            raise NotLocal(f"{name} holds the tensor {held[0]}, which is not a parameter")


@torch.no_grad()
def check_shifts(model: Certifiable, source: Tensor, answer: Tensor) -> None:
    """Rejects a model that gives other outputs when all indices are shifted, at small, large and random shifts."""
    exact = copy.deepcopy(model).double()
    stack = exact.stack(exact.stacks[-1], source, exact.shift_right(answer))
    plain = stack.run()
    dice = torch.Generator().manual_seed(0)
    drawn = (2 ** (40 * torch.rand(RANDOM_SHIFTS, generator=dice, dtype=torch.float64))).long().tolist()
    for shift in (*SHIFTS, *drawn):
        query, key = (index + shift for index in (stack.order.query_index, stack.order.key_index))
        x = stack.embed()
        moved = exact.positions.embed(x, query.expand(len(x), -1)) - x
        shifted = replace(stack, order=replace(stack.order, query_index=query, key_index=key)).run()
        if not bool((moved == 0).all()) or not float((shifted - plain).abs().max()) <= SAME:
            raise NotLocal(f"its outputs change when all indices are shifted by {shift:,}")


def check_repeats(outputs: Tensor, alone: Tensor, behind: int, ahead: int) -> None:
    """Rejects outputs, place × number, of a problem that repeats itself, if they differ from the outputs of the same
    neighbourhoods in short problems, one for each place of the period."""
    place = torch.arange(behind + 2, len(outputs) - ahead - 1, device=outputs.device)
    apart = (outputs[place] - alone[place % len(alone)]).abs().amax(1)
    if not float(apart.max()) <= SAME:
        first = int(place[~(apart <= SAME)][0])
        where = f"its output at place {first:,} of {len(outputs):,}"
        raise NotLocal(f"{where} differs from that of the same neighbourhood in a short problem")
