"""A small language model whose heads are known: it is trained for induction, and for nothing else.

    python recipes/induction.py --out runs/induction    # half a minute on one core

Its lines are random words of 8 to 24 different tokens, said again and again: `c a f c a f c a`. What comes next can be
known from the second time on, and only by looking up what followed the same token before. Two heads do that: one in
layer 0 tells each token which token it follows, one in layer 1 finds the token that follows one like itself, and copies
it. Heads that write cost something here, so that few do: without that price the same work is spread over several.

Writes a plain `transformers` model and `prompts.jsonl`: lines that stop somewhere after the first time, and the next
token. The same seed gives the same bytes on one thread.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from torch import Generator, Tensor
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.models.gpt2.modeling_gpt2 import GPT2Attention

TOKENS, LENGTH, PERIODS = 64, 48, (8, 24)
PRICE = 0.05  # of a head that writes


def lines(count: int, dice: Generator) -> tuple[Tensor, Tensor]:
    """Words said again and again, and how long each word is."""
    period = torch.randint(PERIODS[0], PERIODS[1] + 1, (count, 1), generator=dice)
    word = torch.rand(count, TOKENS, generator=dice).argsort(1)  # line token: no token twice
    return word.gather(1, torch.arange(LENGTH) % period), period


def writing(attention: GPT2Attention) -> Tensor:
    """How much the heads write: norms of their value and output weights, summed, so that heads fall silent whole."""
    _, _, value = attention.c_attn.weight.view(-1, 3, attention.num_heads, attention.head_dim).unbind(1)
    output = attention.c_proj.weight.view(attention.num_heads, attention.head_dim, -1)
    return (value.square().sum((0, 2)) + output.square().sum((1, 2)) + 1e-8).sqrt().sum()


def train(seed: int, steps: int) -> GPT2LMHeadModel:
    torch.manual_seed(seed)
    dice = Generator().manual_seed(seed)
    config = GPT2Config(vocab_size=TOKENS, n_positions=64, n_embd=64, n_layer=2, n_head=4, n_inner=64)
    config.resid_pdrop, config.embd_pdrop, config.attn_pdrop, config.initializer_range = 0.0, 0.0, 0.0, 0.1
    config.bos_token_id = config.eos_token_id = None  # every token is a letter
    model = GPT2LMHeadModel(config)
    model.loss_type = "ForCausalLM"  # what it would guess, with a complaint
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, betas=(0.9, 0.98), weight_decay=0.1)
    pace = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min((step + 1) / 50, 1 - step / steps))
    for step in range(1, steps + 1):
        tokens, period = lines(64, dice)
        known = torch.where(torch.arange(LENGTH) > period, tokens, -100)  # the rest is chance: no loss
        loss = model(input_ids=tokens, labels=known).loss
        price = PRICE * sum(writing(part) for part in model.modules() if isinstance(part, GPT2Attention))
        optimizer.zero_grad()
        (loss + price).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        pace.step()
        if step % 100 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)
    return model.eval()


def prompts(count: int, seed: int) -> list[dict[str, list[int]]]:
    """Lines cut somewhere in the second time of their word, and the token that comes next."""
    dice = Generator().manual_seed(1_000_000 + seed)  # none that training drew
    tokens, period = lines(count, dice)
    cut = period + 1 + (torch.rand(count, 1, generator=dice) * (period - 1)).long()  # period < cut < 2 period
    cuts = zip(tokens.tolist(), cut.flatten().tolist(), strict=True)
    return [{"tokens": line[:end], "answer": line[end : end + 1]} for line, end in cuts]


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Trains a small language model for induction.")
    parser.add_argument("--out", type=Path, required=True, help="where the model and its prompts go")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=600)
    asked = parser.parse_args(argv)
    torch.set_num_threads(1)  # sums in one order: the same bytes
    train(asked.seed, asked.steps).save_pretrained(asked.out)
    text = "".join(json.dumps(prompt) + "\n" for prompt in prompts(400, asked.seed))
    (asked.out / "prompts.jsonl").write_text(text)


if __name__ == "__main__":
    main()
