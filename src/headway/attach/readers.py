"""Readers: run models of different kinds on sources and answers and return the logits of every answer token.

Rows of different lengths share one tensor; shorter rows end in PADDING, which is removed or masked before a model runs.
Only the answer's positions go through the unembedding, which in a language model is a third of the work.
"""

from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from headway.attach.intervention import replace_forward
from headway.errors import HeadwayError
from headway.subjects.ragged import PADDING, lengths_of, trim
from headway.subjects.subject import Reader
from headway.tasks import Problems


def reader_of(model: Any, mask: int | None = None) -> Reader:
    """Returns the reader for a transformers model, by its class; `mask` is the mask token of a masked model."""
    name = type(model).__name__
    if any(f"{kind}Classification" in name for kind in ("Sequence", "Image", "Audio")):
        return read_classifier
    if getattr(model.config, "is_encoder_decoder", False):
        return read_encoder_decoder
    if "MaskedLM" in name or name.endswith("ForPreTraining"):
        known = getattr(model.config, "mask_token_id", None) if mask is None else mask
        if known is None:
            raise HeadwayError(f"{name} needs a mask token: save its tokenizer with it, or give mask=")
        return partial(read_masked, mask=known)
    if "CausalLM" in name or "LMHead" in name:
        return read_causal
    raise HeadwayError(
        f"{name} has no output head; load it with one, such as AutoModelForCausalLM, or give reader=, a function "
        "of the model, sources and answers that returns logits [row, answer, token]"
    )


def read_causal(
    model: Any, source: Int[Tensor, "row token"], answer: Int[Tensor, "row answer"]
) -> Float[Tensor, "row answer vocabulary"]:
    """Reads source and answer as one sequence and returns the logits that predict each answer token."""
    lengths = (source != PADDING).sum(1, keepdim=True)
    longest, answers = int(lengths.max()), answer.shape[1]
    place = torch.arange(longest + answers - 1, device=source.device).expand(len(source), -1)
    read = answer.gather(1, (place - lengths).clamp(0, answers - 1)).clamp(min=0)
    read[:, :longest] = torch.where(place[:, :longest] < lengths, source[:, :longest].clamp(min=0), read[:, :longest])
    at = lengths - 1 + torch.arange(answers, device=source.device)
    with unembed_only(model, at, read.shape[1]):
        return model(input_ids=read, use_cache=False).logits


def read_encoder_decoder(model: Any, source: Tensor, answer: Tensor) -> Tensor:
    written = torch.cat((torch.full_like(answer[:, :1], start_of(model)), answer[:, :-1].clamp(min=0)), dim=1)
    return model(**_inputs(model, source), decoder_input_ids=written, use_cache=False).logits


def start_of(model: Any) -> int:
    """Returns the start token of an answer, from the first config that names a valid one."""
    inner, words = model.config.get_text_config(decoder=True), model.get_output_embeddings().weight.shape[0]
    for name in ("decoder_start_token_id", "bos_token_id", "pad_token_id"):
        for place in (getattr(model, "generation_config", None), model.config, inner):
            token = getattr(place, name, None)
            if isinstance(token, int) and 0 <= token < words:
                return token
    raise HeadwayError(
        f"{type(model).__name__} has no start token for answers; set decoder_start_token_id in its config"
    )


def read_masked(model: Any, source: Tensor, answer: Tensor, mask: int) -> Tensor:
    """Reads a masked source; the answers are the masked tokens, in order."""
    masked = source == mask
    if not torch.equal(masked.sum(1), (answer != PADDING).sum(1)):
        raise HeadwayError("a masked source must have as many masks as its answer has tokens")
    order = torch.where(masked, torch.arange(source.shape[1], device=source.device), source.shape[1]).sort(1).values
    at = order[:, : answer.shape[1]].clamp(max=source.shape[1] - 1)
    inputs = _inputs(model, source)
    with unembed_only(model, at, inputs["input_ids"].shape[1]):
        return model(**inputs).logits


def read_classifier(model: Any, source: Tensor, answer: Tensor) -> Tensor:
    return model(**_inputs(model, source)).logits[:, None]


def read_module(model: nn.Module, source: Tensor, answer: Tensor) -> Tensor:
    """Calls a plain module with only the sources; it returns logits, with or without an axis for answers."""
    logits = model(source)
    logits = logits[0] if isinstance(logits, tuple) else logits
    return logits[:, None] if logits.ndim == 2 else logits


def _inputs(model: Any, source: Tensor) -> dict[str, Tensor]:
    """Returns the model's inputs for a source: the source under the right name, and a mask if it is padded."""
    if source.is_floating_point():
        return {model.main_input_name: source}
    real = source != PADDING
    if bool(real.all()):
        return {"input_ids": source}
    longest = int(real.sum(1).max())
    pad = model.config.get_text_config().pad_token_id or 0
    return {"input_ids": source.masked_fill(~real, pad)[:, :longest], "attention_mask": real.long()[:, :longest]}


def unembed_only(model: Any, at: Int[Tensor, "row answer"], tokens: int) -> AbstractContextManager[None]:
    """Sends only these positions through the unembedding inside the context."""
    unembedding = model.get_output_embeddings()
    if unembedding is None:
        raise HeadwayError(f"{type(model).__name__}.get_output_embeddings() must return its unembedding, not None")
    forward = unembedding.forward

    def unembed(hidden: Tensor) -> Tensor:
        if hidden.shape[1] != tokens:
            raise HeadwayError(f"{type(model).__name__} unembeds only {hidden.shape[1]} of {tokens} positions")
        places = at.to(hidden.device)
        first = int(places[0, 0])
        if bool((places == torch.arange(first, first + places.shape[1], device=places.device)).all()):
            return forward(hidden[:, first : first + places.shape[1]])
        return forward(hidden.gather(1, places[..., None].expand(-1, -1, hidden.shape[-1])))

    return replace_forward(unembedding, unembed)


@torch.no_grad()
def check_reads(model: nn.Module, reader: Reader, problems: Problems) -> None:
    """Raises if a model fails on its longest example, or does not return logits for each answer token."""
    longest = trim(problems[lengths_of(problems).argmax().item() :][:1])
    try:
        logits = reader(model, longest.source, longest.answer)
    except HeadwayError:
        raise
    except Exception as error:  # a user's model may raise anything
        raise HeadwayError(
            f"{type(model).__name__} failed on its longest example, of {longest.source.shape[1]} and "
            f"{longest.answer.shape[1]} tokens ({type(error).__name__}: {' '.join(str(error).split())[:160]})"
        ) from error
    if not isinstance(logits, Tensor) or logits.ndim != 3 or logits.shape[:2] != longest.answer.shape:
        shown = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise HeadwayError(
            f"{type(model).__name__} returns {shown} for answers of shape {tuple(longest.answer.shape)}; "
            "give reader=, a function of the model, sources and answers that returns logits [row, answer, token]"
        )
