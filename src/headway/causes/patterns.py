"""Where each head looks, as scores with a stated meaning. A pattern is a description, not a cause (patching.py tests
causes).

A score is the weight a head puts on certain keys, the mean over its queries:
diagonal      the query's own place              previous, next   the place before, behind it
vertical      one and the same key, the one it looks at most (found in half of the problems)
operator      the operator
aligned       an answer digit looks at the two digits of its column; in the encoder a digit at its partner's
carry source  the digits of the column below
same token    an earlier token like the query's own
induction     the token behind such a one: what followed it before
Its baseline is what the score would be on average if each query's weights were shuffled among the keys it may see. The
label is the score that gains most over its baseline, among those that gain at least 0.3 of what there was to gain;
where none does, "none clear". It is stable in the share of problems in which, taken one by one, it wins as well.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from headway.models import Gates, Head, Site, Trace
from headway.subjects.subject import Subject
from headway.tasks import Problems

CLEAR = 0.3
NONE = "none clear"
NO = -9  # the column of what is no digit


@dataclass(frozen=True)
class Pattern:
    head: Head
    label: str
    stable: float
    """share of the problems in which the same label wins"""
    key: int
    """the place that is looked at most"""
    scores: dict[str, tuple[float, float]]
    """each score and its shuffled baseline"""
    entropy: float
    """of the weights: 0 one key, 1 all keys alike"""
    distance: float | None
    """mean distance of query and key, where they are of one sequence"""

    def to_json(self) -> dict[str, Any]:
        return {
            "label": self.label,
            "stable": self.stable,
            "key": self.key,
            "scores": {name: {"score": score, "shuffled": base} for name, (score, base) in self.scores.items()},
            "entropy": self.entropy,
            "distance": self.distance,
        }


@torch.no_grad()
def find_patterns(subject: Subject, problems: Problems, gates: Gates | None = None) -> list[Pattern]:
    """The pattern of every head, over these problems; in a model of a user's own over those of the commonest length."""
    maps: dict[Site, list[Tensor]] = {}
    problems = subject.runner.one_length(problems, with_maps=True)
    for batch in subject.runner.batches(problems):
        trace = Trace()
        subject.runner.run(batch, gates, trace)
        for site, attention in trace.maps.items():
            maps.setdefault(site, []).append(attention)
    found = []
    for site in subject.sites:
        if site in maps:  # some attention does not tell where it looks
            found += _of_site(subject, site, torch.cat(maps[site]), problems)
    return [pattern for pattern in found if pattern.head in set(subject.heads)]


def _of_site(
    subject: Subject, site: Site, maps: Float[Tensor, "row head query key"], problems: Problems | None = None
) -> list[Pattern]:
    queries, keys = maps.shape[-2:]
    causal = site.kind == "self" and bool((maps.sum((0, 1)).triu(1 + keys - queries) == 0).all()) and queries > 1
    seen = torch.ones(queries, keys, dtype=torch.bool, device=maps.device)
    seen = seen.tril(keys - queries) if causal else seen
    half = maps[: max(1, len(maps) // 2)]
    top = half.mean((0, 2)).argmax(-1)  # head: the key that is looked at most, in half of the problems
    targets = targets_of(subject, site, queries, keys, maps.device)
    table: dict[str, tuple[Tensor, Tensor]] = {
        name: _score(maps, mask & seen, seen) for name, mask in targets.items() if bool((mask & seen).any())
    }
    repeated = {} if problems is None else repeats(subject, site, problems, queries, keys)
    for name, mask in repeated.items():
        if bool(mask.any()):
            score, base = _score(maps, mask[:, None] & seen, seen)
            table[name] = score, base.mean(0)
    vertical = torch.nn.functional.one_hot(top, keys).bool()[:, None].expand(-1, queries, -1)  # head query key
    table["vertical"] = _score(maps, vertical & seen, seen)
    names = list(table)
    gains = torch.stack([score - base for score, base in table.values()])  # name row head
    room = torch.stack([(1 - base).clamp(min=1e-9).expand(len(top)) for _, base in table.values()])  # name head
    best, each = _label(gains.mean(1), room), _label(gains, room[:, None])
    share = (maps.clamp(min=1e-12).log() * maps).sum(-1).neg()  # row head query
    choice = seen.sum(-1) > 1  # queries that have a choice
    entropy = (share / seen.sum(-1).clamp(min=2).log())[..., choice].mean((0, 2))
    place = torch.arange(keys, device=maps.device)
    gap = (place[None] - torch.arange(queries, device=maps.device)[:, None]).abs().float()
    distance = (maps * gap).sum(-1).mean((0, 2)) if site.kind == "self" else None
    return [
        Pattern(
            Head(site, head),
            NONE if best[head] < 0 else names[int(best[head])],
            float((each[:, head] == best[head]).double().mean()),
            int(top[head]),
            {
                n: (float(score.mean(0)[head]), float(base.expand(len(best))[head]))
                for n, (score, base) in table.items()
            },
            float(entropy[head]),
            None if distance is None else float(distance[head]),
        )
        for head in range(maps.shape[1])
    ]


def _label(gains: Tensor, room: Tensor) -> Tensor:
    """The number of the score that gains most, of those that are clear; −1 where none is."""
    clear = gains >= CLEAR * room
    return gains.where(clear, -1.0).argmax(0).where(clear.any(0), -1)


def _score(maps: Tensor, mask: Bool[Tensor, "*head query key"], seen: Tensor) -> tuple[Tensor, Tensor]:
    """The weight on the marked keys, of each row and head, and its baseline; over queries that have such a key."""
    asked = mask.any(-1)  # *head query
    count = asked.sum(-1).clamp(min=1)
    weight = (maps * mask).sum(-1)  # row head query
    score = (weight * asked).sum(-1) / count
    base = (mask.sum(-1) / seen.sum(-1)).mul(asked).sum(-1) / count
    return score, base


def repeats(
    subject: Subject, site: Site, problems: Problems, queries: int, keys: int
) -> dict[str, Bool[Tensor, "row query key"]]:
    """The keys that a score is about where tokens repeat, which differ from problem to problem."""
    if not subject.runner.varied_lengths or site.kind != "self" or problems.source.is_floating_point():
        return {}
    source = problems.source
    read = source if keys == source.shape[1] else torch.cat((source, problems.answer[:, :-1]), dim=1)
    if queries != keys or read.shape[1] != keys:
        return {}
    place = torch.arange(keys, device=read.device)
    same = (read[:, :, None] == read[:, None]) & (place[None, :, None] > place)  # row query key: an earlier one
    behind = torch.zeros_like(same)
    behind[:, :, 1:] = same[:, :, :-1]
    return {"same token": same, "induction": behind}


def targets_of(
    subject: Subject, site: Site, queries: int, keys: int, device: torch.device
) -> dict[str, Bool[Tensor, "query key"]]:
    """The keys that each score is about."""
    query, key = torch.arange(queries, device=device)[:, None], torch.arange(keys, device=device)[None]
    found: dict[str, Tensor] = {}
    layout = subject.layout
    if layout is not None:
        source, answer = [NO if column is None else column for column in layout.source], list(layout.answer)
        encoded = any(each.kind == "cross" for each in subject.runner.width)
        asked = source if site.stack == "encoder" else answer if encoded else source + answer
        read = source if encoded else source + [NO] * len(answer)
        if site.stack == "encoder" or site.kind == "cross" or not encoded:
            own, other = torch.tensor(asked, device=device)[:, None], torch.tensor(read, device=device)[None]
            reads = query < len(source) if not encoded else torch.full_like(query, site.stack == "encoder").bool()
            found["operator"] = (key == layout.operator).expand(queries, keys)
            found["aligned"] = (own >= 0) & (other == own) & ~(reads & (query == key))
            found["carry source"] = (own >= 0) & (other == own - 1)
    if site.kind == "self":
        found |= {"diagonal": key == query, "previous": key == query - 1, "next": key == query + 1}
    return found
