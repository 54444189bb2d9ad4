"""A certificate for sums between columns of zeros: every context is that of an inner column, so there is one kind.

That needs four things, which are read from the tokens, the indices and the masks that the model really applies: the
operands have a column of zeros at either end; the answer begins with a given 0 in the lowest of them; answer tokens
carry the index of their own column; and no window of an answer token shows anything but digits. Then the first answer
digit is that of a column above 0 + 0 = 0, and the last one that of a column of zeros.
"""

from __future__ import annotations

from typing import cast

import torch
from jaxtyping import Bool
from torch import Tensor

from headway.certify.averages import AverageBound
from headway.certify.columns import LONG, ColumnPattern, check_digit, check_everywhere, contexts, count_contexts
from headway.certify.leads import Leads
from headway.certify.locality import FAR, NotLocal, measure_rounding
from headway.certify.verdict import Verdict, Watch
from headway.models import MODELS, AveragingDecoder, Model
from headway.models.averaging import HEADS, ZERO
from headway.positions.one_each import OneEach
from headway.tasks import Problems, Task
from headway.tasks.problems import Columns

INNER = ColumnPattern((("a", -1), ("a", 0), ("answer", -1), ("b", -1), ("b", 0)))
DIGITS, COLUMN = 4, 2  # of the sums in which contexts are placed, and the answer digit in question
EXAMINED = (1, 2, 3, 5, 8, LONG)  # digits of the sums whose masks are read
BEHIND, AHEAD = 1, 0  # columns, as an answer digit sees them


def check_windows(model: Model) -> AveragingDecoder:
    """Rejects a model whose heads do not each see exactly one distance."""
    if type(model) is not MODELS["averaging"]:
        raise NotLocal(f"{type(model).__name__} is not the model whose windows are known: averaging")
    model = cast(AveragingDecoder, model)
    positions = model.positions
    if type(positions) is not OneEach:
        raise NotLocal(f"its windows are those of {type(positions).__name__}, not of {OneEach.__name__}")
    for far in FAR:
        distance = torch.arange(-far, far + 1)
        seen = positions.of_distance(distance).cpu()
        for head in range(HEADS):
            expected = torch.where(distance == 1 - head, 0.0, -torch.inf)
            if len(seen) != HEADS or not torch.equal(seen[head], expected):
                raise NotLocal(f"head {head} does not see the distance {1 - head} and no other")
    return model


@torch.no_grad()
def check_frame(model: AveragingDecoder, task: Task, columns: Columns) -> None:
    """Rejects a model in which the borders of a sum are not like its inner columns."""
    device = next(model.parameters()).device
    for digits in EXAMINED:
        problems = task.testing(5, 64, length=digits, device=device)
        source, written = problems.source, model.shift_right(problems.answer)
        tokens, order = model.framed(source, written), model.stack("decoder", source, written).order
        a, _, b = columns.operands(problems)
        width, start = digits + 2, 2 * digits + 5
        framed = tokens[:, :width], tokens[:, width + 1 : start]
        for operand, inner in zip(framed, (a, b), strict=True):
            zeros = (operand[:, [0, -1]] == ZERO).all() if operand.shape[1] == width else operand.new_zeros(())
            if not bool(zeros) or not torch.equal(operand[:, 1:-1], inner):
                raise NotLocal("the operands are not between a column of zeros at either end")
        if tokens.shape[1] != start + digits + 1 or not bool((tokens[:, start] == ZERO).all()):
            raise NotLocal("the answer does not begin with a given 0")
        falling = torch.arange(width, 0, -1, device=device)
        for index in (order.query_index, order.key_index):
            if not bool((index[:, :width] == falling).all() and (index[:, width + 1 : start] == falling).all()):
                raise NotLocal("the operands' digits are not numbered by their columns")
            if not bool((index[:, start:] == falling.flip(0)[: digits + 1]).all()):
                raise NotLocal("answer tokens do not carry their own column")
        _check_sight(model, tokens, order.bias, digits, columns.base)
        if not torch.equal(model.stack("decoder", source, written).embed(), model.tokens(tokens)):
            raise NotLocal("the stream does not begin with the points of the digits")


def _check_sight(model: AveragingDecoder, tokens: Tensor, bias: Tensor | None, digits: int, base: int) -> None:
    """Rejects windows that show an answer token anything but the digits of one column."""
    assert bias is not None
    width, start, heads = digits + 2, 2 * digits + 5, model.blocks[0].attentions["self"].head_numbers  # pyright: ignore
    bias = bias[:, heads, start:]  # row head answer key
    seen = bias != -torch.inf
    if not bool((bias[seen] == 0).all()):
        raise NotLocal("a head weighs the keys in its window differently")
    if bool((seen & (tokens >= base)[:, None, None]).any()):
        raise NotLocal("a window of an answer token shows a token that is not a digit")
    for number, head in enumerate(heads):
        for column in range(digits + 1):
            at = column + 1 - head  # the framed column that the head sees, 0 the lowest
            expected = [width - 1 - at, start - 1 - at, *([start + column] if head else [])]
            for row in seen[:, number, column]:
                if row.nonzero()[:, 0].tolist() != expected:
                    raise NotLocal(f"head {head} shows answer digit {column} other tokens than those of one column")


@torch.no_grad()
def certify_framed(model: AveragingDecoder, task: Task, columns: Columns, watch: Watch | None) -> Verdict:
    """Checks every content of the two columns that an answer digit depends on."""
    if columns.base != model.tokens.digits:
        raise NotLocal(f"the model has points for {model.tokens.digits} digits, and the base is {columns.base}")
    device, total = next(model.parameters()).device, count_contexts(INNER, columns.base)
    check_frame(model, task, columns)
    problems = task.testing(3, 64, device=device)
    (a, plus, b), zeros = columns.operands(problems), problems.source.new_zeros(64, LONG)
    longer = columns.problems(torch.cat((zeros, a), dim=1), plus, torch.cat((zeros, b), dim=1))  # the same columns
    verdict = Verdict(rounding=measure_rounding(_read, model, problems, longer, 16, slice(0, task.lengths[1])))
    for digits, column in ((1, 0), (1, 1), (LONG, 0), (LONG, LONG // 2), (LONG, LONG)):
        check_digit(model, task, INNER, digits, column)
    check_everywhere(model, task, columns, BEHIND, AHEAD)
    bound = AverageBound(model)
    for problems in contexts(columns, INNER, DIGITS, COLUMN):
        _judge(verdict, model, bound, task, problems.to(device), columns)
        if watch is not None:
            watch(verdict.contexts, total)
    return verdict


def find_leads(bound: AverageBound, problems: Problems, columns: Columns, column: int) -> Leads:
    """Returns the leads of the right digit in this column of sums, which is not their first."""
    (a, _, b), answer = columns.operands(problems), problems.answer
    pairs = [[operand[:, -1 - at] for operand in (a, b)] for at in (column, column - 1)]
    return bound(pairs[0], pairs[1], answer[:, column - 1], answer[:, column])


def _judge(
    verdict: Verdict, model: AveragingDecoder, bound: AverageBound, task: Task, problems: Problems, columns: Columns
) -> Bool[Tensor, " row"]:
    logits, right = _read(model, problems)[:, COLUMN].double(), problems.answer[:, COLUMN, None]
    measured = (logits.gather(1, right) - logits).scatter(1, right, torch.inf).cpu()
    leads = Leads(*(each.cpu() for each in find_leads(bound, problems, columns, COLUMN)))
    shown = problems.source.cpu(), problems.answer.cpu()

    def show(row: int) -> str:
        return task.show(*(each[row].tolist() for each in shown))

    verdict.compare(measured, leads, lambda row: f"{INNER}: {show(row)}")
    return verdict.add(str(INNER), measured.amin(1), (leads.value - leads.bound).amin(1), show)


def _read(model: AveragingDecoder, problems: Problems) -> Tensor:
    return model(problems.source, problems.answer)
