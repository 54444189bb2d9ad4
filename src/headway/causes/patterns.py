"""Scores where each head looks, and finds the upstream heads that make it look there.

A pattern is a description, not a cause (patching.py tests causes). An upstream head is a cause: it is ablated, and the
patterns of the later heads are measured again; a head whose score falls depends on it.

A score is the weight a head puts on certain keys, the mean over its queries:
diagonal      the query's own place              previous, next   the place before, after it
vertical      one and the same key, the one it looks at most (found in half of the problems)
operator      the operator
aligned       an answer digit looks at the two digits of its column; in the encoder a digit at its partner's
carry source  the digits of the column below
same token    an earlier token like the query's own
induction     the token after such a one: what followed it before
The baseline is the mean score if the weights of each query were shuffled among the keys that it can see. The
label is the score that gains most over its baseline, among those that gain at least 0.3 of what there is to gain;
where none does, "none clear". Its stability is the share of single problems in which it wins as well.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from headway.models import Gates, Head, Site, Trace
from headway.progress import Watch
from headway.subjects.subject import Subject
from headway.tasks import Problems
from headway.tasks.problems import NOT_A_DIGIT, Layout

CLEAR = 0.3
NONE = "none clear"
LOST = 0.5  # the share of a head's score that must be lost for another head to be called upstream of it


@dataclass(frozen=True)
class Pattern:
    head: Head
    label: str
    stable: float
    """the share of problems in which the same label wins"""
    key: int
    """the key with the largest mean weight"""
    scores: dict[str, tuple[float, float]]
    """each score and its shuffled baseline"""
    entropy: float
    """the entropy of the weights: 0 for a single key, 1 for uniform attention"""
    distance: float | None
    """the mean distance of query and key, in self-attention"""

    def to_json(self) -> dict[str, Any]:
        scores = {name: {"score": score, "shuffled": base} for name, (score, base) in self.scores.items()}
        return {name: value for name, value in vars(self).items() if name != "head"} | {"scores": scores}


@torch.no_grad()
def find_patterns(subject: Subject, problems: Problems, gates: Gates | None = None) -> list[Pattern]:
    """Finds the pattern of every head over these problems; for a user's model, over those of the commonest length."""
    maps: dict[Site, list[Tensor]] = {}
    problems = subject.runner.select_one_length(problems, with_maps=True)
    for batch in subject.runner.batches(problems):
        trace = Trace()
        subject.runner.run(batch, gates, trace)
        for site, attention in trace.maps.items():
            maps.setdefault(site, []).append(attention)
    traced = [site for site in subject.sites if site in maps]  # some attention modules do not expose their maps
    found = [each for site in traced for each in site_patterns(subject, site, torch.cat(maps[site]), problems)]
    return [pattern for pattern in found if pattern.head in set(subject.heads)]


def site_patterns(
    subject: Subject, site: Site, maps: Float[Tensor, "row head query key"], problems: Problems | None = None
) -> list[Pattern]:
    queries, keys = maps.shape[-2:]
    causal = site.kind == "self" and bool((maps.sum((0, 1)).triu(1 + keys - queries) == 0).all()) and queries > 1
    seen = torch.ones(queries, keys, dtype=torch.bool, device=maps.device).tril(keys - queries if causal else keys)
    half = maps[: max(1, len(maps) // 2)]
    top = half.mean((0, 2)).argmax(-1)  # head: the key with the largest weight, in half of the problems
    targets = targets_of(subject, site, queries, keys, maps.device, problems)
    table: dict[str, tuple[Tensor, Tensor]] = {}
    for name, mask in {**targets, **repeat_targets(subject, site, problems, queries, keys)}.items():
        if not bool((mask & seen).any()):
            continue
        if mask.ndim == 2:
            table[name] = _score(maps, mask & seen, seen)
        else:  # the keys differ from problem to problem
            score, base = _score(maps, mask[:, None] & seen, seen)
            table[name] = score, base.mean(0)
    vertical = torch.nn.functional.one_hot(top, keys).bool()[:, None].expand(-1, queries, -1)  # head query key
    table["vertical"] = _score(maps, vertical & seen, seen)
    gains = torch.stack([score - base for score, base in table.values()])  # name row head
    room = torch.stack([(1 - base).clamp(min=1e-9).expand(len(top)) for _, base in table.values()])  # name head
    best, each = _label(gains.mean(1), room), _label(gains, room[:, None])
    share = (maps.clamp(min=1e-12).log() * maps).sum(-1).neg()  # row head query
    count = seen.sum(-1)
    entropy = (share / count.clamp(min=2).log())[..., count > 1].mean((0, 2))  # of queries that have a choice
    gap = (torch.arange(keys, device=maps.device) - torch.arange(queries, device=maps.device)[:, None]).abs().float()
    distance = (maps * gap).sum(-1).mean((0, 2)) if site.kind == "self" else None
    means = {name: (score.mean(0), base.expand(len(best))) for name, (score, base) in table.items()}
    return [
        Pattern(
            Head(site, head),
            NONE if best[head] < 0 else list(table)[int(best[head])],
            float((each[:, head] == best[head]).double().mean()),
            int(top[head]),
            {name: (float(score[head]), float(base[head])) for name, (score, base) in means.items()},
            float(entropy[head]),
            None if distance is None else float(distance[head]),
        )
        for head in range(maps.shape[1])
    ]


def _label(gains: Tensor, room: Tensor) -> Tensor:
    """Returns the number of the score that gains most, of those that are clear; −1 where none is."""
    clear = gains >= CLEAR * room
    return gains.where(clear, -1.0).argmax(0).where(clear.any(0), -1)


def _score(maps: Tensor, mask: Bool[Tensor, "*head query key"], seen: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the weight on the marked keys, by row and head, and its baseline; over queries that have such a key."""
    counts = mask.any(-1)  # *head query
    count = counts.sum(-1).clamp(min=1)
    weight = (maps * mask).sum(-1)  # row head query
    return (weight * counts).sum(-1) / count, (mask.sum(-1) / seen.sum(-1)).mul(counts).sum(-1) / count


def repeat_targets(
    subject: Subject, site: Site, problems: Problems | None, queries: int, keys: int
) -> dict[str, Bool[Tensor, "row query key"]]:
    """Marks the keys of the scores about repeated tokens, which differ from problem to problem."""
    if problems is None or problems.source.is_floating_point() or not subject.runner.varied_lengths:
        return {}
    source = problems.source
    read = source if keys == source.shape[1] else torch.cat((source, problems.answer[:, :-1]), dim=1)
    if site.kind != "self" or queries != keys or read.shape[1] != keys:
        return {}
    place = torch.arange(keys, device=read.device)
    same = (read[:, :, None] == read[:, None]) & (place[None, :, None] > place)  # row query key: an earlier one
    return {"same token": same, "induction": torch.nn.functional.pad(same[:, :, :-1], (1, 0))}


def targets_of(
    subject: Subject, site: Site, queries: int, keys: int, device: torch.device, problems: Problems | None = None
) -> dict[str, Bool[Tensor, "*row query key"]]:
    """Marks the keys that each score is about; by problem where the columns of answers differ."""
    query, key = torch.arange(queries, device=device)[:, None], torch.arange(keys, device=device)[None]
    found: dict[str, Tensor] = {}
    if (layout := subject.layout) is not None:
        source, answer = _columns(layout, problems, device)  # *row place
        encoded = any(each.kind == "cross" for each in subject.runner.width)
        both = torch.cat((source, answer), dim=-1)
        own = source if site.stack == "encoder" else answer if encoded else both
        other = (source if encoded else torch.cat((source, torch.full_like(answer, NOT_A_DIGIT)), dim=-1))[..., None, :]
        if site.stack == "encoder" or site.kind == "cross" or not encoded:
            own = own[..., None]
            reads = query < source.shape[-1] if not encoded else torch.full_like(query, site.stack == "encoder").bool()
            found["operator"] = (key == layout.operator).expand(queries, keys)
            found["aligned"] = (own >= 0) & (other == own) & ~(reads & (query == key))
            found["carry source"] = (own >= 0) & (other == own - 1)
    if site.kind == "self":
        found |= {"diagonal": key == query, "previous": key == query - 1, "next": key == query + 1}
    return found


def _columns(layout: Layout, problems: Problems | None, device: torch.device) -> tuple[Tensor, Tensor]:
    """Returns the columns of the source and of the answer; by problem where those of answers differ."""
    fixed = ([NOT_A_DIGIT if column is None else column for column in each] for each in (layout.source, layout.answer))
    source, answer = (torch.tensor(columns, device=device) for columns in fixed)
    if layout.columns_of is None or problems is None:
        return source, answer
    answer = layout.columns_of(problems).to(device)
    return source.expand(len(answer), -1), answer


@dataclass(frozen=True)
class Upstream:
    """A head with its pattern, and the score that remains when each of the upstream heads is ablated."""

    head: Head
    pattern: str
    score: float
    without: dict[Head, float]

    @property
    def causes(self) -> list[Head]:
        """The upstream heads without which more than half of the score is lost."""
        return [head for head, left in self.without.items() if left < (1 - LOST) * self.score]

    def to_json(self) -> dict[str, Any]:
        return {
            "head": str(self.head),
            "pattern": self.pattern,
            "score": self.score,
            "fed_by": [str(head) for head in self.causes],
            "without": {str(head): left for head, left in self.without.items()},
        }

    def finding(self) -> str:
        causes = ", ".join(f"{head} ({self.without[head]:.2f} without it)" for head in self.causes)
        others = [left for head, left in self.without.items() if head not in self.causes]
        rest = f"; without any other head at least {min(others):.2f}" if others else ""
        return f"{self.head} puts {self.score:.2f} of its weight on {self.pattern} because of {causes}{rest}."


def find_upstream(subject: Subject, problems: Problems, patterns: Sequence[Pattern], watch: Watch) -> list[Upstream]:
    """Finds the upstream heads that each clear pattern depends on, by ablating every head of an earlier site."""
    order = {site: place for place, site in enumerate(subject.sites)}
    clear = [pattern for pattern in patterns if pattern.label != NONE]
    left: dict[Head, dict[Head, float]] = {pattern.head: {} for pattern in clear}
    for number, closed in enumerate(subject.heads, start=1):
        later = {pattern.head: pattern for pattern in clear if order[pattern.head.site] > order[closed.site]}
        found = find_patterns(subject, problems, subject.runner.close_heads([closed])) if later else []
        for each in found:
            if each.head in later:
                left[each.head][closed] = each.scores[later[each.head].label][0]
        watch(number, len(subject.heads))
    tested = [Upstream(p.head, p.label, p.scores[p.label][0], left[p.head]) for p in clear if left[p.head]]
    return [each for each in tested if each.causes]
