"""Checks the certificate of a windowed one-layer model, with NumPy alone and without Headway.

    python recipes/check_certificate.py src/headway/pretrained/certified-adder

Prints yes or no, and why. It knows two models with a window of one step behind, an adder (decoder, coupled index, least
significant digit first) and a sorter (classifier, violation pooling), and refuses all others. A yes means: with these
weights, in float32, in any order of summation, every answer at every length is right.

1. *Contexts.* A token sees its own column and the one before it (in a sequence: itself and the token before it), and
   nothing in the one layer depends on the place. So all that matters, at any length, are the contexts listed below.
2. *Values.* All of them go through the model in float64.
3. *Rounding.* With every vector goes a radius r: float32 is at most so far away (2-norm). An operation turns r into
   L·r, L its Lipschitz constant on the ball, plus its own rounding. Assumed: + − × ÷, fused or not, err by u = 2^-24,
   relative, exp by 32 ulps, 1/sqrt by 4; results below 2^-126 may become 0; norms use two passes, or Welford's updates
   merged along any tree, either way; softmax subtracts the maximum, at once or online, by exp or exp2; masked keys
   weigh exactly 0. Nothing is assumed about order, batches or caches (docs/certificates.md).
4. A context is right if the lead of the right answer over every other exceeds the bound on the rounding of that lead.
"""

import hashlib
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np

Array = Any  # of float64, or of float32 where rounding is measured
Contexts = tuple[str, list[Array], list[int], Array]
# the kind; the tokens in sight, as rows of the embeddings, the last answers; 1 for a step before, or 0; right answers
U = 2.0**-24
ULPS, EXP_ULPS = 4 * 2 * U, 32 * 2 * U  # the errors of 1/sqrt and of exp: an ulp is at most 2u
TINY = 2.0**-100  # more than what flushing to 0 can change in an operation on at most 2^20 numbers
LARGE, EPSILON, ROWS = 2.0**50, 1e-5, 4_000  # no number may be larger (squares overflow); of norms; contexts at a time
SLACK = 1 + 2.0**-20  # for the rounding of this program: the same theorem with u = 2^-53
WINDOW = {"positions": "window+behind=1+ahead=0", "layers": 1, "end": None, "pruned": ""}
ADDER = {"kind": "decoder", "vocabulary": 14, "index": "coupled", "pooling": "mean", "start": 12, "classes": None}
ADDER |= {"digits": 10, "least_first": True, "segments": True, **WINDOW}
SORTER = {"kind": "classifier", "vocabulary": 100, "index": "sequential", "pooling": "violation", "start": None}
SORTER |= {"classes": 2, "digits": None, "least_first": False, "segments": False, **WINDOW}
SIZES = {"trained", "trained_answer", "d_model", "heads", "d_ff", "decoder_layers"}
OPTIONS = {"base": 10, "operators": "+", "first": "least", "natural": False}, {"values": 100}
TRAINING = {"digits", "shortest", "longest", "negatives", "ranges", "pools"}  # options that matter in training only
NORMS, SELF = ("blocks.0.norms.self", "blocks.0.norms.feed", "norm"), "blocks.0.attentions.self."
RUN, FEED = {"task", "model", "training", "seed", "options", "data"}, "blocks.0.feed."


class Refused(Exception):
    """The answer is no; the message is the reason."""


def demand(holds: Any, otherwise: str) -> None:
    if not holds:
        raise Refused(otherwise)


def read_weights(data: bytes, shapes: dict[str, Any]) -> dict[str, Array]:
    """Reads a safetensors file that holds exactly these weights, in float32, side by side."""
    size, weights, end = int.from_bytes(data[:8], "little"), {}, 0
    header, body = json.loads(data[8 : 8 + size]), data[8 + size :]
    demand(header.keys() == shapes.keys(), f"unexpected or missing weights: {sorted(header.keys() ^ shapes.keys())}")
    for name, entry in sorted(header.items(), key=lambda item: str(item[1]["data_offsets"][0]).zfill(20)):
        demand(entry["dtype"] == "F32", f"{name} is {entry['dtype']}, not float32")
        demand(entry["shape"] == [*shapes[name]], f"{name} has the shape {entry['shape']}, not {[*shapes[name]]}")
        begin, end = end, end + 4 * math.prod(shapes[name])
        demand(entry["data_offsets"] == [begin, end], f"the bytes of {name} are not in their place")
        weights[name] = np.frombuffer(body[begin:end], "<f4").reshape(shapes[name])
        bits = np.frombuffer(body[begin:end], "<u4") & 0x7FFFFFFF  # without the sign; 2^-126 to 2^30, by their bits:
        usual = (bits == 0) | (bits >= 0x00800000) & (bits < 0x4E800000)
        demand(usual.all(), f"{name} contains NaN, infinity, a number above 2^30, or one so small that it may become 0")
    demand(end == len(body), "model.safetensors has bytes that belong to no weight")
    return weights


def check_config(config: dict[str, Any]) -> dict[str, Any]:
    """Refuses a model other than the two that are known, and returns the shapes of its weights."""
    demand(config.keys() == RUN, f"config.json has unexpected or missing keys: {sorted(config.keys() ^ RUN)}")
    model, options, adds = config["model"], config["options"], config["task"] == "addition"
    demand(adds or config["task"] == "sortedness", f"the task {config['task']!r} is not known")
    known = {**(ADDER if adds else SORTER), **{key: model[key] for key in SIZES}}
    odd = {key for key in {**model, **known} if model.get(key, "none") != known.get(key, "none")}
    demand(not odd, f"the model differs from the known one in {sorted(odd)}")
    fixed = {key: value for key, value in options.items() if key not in TRAINING}
    demand(fixed == OPTIONS[not adds], f"the options of the task are not the known ones: {options}")
    d, heads, hidden, vocabulary = sizes = [model[key] for key in ("d_model", "heads", "d_ff", "vocabulary")]
    demand(all(type(n) is int and 0 < n <= 4096 for n in sizes) and d % heads == 0, f"unknown sizes: {sizes}")
    shapes = {f"{norm}.{part}": (d,) for norm in NORMS for part in ("weight", "bias")} | {f"{SELF}out.bias": (d,)}
    shapes |= {f"{SELF}query": (d, d), f"{SELF}key_value": (2, d, d), f"{SELF}out.weight": (d, d)}
    shapes |= {f"{FEED}into.weight": (hidden, d), f"{FEED}out.weight": (d, hidden), f"{FEED}out.bias": (d,)}
    shapes |= {"positions.table": (2, heads), "tokens.weight": (vocabulary, d), f"{FEED}into.bias": (hidden,)}
    last = {"segments": (2, d), "unembed.weight": (vocabulary, d), "unembed.bias": (vocabulary,)}
    return shapes | (last if adds else {"head.weight": (1, d), "head.bias": (1,)})


def adder_contexts() -> list[Contexts]:
    """Column k is answered by the token before it in the answer. It sees the operand digits a, b of column k, except in
    the extra column at the end; c, d of column k − 1; the answer digits w of k − 1 and v of k − 2, or the start token
    instead; the plus sign in column 0. In a right sum w is c + d modulo 10, or one more after a carry into k − 1. Both
    occur with every v (in columns 0 and 1 there is no v and no such carry)."""
    plus, start, answer = 10, 14 + 12, 14  # rows: the 14 tokens in the problem, then in the answer
    c, d = np.indices((10, 10)).reshape(2, -1)
    begin, w = np.full(100, start), answer + (c + d) % 10
    first = ("a+0 b+0 operator start", [c, d, np.full(100, plus), begin], [0, 0, 1, 0], (c + d) % 10)
    only = ("a-1 answer-1 b-1 start", [c, d, begin, w], [1, 1, 1, 0], (c + d) // 10)
    a, b, c, d = np.indices((10,) * 4).reshape(4, -1)
    tokens = [a, b, c, d, np.full(10_000, start), answer + (c + d) % 10]
    second = ("a-1 a+0 answer-1 b-1 b+0 start", tokens, [0, 0, 1, 1, 1, 0], (a + b + (c + d) // 10) % 10)
    c, d, v, w = np.indices((10,) * 4).reshape(4, -1)
    c, d, v, w = np.stack((c, d, v, w))[:, (w - c - d) % 10 <= 1]
    carry = (c + d + (w - c - d) % 10) // 10  # into column k
    last = ("a-1 answer-2 answer-1 b-1", [c, d, answer + v, answer + w], [1, 1, 1, 0], carry)
    a, b, row = np.indices((10, 10, len(c))).reshape(3, -1)
    tokens = [a, b, *(each[row] for each in (c, d, answer + v, answer + w))]
    inner = ("a-1 a+0 answer-2 answer-1 b-1 b+0", tokens, [0, 0, 1, 1, 1, 0], (a + b + carry[row]) % 10)
    return [first, only, second, last, inner]


def sorter_contexts() -> list[Contexts]:
    """A place sees itself, y, and the one before it, x. If it reports a violation (0) where x > y and no other (1),
    the sequences reported are those not sorted. The last place is like any other; the certificate counts it again."""
    x, y = np.indices((100, 100)).reshape(2, -1)
    fine, first = x <= y, np.arange(100)
    pairs = [(f"sorted, {place}", [x[fine], y[fine]], [1, 0], 1 + 0 * x[fine]) for place in ("inside", "last")]
    pairs.append(("violation", [x[~fine], y[~fine]], [1, 0], 0 * x[~fine]))
    return [("sorted, first", [first], [0], 1 + 0 * first), *pairs]


def gamma(roundings: int) -> float:
    return roundings * U / (1 - roundings * U)


def length(x: Array) -> Array:
    return np.sqrt((x * x).sum(-1))


def add(x: Array, r: Array, y: Array, s: Array) -> tuple[Array, Array]:
    return x + y, (1 + U) * (r + s) + U * length(x + y) + TINY


class Linear:
    """Wx + b: every product passes at most n + 1 roundings, in any order."""

    def __init__(self, weight: Array, bias: Array | float = 0.0) -> None:
        self.weight, self.bias, self.size = weight.T, bias, np.abs(weight).T
        self.rows, self.norm = length(weight), float(np.linalg.norm(weight, 2))

    def rounding(self, x: Array, r: Array) -> Array:
        size = np.abs(x) @ self.size + r[..., None] * self.rows + np.abs(self.bias)
        demand((size < LARGE).all(), "a number in the model is too large, or not a number")
        return gamma(len(self.weight) + 2) * size + TINY

    def __call__(self, x: Array, r: Array) -> tuple[Array, Array]:
        return x @ self.weight + self.bias, self.norm * r + length(self.rounding(x, r))


def normalise(x: Array, r: Array, weight: Array, bias: Array) -> tuple[Array, Array, Array, Array]:
    """Returns (x − mean)/σ · weight + bias, σ² = variance + ε; its radius, with the Lipschitz constant 1/σ of all but
    weight and bias; the smallest σ on the ball; and the rounding of each number by the norm itself."""
    n, r, size = x.shape[-1], r[..., None], np.abs(weight)
    mean, deviation = x.mean(-1, keepdims=True), x.std(-1, keepdims=True)
    middle, spread = np.abs(mean) + r / n**0.5, deviation + r / n**0.5
    sigma = np.sqrt(np.maximum(deviation - r / n**0.5, 0) ** 2 + EPSILON)
    # Two passes, or parts merged along any tree, by M + (M' − M)·share or a weighted average: each merge of k numbers
    # errs by λ ≤ u|M| + 3u·max(|M' − M|, the average of |M|, |M'|). The mean errs by Σλk/n, the variance by
    # Σ2λk|M − mean|/n, and both by the γ of their own sums (docs/certificates.md).
    shift = gamma(n + 6) * (2 * middle + 2.7 * spread) + TINY
    off = 1.01 * U * (n + 4) * spread * (8 * spread + 5.4 * middle) / sigma**2  # of σ², relative
    off = off + 1.01 * (shift / sigma) ** 2 + gamma(n + 10)
    demand((off < 0.1).all(), "rounding can ruin the variance in a norm")
    off = off / 2 * (1 + 2 * off) + ULPS * 2  # of 1/σ, relative
    own = size / sigma * (off * (np.abs(x - mean) + 2 * r) + 1.2 * shift) + TINY
    # Output: (x − m)·s·weight + bias, or x·(s·weight) + (bias − m·s·weight)
    own += gamma(6) * (size / sigma * (np.abs(x) + np.abs(mean) + 2 * r + shift) + np.abs(bias))
    value, sigma = (x - mean) / np.sqrt(deviation**2 + EPSILON) * weight + bias, sigma[..., 0]
    return value, size.max() / sigma * r[..., 0] + length(own), sigma, own


class Model:
    """The layer. What depends on one token alone, or on a pair, is computed once for each."""

    def __init__(self, weights: dict[str, Array]) -> None:
        if "head.bias" in weights:  # what a place of the sorter reports is compared with 0
            reads = {f"unembed.{p}": np.stack((w := weights[f"head.{p}"][0], 0 * w)) for p in ("weight", "bias")}
            weights = {**weights, **reads}
        self.bias = weights["positions.table"][::-1]  # 0 or 1 step before; head
        self.x = np.concatenate([weights["tokens.weight"] + each for each in weights.get("segments", [0.0])])
        self.r = U * length(self.x) + TINY
        norm, self.feed_norm, self.last_norm = ((weights[f"{n}.weight"], weights[f"{n}.bias"]) for n in NORMS)
        read, read_r, *_ = normalise(self.x, self.r, *norm)
        three = weights[f"{SELF}query"], *weights[f"{SELF}key_value"]
        split = [[Linear(part)(read, read_r) for part in np.split(each, self.bias.shape[1])] for each in three]
        (q, q_r), (k, k_r), (v, v_r) = (tuple(np.stack(part, 1) for part in zip(*each, strict=True)) for each in split)
        self.v, self.v_r, dim = v, v_r, v.shape[-1]  # token head dim, token head
        self.s = dim**-0.5 * np.einsum("qhd,khd->qkh", q, k)
        carried = dim**-0.5 * (length(q)[:, None] * k_r + (length(k) + k_r) * q_r[:, None])  # query key head
        size = dim**-0.5 * np.einsum("qhd,khd->qkh", np.abs(q), np.abs(k)) + carried
        self.s_r = carried + gamma(dim + 8) * size + TINY
        names = f"{SELF}out", f"{FEED}into", f"{FEED}out", "unembed"
        every = (Linear(weights[f"{name}.weight"], weights[f"{name}.bias"]) for name in names)
        self.out, self.into, self.back, self.readout = every

    def attend(self, tokens: Array, before: Array) -> tuple[Array, Array]:
        """Returns the heads' outputs at the last of the tokens (context token), and their radius."""
        keys, asking, bias = tokens.shape[1], tokens[:, -1:], self.bias[before]
        s = self.s[asking, tokens] + bias  # context token head
        top, e = s.max(1, keepdims=True), self.s_r[asking, tokens] + gamma(self.v.shape[-1] + 8) * np.abs(bias)
        # Rounding of exp, of its argument and of the factors of an online softmax equals a change of the scores: the
        # arguments of the factors add up to the distance from the maximum, and there are fewer factors than keys.
        e = e + U * (2 * np.abs(s) + 4 * (top - s) + 10 * e.max(1, keepdims=True)) + (keys + 1) * EXP_ULPS
        demand((e < 0.1).all(), "rounding can ruin the scores of attention")
        p = np.exp(s - top) / np.exp(s - top).sum(1, keepdims=True)
        v, v_r, z = self.v[tokens], self.v_r[tokens], (p[..., None] * self.v[tokens]).sum(1)
        # Mean value theorem: dz/ds_j = p_j (v_j − z), and on the way p_j grows by at most exp(2·max e)
        growth, away = np.exp(2 * e.max(1, keepdims=True)), length(v - z[:, None])
        away += (growth - 1) * (p * away).sum(1, keepdims=True)
        size = length(v) + v_r
        r = (growth * p * (e * away + v_r + gamma(4 * keys + 8) * size) + TINY * (1 + size)).sum(1)
        return z.reshape(len(z), -1), length(r)

    def leads(self, tokens: Array, before: Array, right: Array) -> tuple[Array, Array]:
        """Returns the lead of the right answer over every other, and the bound on its rounding; trivial over itself."""
        x, r = self.x[tokens[:, -1]], self.r[tokens[:, -1]]
        x, r = add(x, r, *self.out(*self.attend(tokens, before)))
        hidden, hidden_r = self.into(*normalise(x, r, *self.feed_norm)[:2])
        x, r = add(x, r, *self.back(np.maximum(hidden, 0), hidden_r))  # ReLU has the Lipschitz constant 1
        y, y_r, sigma, own = normalise(x, r, *self.last_norm)
        row, right, rounding = np.arange(len(y))[:, None], right[:, None], self.readout.rounding(y, y_r)
        apart = self.readout.weight.T[:, None] - self.readout.weight.T  # right other d_model
        bound = length(apart * self.last_norm[0])[right[:, 0]] * (r / sigma)[:, None]
        bound += np.einsum("cod,cd->co", np.abs(apart)[right[:, 0]], own) + rounding + rounding[row, right]
        logits = y @ self.readout.weight + self.readout.bias
        lead, bound = logits[row, right] - logits, SLACK * bound
        lead[row, right], bound[row, right] = LARGE, 0
        return lead, bound


def walk(weights: dict[str, Array], every: list[Contexts]) -> dict[str, float]:
    """Runs every context; returns the smallest lead, and the bound on rounding beside what is measured."""
    exact = Model({name: weight.astype(np.float64) for name, weight in weights.items()})
    single, found = Model(weights), {"lead": math.inf, "bound": 0.0, "ratio": 0.0, "measured": 0.0}
    for kind, columns, before, answers in every:
        for start in range(0, len(answers), ROWS):
            tokens, right = np.stack(columns, 1)[start : start + ROWS], answers[start : start + ROWS]
            lead, bound = exact.leads(tokens, np.array(before), right)
            off = np.abs(single.leads(tokens, np.array(before), right)[0] - lead)
            row, other = np.unravel_index(int((lead - bound).argmin()), lead.shape)
            place = f"{kind}, tokens {tokens[row].tolist()}, answer {right[row]} and not {other}"
            place += f": lead {lead[row, other]:.3g}, rounding may reach {bound[row, other]:.3g}"
            demand((lead > 0).all(), f"wrong at {place}")
            demand((lead > bound).all(), f"rounding may change the answer at {place}")
            demand((off <= bound).all(), f"the bound is below the rounding measured near {place}")  # never: a theorem
            found["lead"] = min(found["lead"], float(lead.min()))
            for name, value in (("bound", bound), ("ratio", bound / lead), ("measured", off)):
                found[name] = max(found[name], float(value.max()))
    return found


def check(folder: Path) -> str:
    """Returns what is proved; raises Refused where something is not."""
    config, stored = (json.loads((folder / name).read_bytes()) for name in ("config.json", "certificate.json"))
    data = (folder / "model.safetensors").read_bytes()
    seal, content = stored.pop("sha256", None), json.dumps(stored, sort_keys=True).encode()
    demand(seal == hashlib.sha256(content).hexdigest(), "the certificate was altered after it was granted")
    demand(stored["weights_sha256"] == hashlib.sha256(data).hexdigest(), "the certificate belongs to other weights")
    same = all(stored[key] == config[key] for key in ("task", "options", "model"))
    demand(same, "certificate.json and config.json are about different models or tasks")
    shapes, every = check_config(config), adder_contexts() if config["task"] == "addition" else sorter_contexts()
    kinds, sizes = sorted([kind, len(right)] for kind, *_, right in every), [len(each[-1]) for each in every]
    claimed = sorted([entry["pattern"], entry["contexts"]] for entry in stored["patterns"])
    demand(claimed == kinds, f"the certificate lists the contexts {claimed}, not {kinds}")
    claimed, true = [stored[key] for key in ("certified", "contexts", "wrong")], [True, sum(sizes), 0]
    demand(claimed == true, f"the certificate claims (certified, contexts, wrong) = {claimed}, not {true}")
    found, margin = walk(read_weights(data, shapes), every), stored["smallest_margin"]
    demand(abs(margin / found["lead"] - 1) <= 1e-3, f"the smallest margin is {found['lead']:.6g}, not {margin}")
    proved = f"{true[1]:,} contexts, 0 wrong, smallest margin {found['lead']:.6g}; rounding in float32 is at most "
    proved += f"{found['bound']:.3g}, {found['ratio']:.2g} of a lead, by this program ({found['measured']:.2g} seen)"
    if "rounding_bound" not in stored and "assumes" not in stored:
        return f"{proved}; the certificate is of the old kind and claims exact arithmetic only"
    bound, dtype = stored["rounding_bound"], stored["assumes"]["dtype"]
    demand(dtype == "float32", f"it is about {dtype}, not float32")
    demand(found["measured"] <= bound < LARGE, f"the certificate bounds rounding by {bound}, which cannot be right")
    return f"{proved}; the certificate bounds it by {bound:.3g}"


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
