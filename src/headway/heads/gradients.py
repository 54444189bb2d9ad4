"""The gradient at every head's gate, from one pass forward and one back."""

from collections.abc import Callable, Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from headway.errors import HeadwayError
from headway.models import Gate, Head
from headway.subjects.subject import Subject
from headway.tasks import Problems


def gradients_at_gates(
    subject: Subject, problems: Problems, cost: Callable[[Tensor, Problems], Tensor]
) -> Iterator[dict[Head, Float[Tensor, " row"]]]:
    """Batch by batch, for each of a subject's heads the gradient of each problem's cost, a function of the logits."""
    runner, heads = subject.runner, set(subject.heads)
    for batch in runner.batches(problems):
        passed = {
            site: torch.ones(len(batch), runner.width[site], device=subject.device, requires_grad=True)
            for site in subject.sites
        }
        with torch.enable_grad():
            value = cost(runner.run(batch, {site: Gate(each) for site, each in passed.items()}), batch).sum()
            if not value.requires_grad:
                raise HeadwayError("the metric has no gradient; leave out `screen`, or take `metric=loss`")
            gradients = torch.autograd.grad(value, list(passed.values()))
        by_site = zip(passed, gradients, strict=True)
        found = {Head(site, number): each for site, own in by_site for number, each in enumerate(own.unbind(1))}
        yield {head: each for head, each in found.items() if head in heads}
