"""RXNMapper's ALBERT, 12 passes of one layer of 8 heads, trained on reactions, from the wheel rxnmapper.

    python recipes/real/rxn_albert.py   # loads it and proves its heads

A module runs twelve times in a pass, so it is twelve sites. The package reads which atom of a product comes from which
atom of a reactant off the attention of one head; by its default that is head 5 of layer 10.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from checking import check
from wheels import FOLDER, Wheel, fetch, read_json, read_pickle, run

INSIDE = "rxnmapper/models/transformers/albert_heads_8_uspto_all_1310k/"
WHEEL = Wheel(
    "rxnmapper",
    "0.4.3",
    "27876a4286881aafd286fd6f24a6a56a4ca6ba22d68e035a0ea120106c541ba5",
    {
        f"{INSIDE}pytorch_model.bin": "8541f3f500dae71abe678d546bd035ca946e2d1c819f6b2cf41a97faedd7e6a2",
        f"{INSIDE}config.json": "ea0f3144af1d13a5d5928cff01abd8e7c14ab831ff7b6d73a14d4162864a876f",
        f"{INSIDE}vocab.txt": "399868a653e85549ce150af4a1f6cd2776240c6a3d951ced2120565f00f027fd",
    },
    "MIT (METADATA, LICENSE)",
)
MAPPING_HEAD = (10, 5)
"""layer and head, counted from 0, as the package counts"""
PIECES = re.compile(r"\[[^\]]*\]|Br|Cl|>>|%\d\d|.")
"""the tokens of SMILES: an atom in brackets, an element of two letters, the arrow, a ring number, or one character"""


class Smiles:
    """Turns reactions into the model's tokens."""

    def __init__(self, vocabulary: Path) -> None:
        self.words = vocabulary.read_text(encoding="utf-8").split("\n")
        self.numbers = {word: number for number, word in enumerate(self.words)}

    @staticmethod
    def split(reaction: str) -> list[str]:
        return PIECES.findall(reaction)

    def __call__(self, reaction: str) -> list[int]:
        return [self.numbers[piece] for piece in ("[CLS]", *self.split(reaction), "[SEP]")]

    @property
    def mask(self) -> int:
        return self.numbers["[MASK]"]


def load(folder: Path = FOLDER) -> tuple[Any, Smiles]:
    """Loads the model, with a fresh config of transformers, and its tokens."""
    from transformers import AlbertConfig, AlbertForMaskedLM

    place = fetch(WHEEL, folder)
    given, known = read_json(place / "config.json"), AlbertConfig().to_dict()
    model = AlbertForMaskedLM(AlbertConfig(**{name: value for name, value in given.items() if name in known}))
    weights = {
        name: weight for name, weight in read_pickle(place / "pytorch_model.bin").items() if "pooler" not in name
    }
    lost = model.load_state_dict(weights, strict=False)
    assert not lost.unexpected_keys, lost.unexpected_keys
    assert {name.rpartition(".")[0] for name in lost.missing_keys} <= {"predictions.decoder"}, lost.missing_keys
    return model.eval(), Smiles(place / "vocab.txt")


def main() -> None:
    model, smiles = load()
    tokens = torch.tensor([smiles("CC(C)S.Fc1cccnc1F>>CC(C)Sc1ncccc1F")])
    tokens[0, 4] = smiles.mask
    print(check(model, lambda: model(input_ids=tokens)))


if __name__ == "__main__":
    run(main)
