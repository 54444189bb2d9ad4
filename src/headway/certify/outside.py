"""What a place sees beyond its neighbours, where attention masks nothing but its bias falls with distance.

The content of a score takes finitely many values, and the bias falls by a least amount with every step beyond a
neighbour: so the weights of all other keys add up to at most a geometric series, at any length. In float32 a key whose
score is 110 below another weighs exactly 0, so a bounded number of keys counts in any sum (docs/certificates.md).
"""

import copy
import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from headway.certify.locality import NotLocal
from headway.positions import Relative

NEAR = 2.0**-16  # relative error of the bias of a neighbour in float32: exp, log and power err by 32 ulps each
FAR = 2.0**-10  # of any bias, and of what rounding does to a score: so much less it falls
VANISHED = 110  # float32 has no number above 0 for exp(−110)
SEEN = 8.0  # a neighbour whose bias is at most so much below the strongest is part of the neighbourhood
TRIED = tuple(2**power for power in range(1, 63))  # distances at which the fall of the bias is tried
MOST_KEYS = 10_000  # that can weigh anything in float32


@dataclass(frozen=True)
class Outside:
    """The keys outside a neighbourhood, for each head."""

    log_mass: Tensor  # head: ln Σ e^bias over all of them, at most; −∞ where there are none
    top: Tensor  # head: the largest bias of one of them
    keys: int  # how many keys at most weigh more than 0 in float32, inside and outside

    def of(self, heads: list[int]) -> "Outside":
        """Returns what these heads have outside."""
        return Outside(self.log_mass[heads], self.top[heads], self.keys)


@dataclass(frozen=True)
class Fading:
    """The bias of an encoding that falls with distance, in float64: known at neighbours, bounded beyond."""

    bias: Float[Tensor, "head three"]  # one step behind, the place itself, one step ahead
    fall: Float[Tensor, "two head"]  # at least, with every step beyond a neighbour

    @property
    def neighbours(self) -> tuple[int, int]:
        """How many steps behind and ahead belong to the neighbourhood: the rest is bounded, not enumerated."""
        behind, _, ahead = (self.bias.amax(1)[:, None] - self.bias <= SEEN).any(0).tolist()
        return (int(behind), int(ahead)) if behind or ahead else (1, 0)

    def keys(self, spread: float) -> int:
        """Returns how many keys at most share a sum with one that counts, if scores without bias differ by at most
        `spread`. A key counts whose score is at most 110 below the highest. What is added to it, in any order and in
        any blocks, weighs exactly 0 beside it unless its own score is at most 110 below that."""
        lead = float((self.bias.amax(1) - self.bias[:, 1]).max())
        steps = 2 * (VANISHED + spread + lead + 1) * (1 + 4 * FAR) / float(self.fall.min())
        if not steps < MOST_KEYS / 2 - 3:
            raise NotLocal(f"its bias falls by {float(self.fall.min()):.2g} with a step: too many keys count in a sum")
        return 2 * (math.ceil(steps) + 2) + 1

    def distance(self, spread: float) -> int:
        """Returns a distance from which on every key weighs exactly 0 in float32."""
        return (self.keys(spread) - 1) // 2  # twice as far as needed

    def outside(self, behind: int, ahead: int, before: bool, after: bool, keys: int) -> Outside:
        """Returns what lies outside a neighbourhood of so many steps, if any tokens are before it or after it."""
        fall, parts, tops = self.fall * (1 - FAR), [], []
        for there, seen, at, side in ((before, behind, 0, 0), (after, ahead, 2, 1)):
            if there:
                near = self.bias[:, at] * (1 - FAR)  # no bias is above 0
                beyond = near - fall[side]  # two steps away; the series from there on
                first = beyond if seen else near
                parts.append(first - (-(-fall[side]).expm1()).log())
                tops.append(first)
        none = torch.full_like(self.bias[:, 0], -torch.inf)
        return Outside(torch.stack([none, *parts]).logsumexp(0), torch.stack([none, *tops]).amax(0), keys)


@torch.no_grad()
def read_fading(positions: Relative, device: torch.device | str = "cpu") -> Fading:
    """Returns what is known of an encoding's bias; rejects one that is not known to fall."""
    exact = copy.deepcopy(positions).double()
    fall, name = exact.fall(), type(positions).__name__
    if isinstance(fall, str):
        raise NotLocal(f"{name} masks no key, and {fall[0].lower()}{fall[1:]}")
    fall = fall.to(device).double()
    bias = exact.of_distance(torch.arange(-1, 2, device=device)).double()
    if not bool((fall > 0).all()):
        side, head = (fall <= 0).nonzero()[0].tolist()
        where = f"{('behind', 'ahead')[side]} in head {head}"
        raise NotLocal(f"{name} masks no key, and its bias does not fall by a least amount with every step {where}")
    if not bool(((bias <= 0) | (bias == -torch.inf)).all()) or not bool(bias[:, 1].isfinite().all()):
        raise NotLocal("the bias of a neighbour is above 0, or not a number")
    found = Fading(bias, fall)
    _try_far(positions, found)
    return found


def _try_far(positions: Relative, fading: Fading) -> None:
    """Rejects a bias that is larger far away than its encoding says."""
    steps = torch.tensor(TRIED, device=fading.bias.device)
    for at, side, sign in ((0, 0, -1), (2, 1, 1)):
        most = fading.bias[:, at, None] * (1 - FAR) - fading.fall[side, :, None] * (1 - FAR) * (steps - 1)
        found = positions.of_distance(sign * steps).double()
        fits = (found <= most) & ((found > -torch.inf) | (most == -torch.inf))  # not NaN, and without overflow
        if not bool(fits.all()):
            far = int(steps[~fits.all(0)][0])
            raise NotLocal(f"the bias at the distance {sign * far:,} overflows or is larger than its slope allows")
