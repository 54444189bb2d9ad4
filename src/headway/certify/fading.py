"""A certificate for a relation between neighbours in a model whose attention sees everything.

No key is masked, but the bias falls with distance (outside.py). So the pairs or triples of neighbours are enumerated as
with a window, and all other tokens are an interval: whatever they are and however many, they hold at most a share ε of
a head's attention, and move its output by at most ε of the way to the furthest value of any token.
"""

import torch
from torch import Tensor

from headway.certify.assumptions import check_shifts, is_known
from headway.certify.leads import Leads, RoundingBound
from headway.certify.locality import NotLocal, Stream
from headway.certify.neighbours import check_count, check_readout, collect_reports, judge
from headway.certify.outside import Fading, read_fading
from headway.certify.verdict import Beyond, Verdict, Watch
from headway.models import Classifier
from headway.positions import Relative
from headway.tasks import Task
from headway.tasks.problems import Neighbours

LENGTHS = (2, 3, 17, 300)  # of sequences that are compared with what was proved
ROWS = 32  # of them


class Nearby:
    """The leads of the contexts of each kind of place, alone and with anything outside them."""

    def __init__(self, model: Classifier, fading: Fading, behind: int, ahead: int) -> None:
        self.bound, self.fading = RoundingBound(model, model.head, rivals=False), fading
        self.behind, self.ahead = behind, ahead
        self.spread = self._spread()
        self.keys, self.mass, self.moved, self.share = fading.keys(self.spread), 0.0, 0.0, 0.0

    def _spread(self) -> float:
        """Returns how far two scores of a query can be apart in float32, without their bias."""
        block, reads = self.bound.blocks[0], self.bound.reads
        if reads is None:
            raise NotLocal("it has no head, so that no place sees another")
        scores, error = block.score(reads.query, reads.key)
        return float(((scores + error).amax(1) - (scores - error).amin(1)).max())

    def __call__(self, kind: str, tokens: Tensor, place: int) -> tuple[Leads, Leads]:
        before, after = kind not in ("first", "alone"), kind not in ("last", "alone")
        width = tokens.shape[1]
        steps = torch.arange(width, device=tokens.device)
        bias = self.fading.bias[:, (steps[None] - steps[:, None]).clamp(-1, 1) + 1]  # head query key
        shut, open_ = (
            self.fading.outside(self.behind, self.ahead, *there, self.keys)
            for there in ((False, False), (before, after))
        )
        alone, anywhere = (self.bound(tokens, bias, place, outside=each) for each in (shut, open_))
        self.mass = max(self.mass, self.bound.heaviest)
        self.moved = max(self.moved, float(anywhere.bound.max()))
        self.share = max(self.share, float((anywhere.bound / anywhere.value.abs()).max()))
        return alone, anywhere


def check_known(model: Stream) -> None:
    """Rejects a user's encoding: trials cannot show what a bias does at every distance."""
    if not is_known(model.positions):
        name = type(model.positions).__name__
        raise NotLocal(f"{name} masks no key, and what its bias does at every distance is known only of Headway's own")


def certify_fading(model: Classifier, task: Task, local: Neighbours, watch: Watch | None) -> Verdict:
    """Checks what a place reports in every context that it can have, whatever lies beyond it."""
    check_readout(model)
    positions = model.positions
    assert isinstance(positions, Relative)
    if len(model.blocks) != 1:
        raise NotLocal(f"it masks no key and has {len(model.blocks)} layers; with more than one nothing is bounded")
    device = next(model.parameters()).device
    fading = read_fading(positions, device)
    behind, ahead = fading.neighbours
    check_count(local, behind, ahead)
    problems = task.testing(4, 8, device=device)
    check_shifts(model, problems.source, problems.answer)
    verdict, nearby = Verdict(), Nearby(model, fading, behind, ahead)
    reports, leads = collect_reports(verdict, model, local.values, behind, ahead, nearby, watch)
    _check_long(verdict, model, local, leads, (behind, ahead))
    judge(verdict, reports, leads, local, behind, ahead)
    distance, fall = fading.distance(nearby.spread), float(fading.fall.min())
    verdict.outside = Beyond((-behind, ahead), nearby.mass, nearby.moved, nearby.share, distance, fall)
    return verdict


@torch.no_grad()
def _check_long(
    verdict: Verdict, model: Classifier, local: Neighbours, leads: dict[str, Leads], reach: tuple[int, int]
) -> None:
    """Compares what is proved of every place with the real model in sequences at random, sorted or not; notes the first
    that lies outside."""
    dice, device = torch.Generator().manual_seed(0), next(model.parameters()).device
    for length in LENGTHS:
        tokens = torch.randint(local.values, (ROWS, length), generator=dice)
        tokens = torch.cat((tokens, tokens.sort(1).values, tokens[:, :1].expand(-1, length)))
        found = model.violations(tokens.to(device)).cpu().double()
        answers = model(tokens.to(device))[:, 0].cpu().double()
        if not float((answers[:, 0] - answers[:, 1] - found.amax(1)).abs().max()) <= 1e-3:
            raise NotLocal("its answer is not the strongest violation that any place reports")
        for place in range(length):
            low, high = max(0, place - reach[0]), min(length, place + reach[1] + 1)
            kind = _kind(place, length, reach)
            context = tuple(tokens[:, low:high].T)
            off = (found[:, place] - leads[kind].value[context]).abs()
            if verdict.mismatch is None and not bool((off <= leads[kind].bound[context]).all()):
                verdict.mismatch = f"place {place} of {length} in a random sequence, {float(off.max()):.2g} apart"


def _kind(place: int, length: int, reach: tuple[int, int]) -> str:
    """Returns what kind of neighbourhood a place has: it lacks a token before or after it that others have."""
    first, last = place < reach[0], length - 1 - place < reach[1]
    return "alone" if first and last else "first" if first else "last" if last else "inside"
