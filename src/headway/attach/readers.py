"""How models of different kinds read a problem: from sources and answers to the logits of every answer token.

Rows of different lengths stand in one tensor; what is missing at the end of a row is NOTHING, which no model ever sees.
Only the positions that are answered go through the unembedding, which in a language model is a third of the work.
"""

from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from headway.attach.intervention import own_forward
from headway.errors import HeadwayError
from headway.subjects.ragged import NOTHING, lengths_of, trim
from headway.subjects.subject import Reader
from headway.tasks import Problems


def reader_of(model: Any, mask: int | None = None) -> Reader:
    """How a transformers model is read: by what it is for. `mask` is the token of what a masked model is to fill in."""
    name = type(model).__name__
    if any(f"{kind}Classification" in name for kind in ("Sequence", "Image", "Audio")):
        return read_classifier
    if getattr(model.config, "is_encoder_decoder", False):
        return read_encoder_decoder
    if "MaskedLM" in name or name.endswith("ForPreTraining"):
        known = getattr(model.config, "mask_token_id", None) if mask is None else mask
        if known is None:
            raise HeadwayError(
                f"{name} fills in masks; say which token is one: save its tokenizer with it, or give mask="
            )
        return partial(read_masked, mask=known)
    if "CausalLM" in name or "LMHead" in name:
        return read_causal
    raise HeadwayError(
        f"{name} has no head that answers; load it with one, such as AutoModelForCausalLM, or give reader=, a function "
        "of the model, sources and answers that returns logits [row, answer, token]"
    )


def read_causal(
    model: Any, source: Int[Tensor, "row token"], answer: Int[Tensor, "row answer"]
) -> Float[Tensor, "row answer vocabulary"]:
    """Source and answer in one sequence; the logits are those before each answer token."""
    lengths = (source != NOTHING).sum(1, keepdim=True)
    longest, answers = int(lengths.max()), answer.shape[1]
    place = torch.arange(longest + answers - 1, device=source.device).expand(len(source), -1)
    read = answer.gather(1, (place - lengths).clamp(0, answers - 1)).clamp(min=0)
    read[:, :longest] = torch.where(place[:, :longest] < lengths, source[:, :longest].clamp(min=0), read[:, :longest])
    at = lengths - 1 + torch.arange(answers, device=source.device)
    with only_at(model, at, read.shape[1]):
        return model(input_ids=read, use_cache=False).logits


def read_encoder_decoder(model: Any, source: Tensor, answer: Tensor) -> Tensor:
    written = torch.cat((torch.full_like(answer[:, :1], start_of(model)), answer[:, :-1].clamp(min=0)), dim=1)
    return model(**_inputs(model, source), decoder_input_ids=written, use_cache=False).logits


def start_of(model: Any) -> int:
    """The token that an answer begins with, from the first place that names one in the vocabulary."""
    inner, words = model.config.get_text_config(decoder=True), model.get_output_embeddings().weight.shape[0]
    for name in ("decoder_start_token_id", "bos_token_id", "pad_token_id"):
        for place in (getattr(model, "generation_config", None), model.config, inner):
            token = getattr(place, name, None)
            if isinstance(token, int) and 0 <= token < words:
                return token
    raise HeadwayError(
        f"{type(model).__name__} does not say which token an answer begins with (decoder_start_token_id)"
    )


def read_masked(model: Any, source: Tensor, answer: Tensor, mask: int) -> Tensor:
    """The answers are the tokens that are masked, in order."""
    masked = source == mask
    if not torch.equal(masked.sum(1), (answer != NOTHING).sum(1)):
        raise HeadwayError("a masked source must have as many masks as its answer has tokens")
    order = torch.where(masked, torch.arange(source.shape[1], device=source.device), source.shape[1]).sort(1).values
    at = order[:, : answer.shape[1]].clamp(max=source.shape[1] - 1)
    inputs = _inputs(model, source)
    with only_at(model, at, inputs["input_ids"].shape[1]):
        return model(**inputs).logits


def read_classifier(model: Any, source: Tensor, answer: Tensor) -> Tensor:
    return model(**_inputs(model, source)).logits[:, None]


def read_module(model: nn.Module, source: Tensor, answer: Tensor) -> Tensor:
    """A plain module: called with the sources alone; what it returns is logits, with an axis for answers or without."""
    logits = model(source)
    logits = logits[0] if isinstance(logits, tuple) else logits
    return logits[:, None] if logits.ndim == 2 else logits


def _inputs(model: Any, source: Tensor) -> dict[str, Tensor]:
    """The source under the name that the model has for it, and what of it is there."""
    if source.is_floating_point():
        return {model.main_input_name: source}
    there = source != NOTHING
    if bool(there.all()):
        return {"input_ids": source}
    longest = int(there.sum(1).max())
    pad = model.config.get_text_config().pad_token_id or 0
    return {"input_ids": source.masked_fill(~there, pad)[:, :longest], "attention_mask": there.long()[:, :longest]}


def only_at(model: Any, at: Int[Tensor, "row answer"], tokens: int) -> AbstractContextManager[None]:
    """While it lasts, only these positions go through the unembedding."""
    unembedding = model.get_output_embeddings()
    if unembedding is None:
        raise HeadwayError(f"{type(model).__name__} does not say which module is its unembedding")
    forward = unembedding.forward

    def chosen(hidden: Tensor) -> Tensor:
        if hidden.shape[1] != tokens:
            raise HeadwayError(f"{type(model).__name__} put {hidden.shape[1]} of {tokens} positions to its unembedding")
        places = at.to(hidden.device)
        first = int(places[0, 0])
        if bool((places == torch.arange(first, first + places.shape[1], device=places.device)).all()):
            return forward(hidden[:, first : first + places.shape[1]])
        return forward(hidden.gather(1, places[..., None].expand(-1, -1, hidden.shape[-1])))

    return own_forward(unembedding, chosen)


@torch.no_grad()
def check_reads(model: nn.Module, reader: Reader, problems: Problems) -> None:
    """Refuses a model that cannot read its longest example, or does not answer it token by token."""
    longest = trim(problems[lengths_of(problems).argmax().item() :][:1])
    try:
        logits = reader(model, longest.source, longest.answer)
    except HeadwayError:
        raise
    except Exception as error:  # whatever a user's model may raise
        raise HeadwayError(
            f"{type(model).__name__} failed on its longest example, of {longest.source.shape[1]} and "
            f"{longest.answer.shape[1]} tokens ({type(error).__name__}: {' '.join(str(error).split())[:160]})"
        ) from error
    if not isinstance(logits, Tensor) or logits.ndim != 3 or logits.shape[:2] != longest.answer.shape:
        shown = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise HeadwayError(
            f"{type(model).__name__} answers with {shown} where {tuple(longest.answer.shape)} tokens are asked for; "
            "give reader=, a function of the model, sources and answers that returns logits [row, answer, token]"
        )
