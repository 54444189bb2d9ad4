"""Draws what the smallest adder computes in each of its 20,000 contexts.

python recipes/draw_smallest_adder.py [docs/smallest-adder]
"""

import sys
from pathlib import Path

import torch

from headway.certify.columns import contexts
from headway.certify.framed import COLUMN, DIGITS, INNER
from headway.models import AveragingDecoder
from headway.models.sites import Site, Trace
from headway.report.figures import panels, save_figure
from headway.subjects.own import open_one
from headway.tasks import Problems
from headway.tasks.problems import Columns


@torch.no_grad()
def read_streams() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns the sum of every context, the stream before the unit and after it, in the unit of the digits; equal
    ones once."""
    run = open_one("pretrained:smallest-adder")
    model, local = run.model, run.task.local
    assert isinstance(model, AveragingDecoder)
    assert isinstance(local, Columns)
    problems, trace = Problems.join([*contexts(local, INNER, DIGITS, COLUMN)]), Trace()
    model(problems.source, problems.answer, trace=trace)
    place, feed = model.tokens_before_answer(problems.source) + COLUMN, Site("decoder", 0, "feed")
    before = trace.streams[feed][:, place, 0]
    after = before + trace.outputs[feed][:, place, 0, 0]
    (a, _, b), written = local.operands(problems), problems.answer[:, COLUMN - 1]
    pairs = [a[:, -1 - at] + b[:, -1 - at] for at in (COLUMN, COLUMN - 1)]
    total = pairs[0] + (pairs[1] - written) / 10
    shift = model.tokens.points()[0]
    found = torch.stack((total, model.nearest.scale * before - shift, model.nearest.scale * after - shift))
    total, before, after = found.unique(dim=1)
    return total, before, after


def main(out: Path) -> None:
    total, before, after = read_streams()
    away = float((after - (total - 1e-4).ceil().remainder(10)).abs().max())  # the sum is at most 0.1 above the total
    print(f"the stream ends at most {away:.3f} from the right digit")
    figure, (left, right) = panels(2, height=3.9, width=5.6)
    for axes, stream, title in ((left, before, "after attention"), (right, after, "after the unit")):
        axes.scatter(total, stream, s=5, linewidths=0, color="#0072B2")
        axes.set_xlabel("a + b + (a′ + b′ − c′) / 10")
        axes.set_title(f"The stream {title}, in digits")
        axes.set_xticks(range(0, 20, 2))
        axes.grid(alpha=0.3)
    right.set_yticks(range(10))
    right.set_ylabel("the nearest digit is written")
    print(*save_figure(figure, out))


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/smallest-adder"))
