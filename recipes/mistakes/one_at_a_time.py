"""Every head is ablated alone, those that cost less than 1% are counted, and the count is called "prunable".

Looked right: each of them can be removed. They back each other up, so they cannot all be removed.
"""

from dataclasses import replace

from lab import adder_subject, exact, heads_of, logits_without, sums, trained_adder

from headway import Subject


def build() -> Subject:
    model, problems = trained_adder(layers=3, steps=400), sums(2000, 2_000_000)
    predicted = {head: logits_without(model, problems, (head,)).argmax(-1) for head in heads_of(model)}
    whole = exact(logits_without(model, problems, ()).argmax(-1), problems)
    costs = {head: whole - exact(tokens, problems) for head, tokens in predicted.items()}
    return replace(
        adder_subject(model), claimed=tuple(head for head, cost in costs.items() if cost <= 0.01), claimed_on=20_000
    )
