"""Trains thousands of adders of a handful of numbers, and writes down how many of them are perfect.

    python recipes/smallest_adder.py --sizes all --out runs/smallest
    python recipes/smallest_adder.py --sizes line-tanh1-6 --seeds 0,1,2 --starts 512 --device cuda --out runs/smallest
    python recipes/smallest_adder.py --out runs/smallest --table
    python recipes/smallest_adder.py --out runs/smallest --export line-tanh1-6 --to runs/smallest-adder
    headway certify runs/smallest-adder

A start is one adder with weights of its own; all starts of a seed train at once, stacked. Every population is a file
that is written when it is finished, and is not trained again; --table prints all of them, and --export writes the best
start of one (--seeds) as a run folder: the one with the fewest wrong contexts, and among these with the lowest loss.

The adders (docs/smallest-adder.md): digits are points, one head averages the two digits of the column that is answered,
another the two of the column to its right and the answer digit just written, both through weights, onto the point of
that digit; then a feed-forward block, and the answer by the points. Contexts, not sums, are drawn: the digits of two
columns and a carry into the lower one, which fix the answer digit of the lower one. There are 20,000, counted with both
orders of the operands. Two numbers are compared with a point by squared distance on a line and by product on an arc.
"""

import argparse
import json
import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

DIGITS, CONTEXTS = 10, 20_000
PIECE = 2**22  # numbers in one tensor of logits while counting


@dataclass(frozen=True)
class Size:
    """One architecture. Its name ends in its number of trained numbers."""

    digits: str
    """line: d + shift; ruler: spacing · (d + shift); table: ten numbers; arc: radius · (cos, sin)(start + step · d)"""
    heads: str = "ss"
    """for the own column and the right one: s, a number, or m, a matrix"""
    units: int = 1
    activation: str = "tanh"
    bias: bool = False
    """of each unit"""
    rate: float = 0.1

    @property
    def width(self) -> int:
        return 2 if self.digits == "arc" else 1

    def shapes(self) -> dict[str, tuple[tuple[int, ...], float]]:
        """Returns the shape of every trained number, with the spread of its start."""
        d, maps = self.width, {"s": (), "m": (self.width, self.width)}
        of_digits = {"line": (1,), "ruler": (2,), "table": (DIGITS,), "arc": (3,)}[self.digits]
        own, right = (maps[kind] for kind in self.heads)
        found = {"digits": (of_digits, 1.0), "own": (own, 5.0), "right": (right, 5.0)}
        found |= {"into": ((d, self.units), 1.0), "out": ((self.units, d), 3.0), "scale": ((), 0.3)}
        return found | ({"bias": ((self.units,), 1.0)} if self.bias else {})

    @property
    def numbers(self) -> int:
        return sum(math.prod(shape) for shape, _ in self.shapes().values())


SIZES = [
    Size("line"),
    Size("ruler"),
    Size("table"),
    Size("line", units=2, activation="silu", bias=True),
    Size("table", units=2, activation="silu", bias=True),
    Size("arc"),
    Size("arc", "ms"),
    Size("arc", "mm"),
    Size("arc", "mm", units=2, activation="silu", bias=True, rate=0.03),
    Size("arc", "ms", units=3, activation="silu", bias=True, rate=0.03),
    Size("arc", "mm", units=3, activation="silu", bias=True, rate=0.03),
]


def name_of(size: Size) -> str:
    heads = "" if size.width == 1 else f"-{size.heads}"
    return f"{size.digits}{heads}-{size.activation}{size.units}{'b' if size.bias else ''}-{size.numbers}"


NAMED = {name_of(size): size for size in SIZES}
Weights = dict[str, Tensor]  # each with an axis `start` in front
Contexts = tuple[Tensor, Tensor]  # rows a, b, a′, b′, c′, c; how many of the 20,000 each stands for


def every_context() -> Contexts:
    """Lists the contexts with a ≤ b and a′ ≤ b′, each with its number of orders."""
    pairs = [(a, b) for a in range(DIGITS) for b in range(a, DIGITS)]
    rows, counts = [], []
    for a, b in pairs:
        for c, d in pairs:
            for carry in (0, 1):
                right = c + d + carry
                rows.append((a, b, c, d, right % DIGITS, (a + b + right // DIGITS) % DIGITS))
                counts.append((1 + (a != b)) * (1 + (c != d)))
    assert sum(counts) == CONTEXTS
    return torch.tensor(rows), torch.tensor(counts)


def draw_starts(size: Size, starts: int, seed: int) -> Weights:
    """Draws every number of every start from a normal distribution; lengths and rates from a lognormal one."""
    dice = torch.Generator().manual_seed(seed)
    drawn = {
        name: torch.randn(starts, *shape, generator=dice) * spread for name, (shape, spread) in size.shapes().items()
    }
    if size.digits in ("line", "table"):
        drawn["digits"] *= 3 if size.digits == "line" else 1
    elif size.digits == "ruler":
        drawn["digits"] = torch.stack((drawn["digits"][:, 0].mul(0.5).exp(), 3 * drawn["digits"][:, 1]), 1)
    else:  # a radius, an angle and a step; up to a third of a turn for all digits
        radius, angle, step = drawn["digits"].unbind(1)
        drawn["digits"] = torch.stack((2 * radius.mul(0.5).exp(), 2 * angle, 0.2 * step), 1)
    return drawn


def points(size: Size, digits: Tensor) -> Tensor:
    """Returns the points of all digits: start digit d."""
    number = torch.arange(DIGITS, device=digits.device)
    if size.digits == "table":
        return digits[..., None]
    if size.digits == "line":
        return (number + digits)[..., None]
    if size.digits == "ruler":
        return (digits[:, :1] * (number + digits[:, 1:]))[..., None]
    angle = digits[:, 1:2] + digits[:, 2:] * number
    return digits[:, :1, None] * torch.stack((angle.cos(), angle.sin()), -1)


def logits(size: Size, weights: Weights, rows: Tensor) -> Tensor:
    """Returns the logits: start row digit."""
    known = points(size, weights["digits"])
    a, b, c, d, written, _ = rows.T
    own = (known[:, a] + known[:, b]) / 2
    right = (known[:, c] + known[:, d] + known[:, written]) / 3

    def through(z: Tensor, weight: Tensor) -> Tensor:
        return z * weight[:, None, None] if weight.ndim == 1 else z @ weight

    x = known[:, written] + through(own, weights["own"]) + through(right, weights["right"])
    hidden = x @ weights["into"]
    if size.bias:
        hidden = hidden + weights["bias"][:, None]
    activate = torch.tanh if size.activation == "tanh" else getattr(F, size.activation)
    x = (x + activate(hidden) @ weights["out"]) * weights["scale"][:, None, None]
    product = x @ known.transpose(1, 2)
    return product if size.width > 1 else 2 * product - known.square().sum(-1)[:, None]  # −(x − point)², up to x²


@torch.no_grad()
def count_wrong(size: Size, weights: Weights, every: Contexts) -> tuple[Tensor, Tensor]:
    """Returns how many of the 20,000 contexts each start gets wrong, and its mean loss."""
    starts, wrong, loss = len(weights["digits"]), [], []
    for rows, counts in zip(*(part.split(max(1, PIECE // (starts * DIGITS))) for part in every), strict=True):
        found = logits(size, weights, rows)
        wrong.append(((found.argmax(-1) != rows[:, -1]) * counts).sum(1))
        each = F.cross_entropy(found.transpose(1, 2), rows[:, -1].expand(starts, -1), reduction="none")
        loss.append((each * counts).sum(1) / CONTEXTS)
    return torch.stack(wrong).sum(0), torch.stack(loss).sum(0)


def clip(weights: Weights) -> None:
    """Clips the gradient of every tensor of every start to a length of 1."""
    for weight in weights.values():
        assert weight.grad is not None
        length = weight.grad.flatten(1).norm(dim=1) if weight.ndim > 1 else weight.grad.abs()
        weight.grad /= length.clamp(min=1).view(-1, *[1] * (weight.ndim - 1))


def select(weights: Weights, which: Tensor) -> Weights:
    return {name: weight.detach()[which].clone().requires_grad_() for name, weight in weights.items()}


def train(
    size: Size, starts: int, seed: int, steps: int, batch: int, device: str
) -> Iterator[tuple[int, Weights, Tensor, Tensor, Tensor]]:
    """Trains all starts of a seed with Adam and a cosine schedule on contexts drawn anew at every step. After a quarter
    of the steps only the quarter of the starts with the lowest loss goes on. Yields ten times the step, the weights,
    which starts they are, their wrong contexts and their loss."""
    rows, counts = (part.to(device) for part in every_context())
    share, dice = (counts / CONTEXTS).cpu(), torch.Generator().manual_seed(seed)
    weights = {name: weight.to(device) for name, weight in draw_starts(size, starts, seed).items()}
    which = torch.arange(starts, device=device)
    weights = select(weights, which)
    optimizer = torch.optim.Adam([*weights.values()], lr=size.rate)
    for step in range(steps + 1):
        if step % max(1, steps // 10) == 0 or step == steps:
            wrong, loss = count_wrong(size, weights, (rows, counts))
            yield step, weights, which, wrong, loss
        if step == steps:
            return
        if step == steps // 4 and starts >= 16:
            best = count_wrong(size, weights, (rows, counts))[1].argsort()[: starts // 4]
            moments = [{**optimizer.state[weight]} for weight in weights.values()]
            weights, which = select(weights, best), which[best]
            optimizer = torch.optim.Adam([*weights.values()], lr=size.rate)
            for weight, moment in zip(weights.values(), moments, strict=True):
                kept = {name: moment[name][best].clone() for name in ("exp_avg", "exp_avg_sq")}
                optimizer.state[weight] = {"step": moment["step"], **kept}
        for group in optimizer.param_groups:
            group["lr"] = size.rate * 0.5 * (1 + math.cos(math.pi * step / steps))
        drawn = rows[torch.multinomial(share, batch, replacement=True, generator=dice).to(device)]
        found = logits(size, weights, drawn)
        loss = F.cross_entropy(found.flatten(0, 1), drawn[:, -1].repeat(len(which)), reduction="sum") / batch
        optimizer.zero_grad()
        loss.backward()
        clip(weights)
        optimizer.step()


def run(name: str, seed: int, args: argparse.Namespace) -> None:
    """Trains a population and writes its file, unless it is there."""
    path = args.out / f"{name}-starts{args.starts}-steps{args.steps}-seed{seed}.json"
    if path.exists():
        print(f"{path.name}: finished before")
        return
    size, began = NAMED[name], time.perf_counter()
    last = None
    for step, weights, which, wrong, loss in train(size, args.starts, seed, args.steps, args.batch, args.device):
        best = wrong.sort().values[:5].tolist()
        perfect = int((wrong == 0).sum())
        print(f"{name} seed {seed} step {step}: {perfect} of {len(which)} perfect, fewest wrong {best}", flush=True)
        last = weights, which, wrong, loss
    assert last is not None
    weights, which, wrong, loss = last
    best = int((CONTEXTS * wrong + loss.clamp(max=CONTEXTS - 1)).argmin())  # fewest wrong, then the lowest loss
    content = {
        "size": {**asdict(size), "name": name, "numbers": size.numbers},
        "settings": {key: getattr(args, key) for key in ("starts", "steps", "batch")} | {"seed": seed},
        "seconds": time.perf_counter() - began,
        "device": args.device,
        "went_on": which.tolist(),
        "wrong": wrong.tolist(),
        "perfect": int((wrong == 0).sum()),
        "fewest_wrong": int(wrong.min()),
        "best": {"start": int(which[best]), "wrong": int(wrong[best]), "loss": float(loss[best])},
        "weights": {key: weight[best].tolist() for key, weight in weights.items()},
    }
    args.out.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(content))
    part.replace(path)


def finished(out: Path) -> list[dict]:
    """Returns the finished populations, the smallest adders first."""
    found = [json.loads(path.read_text()) for path in sorted(out.glob("*-seed*.json"))]
    return sorted(found, key=lambda each: (each["size"]["numbers"], each["size"]["name"], each["settings"]["seed"]))


def print_table(out: Path) -> None:
    """Prints one line for each population."""
    print("| numbers | adder | seed | starts | steps | perfect | fewest wrong | seconds |")
    print("|--:|---|--:|--:|--:|--:|--:|--:|")
    for each in finished(out):
        size, settings = each["size"], each["settings"]
        cells = size["numbers"], f"`{size['name']}`", settings["seed"], settings["starts"], settings["steps"]
        print("|", " | ".join(map(str, (*cells, each["perfect"], each["fewest_wrong"], round(each["seconds"])))), "|")


def export(name: str, seed: int, out: Path, folder: Path) -> None:
    """Writes the best start of a finished population as a run folder."""
    from safetensors.torch import save

    from headway.machine import environment
    from headway.models import build_model
    from headway.runs import disk
    from headway.runs.config import ModelConfig, RunConfig, TrainingConfig
    from headway.runs.folder import RunFolder
    from headway.tasks import create_task, options_of

    wanted = [each for each in finished(out) if (each["size"]["name"], each["settings"]["seed"]) == (name, seed)]
    if not wanted:
        raise SystemExit(f"{out} has no finished population of {name} with seed {seed}; train it first")
    found, size = wanted[0], NAMED[name]
    if (size.width, size.heads, size.units, size.activation, size.bias) != (1, "ss", 1, "tanh", False):
        raise SystemExit(f"Headway has no model like {name}; it has line-tanh1-6 and table-tanh1-15")
    settings, weights = found["settings"], {key: torch.tensor(each) for key, each in found["weights"].items()}
    task = create_task("addition", {"digits": 10, "shortest": 1, "first": "least"})
    source, answer = task.source_tokens(10), task.answer_tokens(10)
    model = ModelConfig(
        "averaging", task.vocabulary, source + answer, answer, "one-each", d_model=1, heads=2, d_ff=1, layers=1,
        index="coupled", start=task.start, digits=DIGITS, least_first=True, points=size.digits,  # pyright: ignore
    )  # fmt: skip
    steps, batch = settings["steps"], settings["batch"]
    training = TrainingConfig(steps, batch, "adam", size.rate, weight_decay=0.0, warmup=0)
    config = RunConfig("addition", model, training, settings["seed"], options_of(task))
    built = build_model(config.model)
    names = {"tokens.table" if size.digits == "table" else "tokens.shift": "digits", "nearest.scale": "scale"}
    names |= {"blocks.0.feed.into.weight": "into", "blocks.0.feed.out.weight": "out"}
    state = {name: weights[key].reshape(built.state_dict()[name].shape) for name, key in names.items()}
    state["blocks.0.attentions.self.out.weight"] = torch.stack((weights["own"], weights["right"]))[None]
    built.load_state_dict(state)
    command = (
        f"python recipes/smallest_adder.py --sizes {name} --seeds {settings['seed']} --starts {settings['starts']}"
    )
    command += f" --steps {steps} --batch {batch}; start {found['best']['start']}"
    run = RunFolder(folder)
    run.begin(config, {**environment(torch.device("cpu")), "command": command}, resume=False)
    log = {"step": steps, "loss": found["best"]["loss"]}
    disk.write_bytes(run.log, (json.dumps(log) + "\n").encode())
    weights = save({key: each.contiguous() for key, each in built.state_dict().items()})
    run.finish(weights, steps, found["seconds"], size.numbers, log["loss"], perfect=None)
    print(f"{folder}: start {found['best']['start']}, {found['best']['wrong']} of {CONTEXTS:,} contexts wrong")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", default="all", help=f"all, or some of {', '.join(NAMED)}")
    parser.add_argument("--starts", type=int, default=512)
    parser.add_argument("--seeds", default="0", help="separated by commas")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--batch", type=int, default=64, help="contexts in a step")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--table", action="store_true", help="only print what is finished")
    parser.add_argument("--export", help="a finished size to write as a run folder", metavar="SIZE")
    parser.add_argument("--to", type=Path, help="that folder", metavar="FOLDER")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.export:
        return export(args.export, int(args.seeds), args.out, args.to)
    if not args.table:
        for name in NAMED if args.sizes == "all" else args.sizes.split(","):
            for seed in map(int, args.seeds.split(",")):
                run(name, seed, args)
    return print_table(args.out)


if __name__ == "__main__":
    main()
