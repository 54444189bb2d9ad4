"""Trains a small language model whose heads are known: it is trained for induction, and for nothing else.

    python recipes/induction.py --out runs/induction    # half a minute on one core

Its sequences are random words of 8 to 24 different tokens, repeated: `c a f c a f c a`. The next token is predictable
from the second repetition on, and only by looking up what followed the same token before. Two heads do that: a
previous-token head in layer 0, and an induction head in layer 1 that finds the token after an earlier copy of the
current one, and copies it. A penalty on heads that write keeps their number small: without it the work is spread over
several heads.

Writes a plain `transformers` model and `prompts.jsonl`: sequences cut in the second repetition, and the next token.
The same seed gives the same bytes on one thread.
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
PENALTY = 0.05  # on the weights with which heads write


def draw_sequences(count: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """Draws sequences that repeat a random word, and the length of each word."""
    period = torch.randint(PERIODS[0], PERIODS[1] + 1, (count, 1), generator=generator)
    word = torch.rand(count, TOKENS, generator=generator).argsort(1)  # sequence token: no token twice
    return word.gather(1, torch.arange(LENGTH) % period), period


def group_penalty(attention: GPT2Attention) -> Tensor:
    """Sums the norms of the heads' value and output weights (group lasso, which switches off whole heads)."""
    _, _, value = attention.c_attn.weight.view(-1, 3, attention.num_heads, attention.head_dim).unbind(1)
    output = attention.c_proj.weight.view(attention.num_heads, attention.head_dim, -1)
    return (value.square().sum((0, 2)) + output.square().sum((1, 2)) + 1e-8).sqrt().sum()


def train(seed: int, steps: int) -> GPT2LMHeadModel:
    torch.manual_seed(seed)
    generator = Generator().manual_seed(seed)
    config = GPT2Config(vocab_size=TOKENS, n_positions=64, n_embd=64, n_layer=2, n_head=4, n_inner=64)
    config.resid_pdrop, config.embd_pdrop, config.attn_pdrop, config.initializer_range = 0.0, 0.0, 0.0, 0.1
    config.bos_token_id = config.eos_token_id = None  # there are no special tokens
    model = GPT2LMHeadModel(config)
    model.loss_type = "ForCausalLM"  # the default, but set explicitly to avoid a warning
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, betas=(0.9, 0.98), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min((step + 1) / 50, 1 - step / steps))
    for step in range(1, steps + 1):
        tokens, period = draw_sequences(64, generator)
        predictable = torch.where(torch.arange(LENGTH) > period, tokens, -100)  # the rest is random: no loss
        loss = model(input_ids=tokens, labels=predictable).loss
        penalty = PENALTY * sum(group_penalty(part) for part in model.modules() if isinstance(part, GPT2Attention))
        optimizer.zero_grad()
        (loss + penalty).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)
    return model.eval()


def draw_prompts(count: int, seed: int) -> list[dict[str, list[int]]]:
    """Draws sequences cut somewhere in the second repetition of their word, with the next token as the answer."""
    generator = Generator().manual_seed(1_000_000 + seed)  # a stream that training does not use
    tokens, period = draw_sequences(count, generator)
    cut = period + 1 + (torch.rand(count, 1, generator=generator) * (period - 1)).long()  # period < cut < 2 period
    cuts = zip(tokens.tolist(), cut.flatten().tolist(), strict=True)
    return [{"tokens": sequence[:end], "answer": sequence[end : end + 1]} for sequence, end in cuts]


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Trains a small language model for induction.")
    parser.add_argument("--out", type=Path, required=True, help="folder for the model and its prompts")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=600)
    options = parser.parse_args(argv)
    torch.set_num_threads(1)  # a fixed order of summation gives the same bytes
    train(options.seed, options.steps).save_pretrained(options.out)
    text = "".join(json.dumps(prompt) + "\n" for prompt in draw_prompts(400, options.seed))
    (options.out / "prompts.jsonl").write_text(text)


if __name__ == "__main__":
    main()
