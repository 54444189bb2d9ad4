"""How a causal language model tells the order of its tokens: rotary angles, a table of positions, ALiBi, or nothing.

It is read off the modules and the config; nothing runs. `cures.py` changes that order, or the scores of attention.
"""

import re
import sys
from dataclasses import dataclass, replace
from typing import Any, Literal

from torch import nn

from headway.attach.huggingface import CROSS
from headway.attach.rotations import find_rotations, why_fixed
from headway.errors import HeadwayError

Kind = Literal["rotary", "table", "alibi", "none"]
TABLE = re.compile(r"^wpe$|pos(?!t)", re.IGNORECASE)
"""matches the names of tables of positions"""
POSITIONS = re.compile(r"pos(?!t)|rel(?!u)|alibi|rotary|freqs|slopes", re.IGNORECASE)
"""matches the names of modules, parameters and buffers that may tell order"""
ATTENTION = re.compile(r"Attention|MLA$")
NOT_SOFTMAX = re.compile(r"Linear|Lightning|Rwkv")
"""matches the classes of attention without scores, which no cure of scores can change"""
FALCON, MPT = "its ALiBi is part of its mask", "its ALiBi is made for its longest text"
"""why the ALiBi of these families cannot be changed"""
CLAIMS = ("original_max_position_embeddings", "max_position_embeddings", "seq_length", "max_seq_len")


@dataclass(frozen=True)
class TokenOrder:
    """How a model tells order, and how far it can see."""

    kind: Kind
    modules: tuple[str, ...]
    """paths of the rotary modules, of the table, or of the attention modules with ALiBi"""
    longest: int | None
    """the most tokens that the model can run at; None if any number"""
    claimed: int | None
    """the training length that its config names"""
    window: int | None
    """how far a token sees directly where every layer has a sliding window (the widest of them), else None"""
    layers: int
    """number of attention layers"""
    fixed: str = ""
    """why the order itself cannot be changed; empty if it can"""
    scores: bool = True
    """whether the scores and masks of attention can be changed"""


@dataclass(frozen=True)
class Setting:
    """The lengths that a cure is for."""

    trained: int
    """the training length"""
    length: int
    """the length at which the model is to work"""

    def __post_init__(self) -> None:
        if self.trained < 2:
            raise HeadwayError(f"a training length is at least 2 tokens, not {self.trained}")

    @property
    def factor(self) -> float:
        """How many times the training length it is, at least 1."""
        return max(1.0, self.length / self.trained)


def find_order(model: Any) -> TokenOrder:
    """Finds how a causal language model of transformers tells order; raises for any other model."""
    config = _check_causal(model)
    attentions = attention_modules(model)
    if not attentions:
        raise HeadwayError(
            f"{type(model).__name__} has no attention that compares tokens; a length study of language models is for "
            "models with attention"
        )
    if all(getattr(module, "is_causal", True) is False for module in attentions.values()):  # BERT's family
        raise HeadwayError(
            f"{type(model).__name__} reads in both directions; load it with is_decoder=True if it was trained as causal"
        )
    found = TokenOrder("none", (), None, _claimed(config), _window(config), len(attentions))
    found = replace(found, scores=all(_scores_change(module) for module in attentions.values()))
    if (why := _alibi_of(model, attentions)) is not None:
        longest = model.config.max_seq_len if why == MPT else None
        return replace(found, kind="alibi", modules=tuple(attentions), longest=longest, fixed=why)
    rotary = tuple(path for path, module in model.named_modules() if find_rotations(module))
    if rotary:
        reasons = (why_fixed(each) for path in rotary for each in find_rotations(model.get_submodule(path)))
        return replace(found, kind="rotary", modules=rotary, fixed=next(filter(None, reasons), ""))
    tables = _find_tables(model)
    if len(tables) == 1:
        ((path, table),) = tables.items()
        rows = table.num_embeddings - offset_of(table)
        return replace(found, kind="table", modules=(path,), longest=rows, fixed=_why_short(model, table))
    if not tables and not _position_names(model):
        return found
    raise HeadwayError(
        f"{type(model).__name__} tells order in a way that Headway does not know "
        f"({', '.join([*tables, *_position_names(model)][:3])}); known are rotary modules, one table, and BLOOM's ALiBi"
    )


def attention_modules(model: nn.Module) -> dict[str, nn.Module]:
    """Returns the self-attention modules, without those that only contain another."""
    among = {each for each in model.modules() if ATTENTION.search(type(each).__name__)}
    return {
        path: module
        for path, module in model.named_modules()
        if among & set(module.modules()) == {module}
        and not NOT_SOFTMAX.search(type(module).__name__)
        and not CROSS.search(path.rpartition(".")[2])
    }


def has_bloom_scores(module: nn.Module) -> bool:
    """Returns whether an attention module computes its scores as BLOOM does: beta · ALiBi + inv_norm_factor · q·k."""
    return type(module).__name__.startswith("Bloom") and all(
        hasattr(module, name) for name in ("beta", "inv_norm_factor", "query_key_value")
    )


def offset_of(table: nn.Embedding) -> int:
    """Returns the row of the first position: OPT and RoBERTa keep some rows before it."""
    offset = getattr(table, "offset", None)
    if isinstance(offset, int):
        return offset
    return 0 if table.padding_idx is None else table.padding_idx + 1


def _check_causal(model: Any) -> Any:
    """Returns the config of the decoder; raises unless the model is a causal language model of transformers."""
    name, config = type(model).__name__, getattr(model, "config", None)
    if config is None or not hasattr(model, "set_attn_implementation"):
        raise HeadwayError(f"{name} is not a transformers model; a length study of language models needs one")
    if getattr(config, "is_encoder_decoder", False):
        raise HeadwayError(
            f"{name} reads and writes with two stacks; a length study of language models is for causal models"
        )
    if not re.search("CausalLM|LMHead", name):
        raise HeadwayError(f"{name} is not a causal language model; load one with AutoModelForCausalLM")
    return config.get_text_config(decoder=True)


def _claimed(config: Any) -> int | None:
    parameters = getattr(config, "rope_parameters", None) or {}
    inner = [each for each in parameters.values() if isinstance(each, dict)]
    claims = [each.get(CLAIMS[0]) for each in (parameters, *inner)] + [getattr(config, name, None) for name in CLAIMS]
    return next((claim for claim in claims if isinstance(claim, int)), None)


def _window(config: Any) -> int | None:
    """Returns the widest sliding window if every attention layer has one."""
    size, kinds = getattr(config, "sliding_window", None), getattr(config, "layer_types", None)
    if kinds is None:
        return size if getattr(config, "use_sliding_window", True) else None
    spans: dict[str, int | None] = {
        "sliding_attention": size,
        "chunked_attention": getattr(config, "attention_chunk_size", None),
    }
    found = {spans.get(kind) for kind in kinds if "attention" in kind and kind != "linear_attention"}
    return None if None in found else max((each for each in found if each is not None), default=None)


def _scores_change(module: nn.Module) -> bool:
    """Returns whether the scores of an attention module can be changed: it dispatches, or is BLOOM's."""
    home = sys.modules.get(type(module).__module__)
    return hasattr(home, "ALL_ATTENTION_FUNCTIONS") or has_bloom_scores(module)


def _find_tables(model: Any) -> dict[str, nn.Embedding]:
    """Returns the tables of positions: learned embeddings with such a name."""
    return {
        path: module
        for path, module in model.named_modules()
        if isinstance(module, nn.Embedding)
        and TABLE.search(path.rpartition(".")[2])
        and "Sinusoidal" not in type(module).__name__
    }


def _why_short(model: nn.Module, table: nn.Embedding) -> str:
    """Returns why a model with a longer table could not run either: it holds masks or indices of the same length."""
    for name, buffer in model.named_buffers():
        if buffer.ndim > 1 and buffer.shape[-1] in (table.num_embeddings, table.num_embeddings - offset_of(table)):
            return f"its buffer {name} also ends at {buffer.shape[-1]} positions"
    return ""


def _alibi_of(model: Any, attentions: dict[str, nn.Module]) -> str | None:
    """Returns why the ALiBi of a model cannot be changed, empty if it can; None if the model has none."""
    if all(map(has_bloom_scores, attentions.values())):
        return ""
    if getattr(getattr(model.config, "attn_config", None), "alibi", False):
        return MPT
    return FALCON if getattr(model.config, "alibi", False) else None


def _position_names(model: nn.Module) -> list[str]:
    """Returns the names of modules, parameters and buffers that may tell order."""
    named = (*model.named_modules(), *model.named_parameters(), *model.named_buffers())
    return [path for path, _ in named if POSITIONS.search(path.rpartition(".")[2])]
