"""A decoder of a handful of numbers: each of its heads averages what its window shows, without queries and keys.

A digit is a point on a line, and the residual stream is as wide: one number. One head sees the column
that is answered, the other the column to its right with the answer digit just written. One unit bends the stream, and
the answer is the digit that is nearest to the scaled stream. What is given and not learned: what each head sees, the
column of each token, and with `points=line` that digits are evenly spaced in order. The problem is framed by columns of
zeros and the answer begins with a given 0, so that the first and the last column are like any other.
"""

from collections.abc import Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import Parameter

from headway.errors import HeadwayError
from headway.models.attention import (
    FEW_KEYS,
    Attention,
    Cache,
    HeadOutputs,
    KeyStream,
    Maps,
    Order,
    QueryStream,
)
from headway.models.blocks import Block, Streams
from headway.models.dropout import Dropout, number_of
from headway.models.linear import Linear
from headway.models.model import Model, Source, StackPass
from headway.models.sites import Gates, Site
from headway.positions import Positions, Shape
from headway.positions.one_each import OneEach
from headway.positions.positions import Stream
from headway.runs.config import ModelConfig

HEADS = 2  # one for the column that is answered, one for the column to its right
STEPS = 2_000  # places at once in decoding
ZERO = 0  # the digit of the columns around a problem, and of the answer's given beginning
FRAME = 4  # zeros around the operands


class Digits(nn.Module):
    """A point on a line for each digit. A token that is not a digit gets that of the first; no window shows it."""

    def __init__(self, digits: int) -> None:
        super().__init__()
        self.digits = digits

    def points(self) -> Float[Tensor, " digit"]:
        """Returns the points of all digits."""
        raise NotImplementedError

    def forward(self, tokens: Int[Tensor, "batch token"]) -> Stream:
        return self.points()[tokens.where(tokens < self.digits, ZERO)][..., None]


class DigitLine(Digits):
    """Digits in order at a distance of 1, the unit in which everything else is measured: one number."""

    def __init__(self, digits: int) -> None:
        super().__init__(digits)
        self.shift = Parameter(torch.randn(1))

    def points(self) -> Float[Tensor, " digit"]:
        return torch.arange(self.digits, device=self.shift.device) + self.shift


class DigitTable(Digits):
    """Digits anywhere: a number for each."""

    def __init__(self, digits: int) -> None:
        super().__init__(digits)
        self.table = Parameter(torch.randn(digits))

    def points(self) -> Float[Tensor, " digit"]:
        return self.table


class Averages(Attention):
    """Heads that average the stream at the keys in their windows; a head that sees none gives 0. The output projection
    has one number for each head."""

    def __init__(self, site: Site, d_model: int, head_numbers: list[int]) -> None:
        nn.Module.__init__(self)
        self.site, self.head_numbers, self.heads, self.dim = site, head_numbers, len(head_numbers), d_model
        if not head_numbers:
            raise HeadwayError("a model of averaging heads needs at least one of them; leave one in")
        self.out = Linear(self.heads * d_model, d_model, bias=False)
        self.place = number_of(site)

    def head_outputs(
        self,
        x: QueryStream,
        context: KeyStream,
        order: Order,
        cache: Cache | None = None,
        wants_map: bool = False,
        dropout: Dropout | None = None,
    ) -> tuple[HeadOutputs, Maps | None]:
        assert cache is None
        assert dropout is None
        if not wants_map and context.shape[1] > FEW_KEYS:
            return self._gather(context, order), None
        assert order.bias is not None
        maps = _shares(order.bias[:, self.head_numbers]).to(x.dtype).expand(len(x), -1, -1, -1)
        return torch.einsum("bhqk,bkd->bqhd", maps, context), maps if wants_map else None

    def _gather(self, context: KeyStream, order: Order) -> HeadOutputs:
        """Returns the outputs in linear time, from the visible keys alone."""
        seen, positions = order.visible_keys, order.positions
        assert isinstance(positions, OneEach)
        bias = positions.of_distance(seen.distance)[self.head_numbers].masked_fill(~seen.filled, -torch.inf)
        row = torch.arange(len(context), device=context.device)[:, None, None]
        near = context[row, seen.place]  # batch query slot d_model
        return torch.einsum("hbqs,bqsd->bqhd", _shares(bias).to(context.dtype).expand(-1, len(context), -1, -1), near)


def _shares(bias: Tensor) -> Tensor:
    """Returns equal weights for the keys with a bias of 0, none for those with −∞; 0 where there is no key."""
    return bias.softmax(-1).nan_to_num(0.0)


class Bend(nn.Module):
    """A feed-forward block without biases, whose units saturate."""

    def __init__(self, d_model: int, d_ff: int) -> None:
        super().__init__()
        self.into, self.out = Linear(d_model, d_ff, bias=False), Linear(d_ff, d_model, bias=False)

    def forward(self, x: Streams, dropout: Dropout | None = None, place: int = 0) -> Streams:
        return self.out(self.into(x).tanh())


class AveragingBlock(Block):
    """A block without norms."""

    def __init__(self, config: ModelConfig) -> None:
        nn.Module.__init__(self)
        site, self.layer, self.feed_site = Site("decoder", 0, "self"), 0, Site("decoder", 0, "feed")
        self.attentions = nn.ModuleDict({"self": Averages(site, config.d_model, config.remaining_heads(str(site)))})
        self.norms = nn.ModuleDict({kind: nn.Identity() for kind in ("self", "feed")})
        self.feed = Bend(config.d_model, config.d_ff)  # pyright: ignore[reportAttributeAccessIssue]
        self.post_norm, self.place = False, number_of(self.feed_site)


class NearestDigit(nn.Module):
    """The logit of a digit falls with the square of its distance from the scaled stream."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = Parameter(torch.randn(1))

    def forward(self, x: Streams, points: Float[Tensor, " digit"]) -> Float[Tensor, "*batch token digit"]:
        return -(self.scale * x - points).square()


DIGITS: dict[str, type[Digits]] = {"line": DigitLine, "table": DigitTable}


class AveragingDecoder(Model):
    """A decoder of one layer and width 1 whose heads average what their windows show."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        if config.digits is None or config.index != "coupled" or not config.least_first or config.end is not None:
            need = "a model of averaging heads adds numbers of any length, least significant digit first"
            raise HeadwayError(f"{need}: it needs sums padded to one more digit, and the index coupled")
        if (config.d_model, config.heads, config.layers, config.positions) != (1, HEADS, 1, OneEach.name):
            shape = f"one layer, d_model 1, {HEADS} heads and the positions {OneEach.name}"
            raise HeadwayError(f"a model of averaging heads has {shape}")
        self.tokens = DIGITS[config.points](config.digits)
        self.positions = OneEach(Shape(1, config.heads, config.trained, causal=True))
        self.blocks = nn.ModuleList([AveragingBlock(config)])
        self.nearest = NearestDigit()

    def sequences(self, source: int, answer: int) -> list[tuple[Positions, int, int]]:
        return [(self.positions, source + FRAME + answer, answer)]

    def tokens_before_answer(self, source: Tensor) -> int:
        return source.shape[1] + FRAME

    def stack_tokens(self, name: str, source: Tensor, written: Tensor) -> Tensor:
        return self.framed(source, written)

    def framed(self, source: Source, written: Tensor) -> Int[Tensor, "batch token"]:
        """Returns the tokens that the model reads: operands between zeros, and an answer that begins with 0."""
        digits = (source.shape[1] - 1) // 2
        zero = torch.full_like(source[:, :1], ZERO)
        operator, end = source[:, digits : digits + 1], source[:, digits + 1 :]
        begun = torch.where(written == self.start, ZERO, written)
        return torch.cat((zero, source[:, :digits], zero, operator, zero, end, zero, begun), dim=1)

    def order(self, source: Source, answers: int) -> Order:
        """Returns the order of a framed problem and `answers` answer tokens. In it the coupled index numbers every
        answer token by its own column: the given 0 is the digit of the lowest."""
        problem = self.framed(source, source[:, :0])
        index = torch.cat(self.index.numbers(problem, answers, joined=True), dim=1)
        return Order(self.positions, index, index, causal=True)

    def stack(self, name: str, source: Tensor, written: Tensor, length: int | None = None, first: int = 0) -> StackPass:
        assert first == 0
        before = self.tokens_before_answer(source)

        def finish(x: Stream) -> Tensor:
            return self.nearest(x[..., before:, :], self.tokens.points())

        tokens, order = self.framed(source, written), self.order(source, written.shape[1])
        return StackPass(self.blocks, order, lambda: self.tokens(tokens), finish)

    @torch.no_grad()
    def generate(self, source: Source, length: int, gates: Gates | None = None) -> Int[Tensor, "batch {length}"]:
        """Decodes the answer greedily, digit by digit. Of the answer only the last digit is visible, and it has few
        values: the next digit after each of them is computed for many places at once, and then the digits are followed
        as they are written. The time grows with the length alone; with gates, with its square."""
        written = torch.full_like(source[:, :1], ZERO)
        if gates:
            for _ in range(length):
                answer = torch.cat((torch.full_like(written[:, :1], self.start or ZERO), written[:, 1:]), dim=1)
                written = torch.cat((written, self.decode(source, answer, gates)[:, -1:].argmax(-1)), dim=1)
            return written[:, 1:]
        frame = self.framed(source, source[:, :0])
        columns = frame.shape[1] // 2
        first, second = frame[:, :columns].flip(1), frame[:, columns + 1 :].flip(1)
        return torch.cat([*self._write(first, second, length)], dim=1)

    def _write(self, first: Tensor, second: Tensor, length: int) -> Iterator[Int[Tensor, "batch 1"]]:
        """Yields the digits of the answer to operands whose lowest column comes first."""
        pairs, token = self.tokens(first) + self.tokens(second), torch.full_like(first[:, :1], ZERO)  # batch column 1
        for begin in range(0, length, STEPS):
            some = slice(begin, min(begin + STEPS, length))
            own, right = pairs[:, some.start + 1 : some.stop + 1], pairs[:, some]
            after = self.next_digits(own, right)  # batch place digit
            for place in range(some.stop - begin):
                token = after[:, place].gather(1, token)
                yield token

    def next_digits(self, own: Stream, right: Stream) -> Int[Tensor, "batch place digit"]:
        """Returns the digit that is written after each digit, given the sum of the two operand points of the column
        that is answered, and of the one to its right."""
        block, points = self.blocks[0], self.tokens.points()
        assert isinstance(block, AveragingBlock)
        attention = block.attentions["self"]
        assert isinstance(attention, Averages)
        last = points.view(-1, 1).expand(*own.shape[:2], -1, 1)  # batch place digit 1
        z = torch.cat((own[:, :, None].expand_as(last) / 2, (right[:, :, None] + last) / 3), dim=-1)
        x = last + attention.out(z[..., attention.head_numbers])
        return self.nearest(x + block.feed(x), points).argmax(-1)
