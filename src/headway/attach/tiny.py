"""A few made-up inputs for a Hugging Face model, so that it can be run once and its sites seen.

Source and answer have different lengths and one row is padded, so that a mask that is lost or a cross-attention that is
taken for self-attention shows.
"""

from typing import Any

import torch
from torch import Tensor

from headway.errors import HeadwayError

SOURCE, ANSWER, PADDED = 7, 5, 2


def tiny_examples(model: Any) -> list[dict[str, Tensor]]:
    """Inputs to try, the most telling first."""
    config, main = model.config, model.main_input_name
    generator = torch.Generator().manual_seed(0)
    answer = {}
    if getattr(config, "is_encoder_decoder", False):
        answer["decoder_input_ids"] = _tokens(_vocabulary(config, decoder=True), ANSWER, generator)
    if main == "input_ids":
        tokens = _tokens(_vocabulary(config, decoder=False), SOURCE, generator)
        seen = torch.ones_like(tokens)
        seen[1, -PADDED:] = 0
        examples = [{"input_ids": tokens, "attention_mask": seen, **answer}]
        examples.append({"input_ids": tokens, **answer})
        examples.append({name: value[:1] for name, value in examples[1].items()})
        ended = tokens.clone()
        ended[:, -1] = getattr(config, "eos_token_id", None) or 0
        examples.append({"input_ids": ended})  # some read the answer out of the source
    elif main == "pixel_values":
        vision = getattr(config, "vision_config", config)
        size = vision.image_size if isinstance(vision.image_size, list | tuple) else [vision.image_size] * 2
        examples = [{main: torch.randn(2, vision.num_channels, *size, generator=generator), **answer}]
    elif main == "input_features" and hasattr(config, "max_source_positions"):
        frames = 2 * config.max_source_positions
        examples = [{main: torch.randn(2, config.num_mel_bins, frames, generator=generator), **answer}]
    else:
        raise HeadwayError(f"{type(model).__name__} reads {main}; give example=, a dict of what it is called with")
    place, dtype = next(model.parameters()).device, model.dtype
    return [
        {name: value.to(place, dtype if value.is_floating_point() else None) for name, value in example.items()}
        for example in examples
    ]


def _vocabulary(config: Any, decoder: bool) -> int:
    inner: Any = getattr(config, "decoder" if decoder else "encoder", None)
    return inner.vocab_size if hasattr(inner, "vocab_size") else config.get_text_config(decoder=decoder).vocab_size


def _tokens(vocabulary: int, count: int, generator: torch.Generator) -> Tensor:
    """Two rows of tokens; the first few of a vocabulary have meanings of their own."""
    return torch.randint(min(5, vocabulary - 1), vocabulary, (2, count), generator=generator)
