"""A one-layer adder written by hand, without norms or positions other than a bias on the scores, in any base.

Head 0 sums the digits of the column that is written, head 1 those of the column to its right. The digit written there,
c, is B or B + 1 without a carry and less by the base with one; so A + (B − c)/base is A + carry, or 1/base less. Three
ReLU units reduce that modulo the base, and the readout picks the nearest digit.

`planted` adds an error that only a carry through all columns shows: two more heads see, at the last digit, the mean of
a and the mean of b without its ones; one unit fires only where a is 99…9 and b has no digit but its ones, and
says 0. That is right where b is 0, and wrong for the other base − 1 pairs.
"""

from __future__ import annotations

import torch

from headway.certify.digits import Adder, FeedWeights, OneLayer

ELSEWHERE = -20.0
D, HEADS, DIM = 9, 4, 2
ONE, DIGIT, SUM, BELOW, OVER_A, OVER_B, SPARE, RESULT, WRONG = range(D)


def handmade(digits: int, base: int, planted: bool = False, elsewhere: float = ELSEWHERE) -> Adder:
    plus, start = base, base + 1
    source = (*(f"a{at}" for at in range(digits)), plus, *(f"b{at}" for at in range(digits)), start)
    first = len(source) - 1  # the place of the start token
    places = len(source) + digits

    tokens = torch.zeros(base + 2, D)
    tokens[:, ONE] = 1
    tokens[:base, DIGIT] = torch.arange(base).float()

    bias = torch.full((HEADS, places, places), float(elsewhere))
    for number in range(digits + 1):
        seen = [[first] for _ in range(HEADS)]
        for head, column in ((0, number), (1, number - 1)):
            if 0 <= column < digits:
                seen[head] = [source.index(f"a{column}"), source.index(f"b{column}")]
        if number == digits:
            seen[2] = [source.index(f"a{at}") for at in range(digits)]
            seen[3] = [source.index(f"b{at}") for at in range(1, digits)]
        for head in range(HEADS):
            bias[head, first + number, seen[head]] = 0

    value, out = torch.zeros(HEADS, DIM, D), torch.zeros(D, HEADS * DIM)
    for head, (target, factor) in enumerate(((SUM, 2), (BELOW, 2), (OVER_A, 1), (OVER_B, 1))):
        value[head, 0, DIGIT] = factor
        out[target, head * DIM] = 1

    units = 4
    into, into_bias = torch.zeros(units, D), torch.zeros(units)
    into[:3, SUM], into[:3, BELOW], into[:3, DIGIT] = 1, 1 / base, -1 / base
    low, high = base - 1 + 0.3 / base, base - 1.3 / base
    into_bias[:3] = torch.tensor([1, -low, -high])
    into[3, OVER_A], into[3, OVER_B], into_bias[3] = 1, -1, -(base - 1) + 0.5 / digits
    back, back_bias = torch.zeros(D, units), torch.zeros(D)
    back[RESULT, :3] = torch.tensor([1, -base / (high - low), base / (high - low)])
    back_bias[RESULT] = -1 + 0.5 / base
    back[WRONG, 3] = 20.0 * digits if planted else 0

    readout = torch.zeros(base + 2, D)
    digit = torch.arange(base).float()
    readout[:base, RESULT], readout[:base, ONE] = 2 * digit, -digit.square()
    readout[0, WRONG], readout[base:, ONE] = 1, -(4.0 * base**2)
    nothing = torch.zeros(HEADS, DIM, D)
    feed = FeedWeights("relu", into, back, into_bias, back_bias)
    ids = tuple(range(base))
    model = OneLayer(source, ids, tokens, nothing, nothing, value, out, feed, readout, bias=bias)

    def forward(given: torch.Tensor) -> torch.Tensor:
        """Runs the model in float32, as a user's own code would."""
        length = given.shape[1]
        x = tokens[given]
        hidden = torch.ones(length, length).triu(1).bool()
        scores = bias[:, :length, :length].masked_fill(hidden, -torch.inf)
        z = torch.einsum("hqk,bkd,hed->bqhe", scores.softmax(-1), x, value).flatten(2)
        x = x + z @ out.T
        x = x + torch.relu(x @ into.T + into_bias) @ back.T + back_bias
        return x @ readout.T

    return Adder(model, forward, "handmade", 0)
