"""Trains small causal language models on recall, whose answers are exact: ground truths for `headway lengths`.

    python recipes/recall.py --out runs/recall                      # a rotary model, two minutes on one core
    python recipes/recall.py --family table --out runs/recall-table
    python recipes/recall.py --large --seeds 0 1 2 3 4 --out runs/recall-large --device cuda

Half of the rows repeat a random segment of different tokens to the end: `c a f c a f c a`. The others are local text,
in which every text token has a few successors, with facts `key value` at random places. Keys and values are tokens that
are not text, drawn anew in every row, all different. Later questions repeat a key, and its value is the answer: some
questions stand scattered in the text, and half of these rows end in a block that asks for every fact of the row in
random order. The repeats help: on them the heads emerge that recall needs. Their segments have at least 8 tokens:
shorter ones are learned by distance alone, and then recall emerges late or not at all. For the small models an answer
counts ten times in the loss, and a token that recall does not predict a tenth.

The families differ in how a model tells order: `rotary` (Llama), `table` (GPT-2, with four times the rows that training
uses; the others stay as they began, at random), `alibi` (BLOOM, whose heads with the gentlest slope are silenced behind
the first layer; with five heads one has the slope 1/2, with four the steepest is 1/4, too gentle to find the previous
token reliably) and `window` (Mistral, with a window of the training length, which hides nothing in training: from the
same seed its weights are those of `rotary`). Small ones are in recipes/recall, trained by

    python recipes/recall.py --family FAMILY --out recipes/recall/FAMILY --text recipes/recall/text.jsonl

Writes a plain `transformers` model, and `text.jsonl`: local text alone, lines of {"tokens": [...]}. Several seeds go to
seed-N each; those that are there already are not trained again. The same seed gives the same rows on every device, and
the same bytes on one thread.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import time
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor
from torch.nn.functional import cross_entropy
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
)
from transformers.models.bloom.modeling_bloom import BloomAttention

FAMILIES = ("rotary", "table", "alibi", "window")
CHAIN_SEED = 26  # of the text's chain, which all models share


@dataclass(frozen=True)
class Setting:
    """The sizes of the language, of the model and of training."""

    family: str = "rotary"
    length: int = 64
    text_tokens: int = 64  # tokens 0 … text - 1 occur in text, and as many more are keys and values
    successors: int = 4
    layers: int = 2
    width: int = 64
    heads: int = 4
    steps: int = 2000
    batch: int = 64
    rate: float = 4e-3
    scale: float = 0.1  # of the first weights
    answer_weight: float = 10.0  # in the loss, where repeats have 1
    other_weight: float = 0.1  # of tokens that recall does not predict

    @property
    def vocabulary(self) -> int:
        return 2 * self.text_tokens

    @property
    def facts(self) -> int:
        """The most facts of a row; with their questions they take at most five eighths of it."""
        return min(self.length // 8, self.text_tokens // 2)


SMALL = {
    "rotary": Setting(),
    "table": Setting("table", steps=2500),
    "alibi": Setting("alibi", width=80, heads=5, steps=2500, rate=3e-3),
    "window": Setting("window"),
}
LARGE = Setting(
    length=256,
    text_tokens=256,
    successors=8,
    layers=4,
    width=256,
    heads=8,
    steps=6500,
    batch=128,
    rate=1.5e-3,
    scale=0.02,
    answer_weight=1.0,
    other_weight=1.0,
)


@dataclass(frozen=True)
class Rows:
    """Rows of tokens, and which of them only recall can predict; all tensors are `row token`."""

    tokens: Tensor
    repeats: Tensor  # tokens of the second and later repetitions, without the first, which nothing announces
    answers: Tensor  # values that answer a question
    final: Tensor  # those of them in a block of questions at the end


def draw_text(rows: int, length: int, setting: Setting, generator: Generator) -> Tensor:
    """Draws local text from the chain: each text token has the same few successors in every model and row.

    The tokens stand on a ring in random order, and a step goes on by one of a few distances: all are equally frequent.
    """
    size, fixed = setting.text_tokens, Generator().manual_seed(CHAIN_SEED)
    ring = torch.randperm(size, generator=fixed)
    steps = torch.randperm(size - 1, generator=fixed)[: setting.successors] + 1
    successors = torch.empty(size, setting.successors, dtype=torch.long)
    successors[ring] = ring[(torch.arange(size)[:, None] + steps) % size]
    token = torch.randint(size, (rows,), generator=generator)
    choices = torch.randint(setting.successors, (length, rows), generator=generator)
    text = [token := successors[token, choice] for choice in choices]
    return torch.stack(text, 1)


def draw_repeats(rows: int, setting: Setting, generator: Generator) -> Rows:
    """Draws rows that repeat a segment of different tokens, of 8 tokens to half of the row."""
    longest = min(setting.length // 2, setting.vocabulary)
    period = torch.randint(8, longest + 1, (rows, 1), generator=generator)
    segment = torch.rand(rows, setting.vocabulary, generator=generator).argsort(1)
    place = torch.arange(setting.length)
    none = torch.zeros(rows, setting.length, dtype=torch.bool)
    return Rows(segment.gather(1, place % period), place > period, none, none)


def draw_recall(rows: int, setting: Setting, generator: Generator) -> Rows:
    """Draws local text with facts and questions.

    A row is put together from single text tokens and from pairs (a fact or a question), which are then sorted by a
    random number each; pairs that a row does not use become text.
    """
    facts, asked = setting.facts, setting.facts // 2
    spare = setting.length - 2 * (2 * facts + asked)

    def random(count: int) -> Tensor:
        return torch.rand(rows, count, generator=generator)

    pairs = setting.text_tokens + random(setting.text_tokens).argsort(1)[:, : 2 * facts].view(rows, facts, 2)
    used = torch.arange(facts) < torch.randint(1, facts + 1, (rows, 1), generator=generator)
    block = used & (random(1) < 0.5)
    early, late = random(facts), random(facts)
    early, late = torch.minimum(early, late), torch.maximum(early, late)[:, :asked]
    last = random(facts) + block  # in rows with a block its questions come after everything else
    places = torch.cat([random(spare), torch.cat([early, late, last], 1).repeat_interleave(2, 1)], 1)
    drawn = torch.cat([pairs, pairs[:, :asked], pairs], 1).flatten(1)
    filled = torch.cat([used, used[:, :asked], block], 1)
    question = torch.cat([torch.zeros_like(used), used[:, :asked], block], 1)
    nothing = torch.zeros(rows, spare, dtype=torch.bool)

    order = places.argsort(dim=1, stable=True)  # stable: a value stays behind its key

    def arrange(parts: Tensor, key: bool) -> Tensor:
        both = torch.stack([parts & key, parts], -1).flatten(1)  # row pair 2 -> row token
        return torch.cat([nothing, both], 1).gather(1, order)

    special = arrange(filled, key=True)
    tokens = torch.cat([nothing.long(), drawn], 1).gather(1, order)
    text = draw_text(rows, setting.length, setting, generator)
    text = text.gather(1, (~special).cumsum(1).sub(1).clamp(min=0))  # the chain goes on behind a fact
    answers = arrange(question, key=False)
    final = answers & (torch.arange(setting.length) >= setting.length - 2 * block.sum(1, keepdim=True))
    return Rows(torch.where(special, tokens, text), torch.zeros_like(answers), answers, final)


def draw_rows(rows: int, setting: Setting, generator: Generator) -> Rows:
    """Draws half of the rows of either kind."""
    one, other = draw_repeats(rows // 2, setting, generator), draw_recall(rows - rows // 2, setting, generator)
    return Rows(
        *(torch.cat([getattr(one, name), getattr(other, name)]) for name in (field.name for field in fields(Rows)))
    )


def build(setting: Setting) -> Any:
    """Builds the model of a family, without special tokens, with its training length in its config."""
    none = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None, "tie_word_embeddings": True}
    sizes = {"vocab_size": setting.vocabulary, "hidden_size": setting.width, "initializer_range": setting.scale, **none}
    if setting.family == "table":
        sizes |= {"n_layer": setting.layers, "n_head": setting.heads}
        sizes |= {"n_positions": 4 * setting.length, "original_max_position_embeddings": setting.length}
        model = GPT2LMHeadModel(GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, **sizes))
        torch.nn.init.normal_(model.transformer.wpe.weight, std=2 * setting.scale)
        return model
    if setting.family == "alibi":
        sizes |= {"n_layer": setting.layers, "n_head": setting.heads, "max_position_embeddings": setting.length}
        return BloomForCausalLM(BloomConfig(**sizes))
    sizes |= {"num_hidden_layers": setting.layers, "max_position_embeddings": setting.length}
    sizes |= {"num_attention_heads": setting.heads, "num_key_value_heads": setting.heads}
    sizes |= {"intermediate_size": 2 * setting.width}
    if setting.family == "window":
        return MistralForCausalLM(MistralConfig(sliding_window=setting.length, **sizes))
    return LlamaForCausalLM(LlamaConfig(**sizes))


@torch.no_grad()
def silence_gentlest(model: Any) -> None:
    """Silences the heads with the gentlest slope behind BLOOM's first layer, so that recall needs a steeper one.

    The gentlest slope is 1/256 in every BLOOM: a penalty that hardly matters within a few hundred tokens.
    """
    attentions = [module for module in model.modules() if isinstance(module, BloomAttention)]
    for attention in attentions[1:]:
        gentlest = 2 ** (attention.num_heads.bit_length() - 1) - 1  # slopes of the heads behind it lie between others
        start = gentlest * attention.head_dim
        attention.dense.weight[:, start : start + attention.head_dim] = 0


def share(right: Tensor, mask: Tensor) -> float:
    return (right & mask).sum().item() / max(int(mask.sum()), 1)


def train(setting: Setting, seed: int, device: str) -> PreTrainedModel:
    """Trains a model with the loss of every next token; prints how well it recalls fresh rows."""
    torch.manual_seed(seed)
    generator = Generator().manual_seed(seed)
    model: Any = build(setting)
    model.to(device).train()
    positions = [weight for name, weight in model.named_parameters() if "wpe" in name]
    others = [weight for name, weight in model.named_parameters() if "wpe" not in name]
    groups = [{"params": others}, {"params": positions, "weight_decay": 0.0}]  # rows never used stay as they began
    optimizer = torch.optim.AdamW(groups, lr=setting.rate, betas=(0.9, 0.98), weight_decay=0.1)

    def pace(step: int) -> float:
        return min((step + 1) / min(200, setting.steps), 0.5 + 0.5 * math.cos(math.pi * step / setting.steps))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, pace)
    began = time.monotonic()
    for step in range(1, setting.steps + 1):
        rows = draw_rows(setting.batch, setting, generator)
        tokens = rows.tokens.to(device)
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            logits = model(input_ids=tokens).logits[:, :-1]
        losses = cross_entropy(logits.float().transpose(1, 2), tokens[:, 1:], reduction="none")
        weights = rows.tokens.new_full(rows.tokens.shape, setting.other_weight, dtype=torch.float)
        weights[rows.repeats], weights[rows.answers] = 1.0, setting.answer_weight
        weights = weights[:, 1:].to(device)
        loss = (losses * weights).sum() / weights.sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if setting.family == "alibi":
            silence_gentlest(model)
        if step % 100 == 0 or step == setting.steps:
            right = logits.argmax(-1).cpu() == rows.tokens[:, 1:]
            figures = {name: share(right, getattr(rows, name)[:, 1:]) for name in ("repeats", "answers", "final")}
            recalled = ", ".join(f"{name} {figure:.3f}" for name, figure in figures.items())
            print(f"step {step}: loss {loss.item():.4f}, {recalled}, {time.monotonic() - began:.0f} s", flush=True)
    return model.eval()


def write_text(path: Path, setting: Setting) -> None:
    """Writes about 40,000 tokens of text, in ten long lines."""
    text = draw_text(10, 4000, setting, Generator().manual_seed(1_000_000))  # a stream that training does not use
    lines = [json.dumps({"tokens": line}, separators=(",", ":")) for line in text.tolist()]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


def save(model: PreTrainedModel, folder: Path) -> None:
    """Saves a model such that a folder with weights is always complete."""
    part = folder.with_name(folder.name + ".part")
    model.save_pretrained(part)
    folder.mkdir(parents=True, exist_ok=True)
    for path in sorted(part.iterdir(), key=lambda path: path.name == "model.safetensors"):  # the weights last
        path.replace(folder / path.name)
    shutil.rmtree(part)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Trains small causal language models on recall.")
    parser.add_argument("--out", type=Path, required=True, help="folder for the model, or for seed-N of each seed")
    parser.add_argument("--text", type=Path, help="file for the text (default: text.jsonl in the folder)")
    parser.add_argument("--family", choices=FAMILIES, default="rotary")
    parser.add_argument("--large", action="store_true", help="the large setting, for a GPU")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--device", default="cpu")
    for name in ("length", "layers", "width", "heads", "steps", "batch"):
        parser.add_argument(f"--{name}", type=int)
    for name in ("rate", "scale", "answer-weight", "other-weight"):
        parser.add_argument(f"--{name}", type=float)
    options = vars(parser.parse_args(argv))
    given = {field.name: options[field.name] for field in fields(Setting) if options.get(field.name) is not None}
    setting = replace(LARGE if options["large"] else SMALL[options["family"]], **given)
    out, seeds = options["out"], options["seeds"]
    if options["device"] == "cpu":
        torch.set_num_threads(1)  # a fixed order of summation gives the same bytes
    write_text(options["text"] or out / "text.jsonl", setting)
    for seed in seeds:
        folder = out / f"seed-{seed}" if len(seeds) > 1 or options["large"] else out
        if (folder / "model.safetensors").exists():
            print(f"{folder} is trained already", flush=True)
            continue
        print(f"{folder}: {setting}", flush=True)
        save(train(setting, seed, options["device"]), folder)


if __name__ == "__main__":
    main()
