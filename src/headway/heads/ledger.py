"""What a long sweep has measured so far, on disk: killed anywhere, it goes on behind the last piece of problems."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from headway.heads.variants import Outcome, Variants
from headway.models.sites import Closed
from headway.runs.seal import read_sealed, write_sealed
from headway.tasks import Problems


class Ledger:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.weights = ""
        """their hash, once it was made"""

    def outcome(self, variants: Variants, problems: Problems, closed: Sequence[Closed]) -> Outcome:
        """What became of a piece of the problems: read where it was measured before, else measured and written."""
        key, known = self._key(variants, problems, closed), read_sealed(self.path)
        if key in known:
            return Outcome(*(torch.tensor(each, device=problems.source.device) for each in known[key]))
        found = variants(problems, closed)
        write_sealed(self.path, {**known, key: [found.right.tolist(), found.loss.tolist()]})
        return found

    def _key(self, variants: Variants, problems: Problems, closed: Sequence[Closed]) -> str:
        """Everything that the numbers depend on, the weights among it."""
        digest = hashlib.sha256(json.dumps([variants.kind, variants.seed, variants.subject.name]).encode())
        metric = variants.subject.measured_by
        digest.update(("exact" if metric is None else metric.name).encode())
        digest.update("|".join(",".join(sorted(map(str, parts))) for parts in closed).encode())
        self.weights = self.weights or _hashed(variants.subject.model.state_dict().values())
        scored = [] if problems.scored is None else [problems.scored]
        digest.update((self.weights + _hashed([problems.source, problems.answer, *scored])).encode())
        return digest.hexdigest()


def _hashed(tensors: Iterable[Tensor]) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
