"""Decodes long texts with a cache of windows beside the full cache: memory and tokens a second, in one process.

    python recipes/window_cache.py --size small                     # a small model, on a CPU, in a minute
    python recipes/window_cache.py --size 1.5B --device cuda        # 1.5 billion parameters, 32,768 tokens, bfloat16

Weights are random: what is measured is memory and time, not answers. Queries are grouped; every other key-value group
sees everything, the others 4 first tokens and the most recent ones, so at these lengths the cache is about half. Three
caches decode after the same prompt, in turns, and the fastest round of each counts: transformers' DynamicCache, which
copies itself for every token; a cache of Headway's that keeps everything, in place; and the cache of windows. Beside
the sizes predicted from the budget stand those measured: the bytes of the stored tensors on a CPU, the growth of the
allocated memory on a GPU. First, a small model's logits are compared with those of masked attention.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, replace
from pathlib import Path

from headway.bench.windows import SIZES, compare_caches, equals_masked, make_model
from headway.machine import choose_device, environment
from headway.runs import disk


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--length", type=int, help="tokens of the prompt")
    parser.add_argument("--batch", type=int, help="texts at once")
    parser.add_argument("--new", type=int, help="tokens to write")
    parser.add_argument("--recent", type=int, help="tokens that narrow groups see")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", help="a file for the numbers")
    given = parser.parse_args()
    device, size = choose_device(given.device), SIZES[given.size]
    changed = {name: getattr(given, name) for name in ("length", "batch", "new", "recent")}
    size = replace(size, **{name: value for name, value in changed.items() if value is not None})
    same, difference = equals_masked(make_model(SIZES["small"], device, given.seed), SIZES["small"])
    print(f"a small model with windows {'equals' if same else 'DIFFERS FROM'} the masked model ({difference})")
    model = make_model(size, device, given.seed)
    compared = compare_caches(model, size, device)
    found = compared.to_json()
    parameters = sum(each.numel() for each in model.parameters())
    print(f"{parameters:,} parameters, {size.dtype}, {size.batch} texts of {size.length:,} tokens, {size.new} written")
    print(f"predicted: {found['predicted_bytes']:,} of {found['full_bytes']:,} bytes ({found['cache_share']:.1%})")
    print(f"{'cache':12} {'bytes':>16} {'prefill s':>10} {'tokens/s':>10}")
    for name in ("dynamic", "ours_full", "windows"):
        row = getattr(compared, name)
        print(f"{name:12} {row.bytes:16,} {row.prefill_seconds:10.2f} {row.tokens_per_second:10.1f}")
    print(
        f"windows: predicted over measured bytes {found['predicted_over_measured']:.4f}; decoding "
        f"x{found['speedup_over_dynamic']:.2f} of dynamic, x{found['speedup_over_ours_full']:.2f} of ours_full"
    )
    if given.out:
        about = {"same_result": same, "parameters": parameters, "size": asdict(size)}
        disk.write_json(Path(given.out), {**about, **found, "environment": environment(device)})


if __name__ == "__main__":
    main()
