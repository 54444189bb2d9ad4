"""Runs every recipe of this folder, one after the other, each in a process of its own: `python recipes/real`.

A model whose wheel cannot be had is said in one line and left out, and so is one whose licence must be confirmed first.
Ends with status 1 where a model was loaded and failed a check.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

MODELS = ("smollm2", "whisper_tiny", "rxn_albert", "minilm", "gemma3", "iglm_small")
EXPECTED = {"iglm_small": 1}
"""the status of a recipe that refuses until its licence is confirmed"""


def main() -> int:
    failed = []
    for name in MODELS:
        print(f"{name}:", flush=True)
        status = subprocess.run([sys.executable, str(Path(__file__).with_name(f"{name}.py"))]).returncode
        if status not in (0, 3, EXPECTED.get(name, 0)):
            failed.append(name)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
