"""Checks the certificate of an adder of a handful of numbers, with NumPy alone and without Headway.

    python recipes/check_smallest_adder.py src/headway/pretrained/smallest-adder

Prints yes or no, and why. It knows one model (docs/smallest-adder.md), with the points of digits in order (`line`) or
learned one by one (`table`), and refuses all others. A yes means: with these weights, in float32, in any order of
summation, every sum of two numbers of any length is written right, digit by digit.

1. *Contexts.* Operands stand between columns of zeros, and the answer begins with a given 0 in the lowest of them. One
   head sees the two digits of the column that is answered, the other those of the column to its right and the digit
   just written there. So an answer digit is a function of five digits a, b; c, d; w, at any place and length, and in a
   right sum w is c + d or c + d + 1 modulo ten: 20,000 contexts. A carry into the lowest column would need 0 + 0 ≥ 10.
2. *Rounding.* Each goes through the model in intervals that contain whatever float32 may give: + − × ÷ err by 2^-24,
   relative, and results below 2^-126 may become 0; tanh errs by 32 ulps. The intervals are wider than their own
   rounding in float64, and hold for sums in any order. Then it goes through in float32 and must stay inside.
3. A context is right if in its intervals the right digit is nearer than every other. Then so is the sum, by induction.
"""

import hashlib
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np

Array = Any  # of float64
U, TINY = 2.0**-24, 2.0**-120  # of float32; more than underflow can change in one of its operations
TANH = 32 * 2 * U + 2.0**-50  # an ulp is at most 2u; and the error of NumPy's tanh
OUT = 2.0**-50  # by which intervals are widened for the rounding of this program
MODEL = {"kind": "averaging", "vocabulary": 14, "positions": "one-each", "d_model": 1, "heads": 2, "d_ff": 1}
MODEL |= {"layers": 1, "index": "coupled", "start": 12, "end": None, "classes": None, "digits": 10, "pruned": ""}
MODEL |= {"least_first": True, "segments": False, "pooling": "mean"}
FREE = {"trained", "trained_answer", "decoder_layers", "points"}
OPTIONS = {"base": 10, "operators": "+", "first": "least", "natural": False}
SHAPES = {"blocks.0.attentions.self.out.weight": [1, 2], "blocks.0.feed.into.weight": [1, 1]}
SHAPES |= {"blocks.0.feed.out.weight": [1, 1], "nearest.scale": [1]}
POINTS = {"line": {"tokens.shift": [1]}, "table": {"tokens.table": [10]}}
KIND = "a-1 a+0 answer-1 b-1 b+0"


class Refused(Exception):
    """The answer is no; the message is the reason."""


def demand(holds: Any, otherwise: str) -> None:
    if not holds:
        raise Refused(otherwise)


class Interval:
    """Numbers between low and high, whatever float32 gives for them."""

    def __init__(self, low: Array, high: Array) -> None:
        self.low, self.high = low, high

    @staticmethod
    def exact(value: Array) -> "Interval":
        return Interval(value, value)

    def widened(self, relative: float) -> "Interval":
        """Returns the interval after an operation with this relative error."""
        far = np.maximum(np.abs(self.low), np.abs(self.high)) * (relative + OUT) + TINY
        demand(np.isfinite(far).all() and (far < 2.0**40).all(), "a number in the model is too large")
        return Interval(self.low - far, self.high + far)

    def __add__(self, other: "Interval") -> "Interval":
        return Interval(self.low + other.low, self.high + other.high).widened(U)

    def __sub__(self, other: "Interval") -> "Interval":
        return Interval(self.low - other.high, self.high - other.low).widened(U)

    def __mul__(self, other: "Interval") -> "Interval":
        ends = [x * y for x in (self.low, self.high) for y in (other.low, other.high)]
        return Interval(np.minimum.reduce(ends), np.maximum.reduce(ends)).widened(U)

    def tanh(self) -> "Interval":
        return Interval(np.tanh(self.low), np.tanh(self.high)).widened(TANH)

    def square(self) -> "Interval":
        low, high = self.low**2, self.high**2
        least = np.where((self.low < 0) & (self.high > 0), 0.0, np.minimum(low, high))
        return Interval(least, np.maximum(low, high)).widened(U)


def mean(keys: list[Interval]) -> Interval:
    """The softmax of equal scores, in any order: a key passes its share's division, a product and at most n sums. The
    partial sums of keys of both signs may be as large as the sum of their sizes."""
    n = len(keys)
    low, high = sum(key.low for key in keys) / n, sum(key.high for key in keys) / n
    size = sum(np.maximum(np.abs(key.low), np.abs(key.high)) for key in keys) / n
    far = size * (1.01 * (n + 4) * U + OUT) + TINY
    return Interval(low - far, high + far)


def every_context() -> list[Array]:
    """Returns a, b, c, d, w and the right answer of every context that can occur."""
    a, b, c, d, carry = np.indices((10, 10, 10, 10, 2)).reshape(5, -1)
    right = c + d + carry
    return [a, b, c, d, right % 10, (a + b + right // 10) % 10]


def run(weights: dict[str, Array], columns: list[Array]) -> Interval:
    """Returns how far the scaled stream may be from each digit, squared: context digit."""
    number = {name: [Interval.exact(each) for each in weights[name].ravel()] for name in weights}
    if "tokens.shift" in weights:
        points = Interval.exact(np.arange(10.0)) + number["tokens.shift"][0]
    else:
        points = Interval.exact(weights["tokens.table"])

    def at(digit: Array) -> Interval:
        return Interval(points.low[digit], points.high[digit])

    a, b, c, d, w = map(at, columns)
    own, right = number["blocks.0.attentions.self.out.weight"]
    x = w + (own * mean([a, b]) + right * mean([c, d, w]))
    bent = (number["blocks.0.feed.into.weight"][0] * x).tanh()
    x = (x + number["blocks.0.feed.out.weight"][0] * bent) * number["nearest.scale"][0]
    return (Interval(x.low[:, None], x.high[:, None]) - Interval(points.low[None], points.high[None])).square()


def run_in_float32(weights: dict[str, Array], columns: list[Array]) -> Array:
    """Returns the same, as this machine computes it."""
    points = weights.get("tokens.table", np.arange(10, dtype="f4") + weights.get("tokens.shift", np.float32(0)))
    a, b, c, d, w = (points[each] for each in columns)
    own, right = weights["blocks.0.attentions.self.out.weight"][0]
    x = w + own * ((a + b) / np.float32(2)) + right * ((c + d + w) / np.float32(3))
    x = x + weights["blocks.0.feed.out.weight"][0, 0] * np.tanh(weights["blocks.0.feed.into.weight"][0, 0] * x)
    return (x[:, None] * weights["nearest.scale"] - points) ** 2


def prove(weights: dict[str, Array], contexts: list[Array]) -> tuple[float, float]:
    """Returns the smallest lead that is sure and the smallest in float32; raises Refused where a context is wrong."""
    *columns, right = contexts
    far = run({name: weight.astype(float) for name, weight in weights.items()}, columns)
    measured = run_in_float32(weights, columns)
    demand(measured.dtype == np.float32, "this machine did not compute in float32")
    row = np.arange(len(right))
    lead = far.low - far.high[row, right][:, None]
    lead[row, right] = math.inf
    shown = measured - measured[row, right][:, None]
    shown[row, right] = math.inf
    at = int(lead.min(1).argmin())
    digits = [int(column[at]) for column in columns]
    place = f"digits {digits[:2]} above {digits[2:4]} and {digits[4]}, whose answer is {right[at]}"
    demand((shown > 0).all(), f"{int((shown <= 0).any(1).sum()):,} contexts are wrong, such as {place}")
    demand((lead > 0).all(), f"rounding may change the answer to {place}")
    inside = (far.low <= measured) & (measured <= far.high)
    demand(inside.all(), "float32 left its interval")  # never: a theorem
    return float(lead.min()), float(shown.min())


def read_weights(data: bytes, shapes: dict[str, list[int]]) -> dict[str, Array]:
    """Reads a safetensors file that holds exactly these weights, in float32, side by side."""
    size, weights, end = int.from_bytes(data[:8], "little"), {}, 0
    header, body = json.loads(data[8 : 8 + size]), data[8 + size :]
    demand(header.keys() == shapes.keys(), f"unexpected or missing weights: {sorted(header.keys() ^ shapes.keys())}")
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        demand(entry["dtype"] == "F32", f"{name} is {entry['dtype']}, not float32")
        demand(entry["shape"] == shapes[name], f"{name} has the shape {entry['shape']}, not {shapes[name]}")
        begin, end = end, end + 4 * math.prod(shapes[name])
        demand(entry["data_offsets"] == [begin, end], f"the bytes of {name} are not in their place")
        weights[name] = np.frombuffer(body[begin:end], "<f4").reshape(shapes[name])
        bits = np.frombuffer(body[begin:end], "<u4") & 0x7FFFFFFF  # 0, or of a size from 2^-126 to 2^30
        usual = (bits == 0) | (bits >= 0x00800000) & (bits < 0x4E800000)
        demand(usual.all(), f"{name} contains NaN, infinity, a number above 2^30, or one so small that it may become 0")
    demand(end == len(body), "model.safetensors has bytes that belong to no weight")
    return weights


def check_config(config: dict[str, Any]) -> dict[str, list[int]]:
    """Refuses a model other than the one that is known, and returns the shapes of its weights."""
    model, options = config["model"], config["options"]
    demand(config["task"] == "addition", f"the task {config['task']!r} is not known")
    odd = {key for key in model.keys() | MODEL.keys() if key not in FREE and model.get(key, "none") != MODEL.get(key)}
    demand(not odd, f"the model differs from the known one in {sorted(odd)}")
    fixed = {key: value for key, value in options.items() if key not in ("digits", "shortest")}
    demand(fixed == OPTIONS, f"the options of the task are not the known ones: {options}")
    points = model.get("points", "line")
    demand(points in POINTS, f"the points {points!r} are not known")
    return SHAPES | POINTS[points]


def check(folder: Path) -> str:
    """Returns what is proved; raises Refused where something is not."""
    config, stored = (json.loads((folder / name).read_bytes()) for name in ("config.json", "certificate.json"))
    data = (folder / "model.safetensors").read_bytes()
    seal, content = stored.pop("sha256", None), json.dumps(stored, sort_keys=True).encode()
    demand(seal == hashlib.sha256(content).hexdigest(), "the certificate was altered after it was granted")
    demand(stored["weights_sha256"] == hashlib.sha256(data).hexdigest(), "the certificate belongs to other weights")
    same = all(stored[key] == config[key] for key in ("task", "options", "model"))
    demand(same, "certificate.json and config.json are about different models or tasks")
    shapes, contexts = check_config(config), every_context()
    numbers, count = sum(math.prod(shape) for shape in shapes.values()), len(contexts[0])
    claimed = [stored[key] for key in ("certified", "contexts", "wrong", "undecided", "parameters")]
    true = [True, count, 0, 0, numbers]
    demand(claimed == true, f"it claims (certified, contexts, wrong, undecided, parameters) = {claimed}, not {true}")
    kinds = [{"pattern": KIND, "contexts": count}]
    demand(stored["patterns"] == kinds, f"the certificate lists the contexts {stored['patterns']}, not {kinds}")
    demand(stored["assumes"]["dtype"] == "float32", f"it is about {stored['assumes']['dtype']}, not float32")
    lead, shown = prove(read_weights(data, shapes), contexts)
    margin = stored["smallest_margin"]
    demand(abs(margin / shown - 1) <= 1e-3, f"the smallest margin is {shown:.6g}, not {margin}")
    sure = margin - stored["rounding_bound"]  # the sure leads of two proofs differ by no more than their bounds
    demand(0 < sure < shown, f"the certificate bounds rounding by {stored['rounding_bound']}, which cannot be right")
    return f"{numbers} numbers, {count:,} contexts, 0 wrong; smallest margin {shown:.6g}, at least {lead:.6g} is sure"


def main(folder: Path) -> int:
    try:
        print(f"yes: {check(folder)}.")
        return 0
    except Refused as reason:
        print(f"no: {reason}.")
    except (OSError, LookupError, TypeError, AttributeError, ValueError, ArithmeticError, RecursionError) as error:
        print(f"no: these are not the files of a certified run: {type(error).__name__}: {error}.")
    return 1


if __name__ == "__main__":
    sys.exit(main(Path(*sys.argv[1:])))
