"""Measures rounding in every context of a certified model, and compares it with the bound of the certificate.

    python recipes/measure_rounding.py pretrained:certified-adder [--every 100]

All contexts run in batches of 1 to 8, in turn (with --every N one thousand out of N, the rest in batches of 250), with
one thread and with two: sums in one pass and decoded token by token with a cache, sequences in one pass, alone and
inside a long sequence, where attention gathers its keys. The truth is the model in float64. Prints the largest error of
a lead beside the largest bound, and the largest share of its own bound that an error reached.
"""

import argparse
import copy
from collections.abc import Iterator

import torch
from torch import Tensor

from headway.certify.columns import contexts, find_leads, patterns
from headway.certify.leads import Leads, RoundingBound, bias_of
from headway.certify.verdict import ROWS
from headway.models import Classifier, Decoder
from headway.models.attention import PassInputs
from headway.subjects.own import open_one
from headway.tasks import Problems, Task
from headway.tasks.problems import Columns, Neighbours

LARGE = 250  # rows of a large batch
FOUR = range(0, ROWS, LARGE)
Ways = dict[str, tuple[Tensor, Leads]]  # by the way it was computed: leads in float32, and in float64 with their bounds


def leads_of(logits: Tensor, right: Tensor) -> Tensor:
    """Returns the leads of the right answer; that over itself is infinite."""
    return (logits.gather(1, right[:, None]) - logits).scatter(1, right[:, None], torch.inf)


def in_turn(rows: int) -> Iterator[slice]:
    """Yields batches of 1, 2, … 8, 1, 2, … rows."""
    start, size = 0, 1
    while start < rows:
        yield slice(start, start + size)
        start, size = start + size, size % 8 + 1


def decode(model: Decoder, problems: Problems, column: int) -> Tensor:
    """Returns the logits of a column, decoded token by token with a cache."""
    source, answer = problems.source, problems.answer
    token, inputs, logits = source.new_full((len(source), 1), model.config.start or 0), PassInputs(cache={}), None
    for place in range(column + 1):
        logits = model.stack("decoder", source, token, answer.shape[1], place).run(inputs)
        token = answer[:, place : place + 1]
    assert logits is not None
    return logits[:, -1]


def sums(model: Decoder, task: Task, columns: Columns, every: int) -> Iterator[Ways]:
    exact, bound = copy.deepcopy(model).double(), RoundingBound(model, model.unembed, model.segments)
    for kind, (digits, column) in patterns(model, task).items():
        for number, problems in enumerate(contexts(columns, kind, digits, column)):
            right = problems.answer[:, column]
            truth = leads_of(exact(problems.source, problems.answer)[:, column], right)
            leads = Leads(truth, find_leads(model, bound, problems, column).bound)
            batches = in_turn(len(problems)) if number % every == 0 else [slice(at, at + LARGE) for at in FOUR]
            parts = [problems[rows] for rows in batches]
            passed = torch.cat([model(each.source, each.answer)[:, column].double() for each in parts])
            decoded = torch.cat([decode(model, each, column).double() for each in parts])
            yield {"one pass": (leads_of(passed, right), leads), "cached": (leads_of(decoded, right), leads)}


def sequences(model: Classifier, values: int) -> Iterator[Ways]:
    exact, bound = copy.deepcopy(model).double(), RoundingBound(model, model.head, rivals=False)
    pairs = torch.cartesian_prod(torch.arange(values), torch.arange(values))
    truth = exact.violations(pairs)[:, 1, None]
    leads = Leads(truth, bound(pairs, bias_of(model.stack("encoder", pairs[:1]).order), 1).bound)
    passed = torch.cat([model.violations(pairs[rows])[:, 1] for rows in in_turn(len(pairs))])
    long = torch.cat([model.violations(pairs[rows].repeat(1, 40))[:, 1] for rows in in_turn(len(pairs))])
    yield {"one pass": (passed.double()[:, None], leads), "in a long sequence": (long.double()[:, None], leads)}


@torch.no_grad()
def measure(subject: str, threads: int, every: int = 1) -> dict[str, tuple[float, float, float]]:
    """Returns for each way the largest error, the largest bound, and the largest share of a bound that was reached."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    run, found = open_one(subject), {}
    model, local = run.model.eval(), run.task.local
    if isinstance(model, Decoder) and isinstance(local, Columns):
        every_way = sums(model, run.task, local, every)
    else:
        assert isinstance(model, Classifier)
        assert isinstance(local, Neighbours)
        every_way = sequences(model, local.values)
    for ways in every_way:
        for name, (measured, leads) in ways.items():
            off = (measured - leads.value).abs().where(leads.value.isfinite(), 0)
            now = (float(off.max()), float(leads.bound.max()), float((off / leads.bound.clamp(min=1e-30)).max()))
            found[name] = tuple(map(max, found.get(name, (0.0, 0.0, 0.0)), now))
    torch.set_num_threads(before)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures rounding in every context and compares it with the bound.")
    parser.add_argument("subject", help="a certified run, such as pretrained:certified-adder")
    parser.add_argument(
        "--every",
        type=int,
        default=1,
        help="batches of 1 to 8 for one thousand contexts out of so many thousands",
    )
    asked = parser.parse_args()
    for threads in (1, 2):
        for name, (off, bound, share) in measure(asked.subject, threads, asked.every).items():
            print(
                f"{name}, threads {threads}: {off:.3g} measured, bound {bound:.3g}; {share:.2g} of the bound of a lead"
            )


if __name__ == "__main__":
    main()
