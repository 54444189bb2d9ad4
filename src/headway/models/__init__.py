"""Headway's transformers, built from a config and a seed."""

import torch

from headway.models.attention import Attention, Cache, Order
from headway.models.averaging import AveragingDecoder
from headway.models.model import Model
from headway.models.sites import Gate, Gates, Head, Site, Trace, find_heads
from headway.models.transformers import Classifier, Decoder, EncoderDecoder
from headway.runs.config import ModelConfig

MODELS: dict[str, type[Model]] = {
    "encoder-decoder": EncoderDecoder,
    "decoder": Decoder,
    "classifier": Classifier,
    "averaging": AveragingDecoder,
}

__all__ = ["MODELS", "Attention", "AveragingDecoder", "Cache", "Classifier", "Decoder", "EncoderDecoder", "Model"]
__all__ += ["Order", "build_model"]
__all__ += ["Gate", "Gates", "Head", "Site", "Trace", "find_heads", "heads_of"]


def build_model(config: ModelConfig, seed: int = 0) -> Model:
    """Builds an untrained model, whose weights depend only on the config and the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return MODELS[config.kind](config)


def heads_of(model: Model) -> list[Head]:
    """Returns every head, in the order of the forward pass."""
    attentions = [each for each in model.modules() if isinstance(each, Attention)]
    return [Head(each.site, number) for each in attentions for number in range(each.heads)]
