"""Computes attention maps: where each head looks, for one problem, on average over many, and by kind of problem.

Rows are queries, columns are keys; a map is as large as the problem, without padding. Plain numbers, for `maps.json`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from headway.errors import HeadwayError
from headway.models import Head, Site, Trace
from headway.subjects.ragged import PADDING
from headway.subjects.subject import Subject
from headway.tasks import Problems

LEAST = 20  # problems of a kind, below which it gets no average


def maps_of(subject: Subject, problem: Problems) -> dict[str, Any]:
    """Returns the maps of one problem, with its tokens as labels."""
    if len(problem) != 1:
        raise HeadwayError(f"maps are of one problem, and {len(problem)} were given; pass one row")
    source, maps = _spell(subject, problem.source[0]), _average(subject, problem)
    if not subject.runner.varied_lengths:
        return _label(maps, source, subject.spelled(_decoder_input(subject, problem)))
    written = subject.spelled(problem.answer[0].tolist()[:-1])
    return _label(maps, source, ["›", *written], source + written)


def _spell(subject: Subject, tokens: Tensor) -> list[str]:
    return subject.spelled([token for token in tokens.tolist() if token != PADDING])


def worked_examples(subject: Subject, problems: Problems, sets: Mapping[str, Sequence[Head]]) -> list[dict[str, Any]]:
    """Returns problems with their maps and answers, for pages without a model: with all heads open, and with each of
    `sets` closed. Every token is the likeliest given the right tokens before it."""
    answers = {name: _answers(subject, problems, heads) for name, heads in {"": (), **sets}.items()}
    return [
        {
            "read": _spell(subject, problems.source[row]),
            "wanted": _spell(subject, problems.answer[row]),
            "answers": {name: answer[row] for name, answer in answers.items()},
            **maps_of(subject, problems[row : row + 1]),
        }
        for row in range(len(problems))
    ]


def maps_of_several(subject: Subject, problems: Problems, heads: Sequence[Head]) -> dict[str, Any]:
    """Returns the maps of some heads on several problems, for a figure that compares them problem by problem."""
    with torch.no_grad():
        answers = subject.runner.run(problems).argmax(-1)
    found = [
        {
            "read": _spell(subject, problems.source[row]),
            "wanted": _spell_scored(subject, problems, row, problems.answer[row]),
            "said": _spell_scored(subject, problems, row, answers[row]),
            "maps": _select_heads(maps_of(subject, problems[row : row + 1]), heads),
        }
        for row in range(len(problems))
    ]
    return {"heads": [str(head) for head in heads], "problems": found}


def _select_heads(content: dict[str, Any], heads: Sequence[Head]) -> list[dict[str, Any]]:
    """Selects the maps of some heads from those of a problem; heads whose maps cannot be read are left out."""
    by_site = {maps["site"]: maps for maps in content["maps"]}
    own = [(head, by_site[str(head.site)]) for head in heads if str(head.site) in by_site]
    axes = ("queries", "keys")
    return [
        {"head": str(head), **{axis: maps[axis] for axis in axes}, "weights": maps["heads"][head.number]}
        for head, maps in own
    ]


def spread_over(values: Tensor | None, rows: int, count: int) -> list[int]:
    """Chooses rows, as many of each value as of any other where possible, in the order of the values; the first ones
    where there are no values."""
    if values is None:
        return list(range(min(rows, count)))
    groups = [(values == value).nonzero()[:, 0].tolist() for value in values.unique().tolist()]
    chosen = set[int]()
    for place in range(rows):
        for group in groups:
            if place < len(group) and len(chosen) < count:
                chosen.add(group[place])
    return [row for group in groups for row in group if row in chosen]


def _spell_scored(subject: Subject, problems: Problems, row: int, tokens: Tensor) -> list[str]:
    """Spells the tokens of an answer that count."""
    scored = problems.scored
    return _spell(subject, tokens if scored is None else tokens[scored[row]])


@torch.no_grad()
def _answers(subject: Subject, problems: Problems, closed: Sequence[Head]) -> list[dict[str, Any]]:
    """Returns the answer to each problem, and the probability of each of its tokens."""
    gates = subject.runner.close_heads(closed) if closed else None
    chances, answers = subject.runner.run(problems, gates).softmax(-1).max(-1)
    return [
        {"said": subject.spelled(tokens), "chances": [round(chance, 4) for chance in sure]}
        for tokens, sure in zip(answers.tolist(), chances.tolist(), strict=True)
    ]


def average_maps(subject: Subject, problems: Problems) -> dict[str, Any]:
    """Returns the mean map of every head, with positions as labels; and the same for each kind of problem."""
    source = [str(place) for place in range(problems.source.shape[1])]
    read = [str(place) for place in range(len(_decoder_input(subject, problems[:1])))]
    content = {"examples": len(problems), "all": _label(_average(subject, problems), source, read), "strata": {}}
    for name, values in subject.strata(problems).items():
        for value in values.unique().tolist():
            own = problems[(values == value).nonzero()[:, 0]]
            if len(own) >= LEAST:
                maps = _label(_average(subject, own), source, read)
                content["strata"][f"{name}={value}"] = {"examples": len(own), **maps}
    return content


def _decoder_input(subject: Subject, problem: Problems) -> list[int]:
    """Returns the tokens that a decoder reads: the start and all but the last of the answer."""
    return [] if subject.start is None else [subject.start, *problem.answer[0].tolist()[:-1]]


@torch.no_grad()
def _average(subject: Subject, problems: Problems) -> dict[Site, Tensor]:
    totals: dict[Site, Tensor] = {}
    for batch in subject.runner.batches(problems):
        trace = Trace()
        subject.runner.run(batch, trace=trace)
        for site, attention in trace.maps.items():
            totals[site] = attention.double().sum(0) + totals.get(site, 0)  # head query key
    return {site: total / len(problems) for site, total in totals.items()}


def _label(
    maps: dict[Site, Tensor], source: list[str], read: list[str], both: list[str] | None = None
) -> dict[str, Any]:
    """Adds tokens to the maps; with `both`, the length of an axis says which: the source, the decoder's, or both."""
    content, encoded = [], any(site.stack == "encoder" for site in maps)
    for site, attention in maps.items():
        own = source if site.stack == "encoder" else read if encoded else source + read
        queries, keys = own, own if site.kind == "self" else source
        if both is not None or len(queries) != attention.shape[1] or len(keys) != attention.shape[2]:
            known = {len(each): each for each in (both or [], read, source)}
            queries, keys = (known.get(size) or [str(n) for n in range(size)] for size in attention.shape[1:])
        weights = [[[round(weight, 5) for weight in row] for row in head] for head in attention.tolist()]
        content.append({"site": str(site), "queries": queries, "keys": keys, "heads": weights})
    return {"maps": content}
