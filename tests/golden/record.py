"""Records the output of commands, so that later versions can be compared with it.

    python tests/golden/record.py [--out DIR] [SCENE …]    # with whatever headway is imported

A scene is a list of commands that run one after another in a folder of their own, where they find `runs/` and the
models below. Its file holds what every command printed, without what depends on the machine, and the weights of what
it trained. All of it, `runs/` too, was made by commit e8d7800. `tests/test_golden.py` runs the same commands on
today's code and compares. What a version changes on purpose is recorded anew, and the change says so.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import os
import platform
import re
import shlex
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RUNS = HERE / "runs"
SMALL = "--d-model 32 --d-ff 64 --heads 2 --layers 1 --decoder-layers 1 --batch 128 --digits 2"
"""Flags of small adders of two digits."""
SORTER = "--train-lengths 2-5 --lengths 6,10 --option values=10 --batch 64 --d-model 32 --heads 2 --d-ff 64 --layers 1"
SORTERS = f"lengths sortedness --positions rope,none --track tuned --rates 1 {SORTER} --steps 1500 --seeds 2"
SUMS = (
    "lengths addition --positions learned,rope --track tuned --rates 1 --train-lengths 1-2 --lengths 3,4 --seeds 1 "
    "--layers 1 --d-model 32 --heads 4 --d-ff 64 --batch 64 --steps 2000"
)
ROPE = "runs/sorters/rope-max/rate-1/seed-1"
FEW = "--examples 600 --max-drop 0.05"

MAKE_RUNS = (
    f"train addition --population 2 {SMALL} --steps 1200 --out runs/population",
    f"{SORTERS} --out runs/sorters",
    f"{SUMS} --out runs/sums",
)
"""The runs in `runs/`; studies start from their weights, because training differs in its last bits between CPUs."""

SCENES: dict[str, tuple[str, ...]] = {
    "training": (
        "train addition --seed 0 --steps 50 --out trained/addition",
        f"train addition --population 2 {SMALL} --steps 20 --out trained/population",
        "train sortedness --positions rope --d-model 16 --d-ff 32 --heads 2 --layers 2 --steps 20 --out trained/sorter",
        f"lengths sortedness --positions alibi --track tuned --rates 1 {SORTER} --steps 20 --out trained/lengths",
    ),
    "run": (
        "evaluate runs/population/seed-0 --all --check-greedy 50",
        "evaluate runs/population/seed-0 --examples 200 --seed 3",
        "evaluate pretrained:adder --examples 500 --check-greedy 50",
        f"heads {ROPE} {FEW}",
        "heads runs/population/seed-1 --screen 2 --examples 100",
        f"prune {ROPE} {FEW} --out pruned",
        "evaluate pruned --examples 500",
        "prune runs/population/seed-1 --heads encoder.0.self.1 decoder.0.self.0 --out smaller",
        "evaluate smaller --all",
        "doctor runs/population/seed-0",
        "add 999 27 --subject pretrained:adder",
        f"report {ROPE}",
    ),
    "population": (
        "evaluate runs/population --all",
        f"heads runs/population {FEW} --kinds",
        "doctor runs/population",
        "list runs --root runs",
        "list runs --root runs --where 'exact_match>0.9 or positions=rope'",
        "compare runs/population --by seed",
        "compare runs --by positions",
        "compare runs --by task,positions --metric final_loss,heads_together",
    ),
    "lengths": (
        f"{SORTERS} --out runs/sorters",
        f"{SUMS} --out runs/sums",
        "compare runs --by positions --metric reach,in_range",
    ),
    "certify": ("certify pretrained:certified-sorter", "certify runs/population/seed-0", "add 123456789 987654321"),
    "certified-adder": ("certify pretrained:certified-adder",),
    "lists": ("list tasks", "list positions", "list checks"),
    "huggingface": (
        "heads induction --examples induction/prompts.jsonl --max-drop 0.05 --out study",
        "prune induction --examples induction/prompts.jsonl --heads L0H1 L1H0 --out pruned",
        "doctor induction --examples induction/prompts.jsonl",
        "heads llama --examples llama/prompts.jsonl --max-loss-increase 0.05 --out study-llama",
        "heads llama --examples llama/prompts.jsonl --screen 2",
    ),
    "module": (
        "heads own_model:build --max-drop 0.1 --examples 300 --out study",
        "doctor own_model:build",
        "doctor own_model.py:build",
    ),
    "ablations": (
        f"heads runs/population/seed-0 {FEW} --ablation mean --budget 0 --out mean",
        f"heads runs/population/seed-0 {FEW} --ablation resample --budget 0 --out resample",
        "heads runs/population/seed-0 --examples 600 --max-loss-increase 0.2 --beam 2 --out loss",
        f"prune runs/population/seed-0 {FEW} --out pruned",
        "evaluate pruned --all",
    ),
    "adder": ("doctor pretrained:adder", "heads pretrained:adder --examples 1000 --budget 0 --out study"),
}
SLOW = ("certified-adder", "ablations", "adder")
LEFT_OUT = {"seconds", "speedup", "examples_per_second", "started", "environment", "bytes"}
"""Keys of times and of values that depend on them."""


def run_scene(name: str) -> dict[str, Any]:
    """Returns the output of the commands of a scene, run in a new folder."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            shutil.copytree(RUNS, "runs")
            if name == "huggingface":
                shutil.copytree(HERE.parents[1] / "recipes" / "induction", "induction")
                save_llama(Path("llama"))
            if name == "module":
                shutil.copy(HERE / "own_model.py", "own_model.py")
            commands = [run_command(words) for words in SCENES[name]]
            return {"machine": machine(), "commands": commands, "weights": weights_of(Path("trained"))}
        finally:
            os.chdir(before)


def run_command(words: str) -> dict[str, Any]:
    from headway.cli import main

    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        status = main(
            [*shlex.split(words), "--json", "--quiet", *([] if words.startswith("list") else ["--device", "cpu"])]
        )
    return {"command": words, "status": status, "output": normal(json.loads(shown.getvalue() or "null"))}


def normal(value: Any) -> Any:
    """Removes times and this machine's folders from a value."""
    import headway

    match value:
        case dict():
            kept = {key: each for key, each in value.items() if key not in LEFT_OUT and not key.endswith("_seconds")}
            return {key: normal(each) for key, each in kept.items()}
        case list():
            return [normal(each) for each in value]
        case str():
            return value.replace(f"{Path.cwd()}/", "").replace(str(Path(headway.__file__).parent), "HEADWAY")
    return value


def machine() -> dict[str, str]:
    """Describes what the last bits of trained weights depend on."""
    import torch

    cpu = Path("/proc/cpuinfo")
    vendor = re.search(r"vendor_id\s*: (\w+)", cpu.read_text()) if cpu.exists() else None
    return {
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "vendor": vendor[1] if vendor else platform.machine(),
        "torch": torch.__version__,
    }


def weights_of(folder: Path) -> dict[str, Any]:
    """Returns the hash of every weights file, and the norms of its tensors."""
    import torch
    from safetensors.torch import load_file

    found = {}
    for path in sorted(folder.rglob("model.safetensors")):
        norms = {name: torch.linalg.vector_norm(each.double()).item() for name, each in load_file(path).items()}
        found[str(path)] = {
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
            "norms": dict(sorted(norms.items())),
        }
    return found


def save_llama(folder: Path) -> None:
    """Saves a tiny Llama with grouped heads, and token sequences to evaluate it on."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=24, max_position_embeddings=32, bos_token_id=1, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    model, dice = LlamaForCausalLM(config), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.rand(parameter.shape, generator=dice) - 0.5)
    model.save_pretrained(folder)
    lines = torch.randint(3, 40, (120, 12), generator=dice).tolist()
    texts = [json.dumps({"tokens": line[: 8 + number % 5]}) for number, line in enumerate(lines)]
    (folder / "prompts.jsonl").write_text("\n".join(texts) + "\n")


def make_runs() -> None:
    """Trains the runs in `runs/`, and keeps only the files that training writes."""
    from headway.cli import main

    before = Path.cwd()
    os.chdir(HERE)
    for words in MAKE_RUNS:
        sys.argv = ["headway", *shlex.split(words)]  # which environment.json repeats
        assert main([*sys.argv[1:], "--quiet", "--device", "cpu"]) == 0
    os.chdir(before)
    kept = {"config.json", "environment.json", "log.jsonl", "model.safetensors", "training.json"}
    for path in RUNS.rglob("*"):
        if path.is_file() and path.name not in kept:
            path.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description="Records what commands say.")
    parser.add_argument("scenes", nargs="*", help=", ".join(SCENES))
    parser.add_argument("--out", type=Path, default=HERE, help="where the files go")
    asked = parser.parse_args()
    os.environ |= {"HEADWAY_THREADS": "1", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}
    sys.modules["matplotlib"] = None  # pyright: ignore[reportArgumentType]  # pictures take half of the time
    if not RUNS.exists():
        make_runs()
    for name in asked.scenes or SCENES:
        (asked.out / f"{name}.json").write_text(json.dumps(run_scene(name), indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
