"""What a long sweep has measured so far, on disk: killed anywhere, it goes on behind the last piece of problems."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headway.errors import HeadwayError
from headway.heads.variants import Outcome, Variants
from headway.models.sites import Closed
from headway.runs import disk
from headway.runs.seal import KEY, is_sealed, sealed
from headway.tasks import Problems


class Ledger:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.weights = ""
        """their hash, once it was made"""

    def outcome(self, variants: Variants, problems: Problems, closed: Sequence[Closed]) -> Outcome:
        """What became of a piece of the problems: read where it was measured before, else measured and written."""
        key = self._key(variants, problems, closed)
        known = self._read()
        if key in known:
            right, loss = known[key]
            device = problems.source.device
            return Outcome(torch.tensor(right, device=device), torch.tensor(loss, device=device))
        found = variants(problems, closed)
        disk.write_json(self.path, sealed({**known, key: [found.right.tolist(), found.loss.tolist()]}))
        return found

    def _read(self) -> dict[str, Any]:
        try:
            content = disk.read_json(self.path)
        except HeadwayError:
            return {}  # not there, or half a file of another program's: measured again
        return {key: value for key, value in content.items() if key != KEY} if is_sealed(content) else {}

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
