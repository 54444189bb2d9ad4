"""The transformers: built from a config, with a seed."""

import torch

from headway.models.attention import Attention, Cache, Order
from headway.models.classifier import Classifier
from headway.models.decoder import Decoder
from headway.models.encoder_decoder import EncoderDecoder
from headway.models.model import Model
from headway.models.sites import Gate, Gates, Head, Site, Trace, heads_named
from headway.runs.config import ModelConfig

MODELS: dict[str, type[Model]] = {
    "encoder-decoder": EncoderDecoder,
    "decoder": Decoder,
    "classifier": Classifier,
}

__all__ = [
    "MODELS",
    "Attention",
    "Cache",
    "Classifier",
    "Decoder",
    "EncoderDecoder",
    "Gate",
    "Gates",
    "Head",
    "Model",
    "Order",
    "Site",
    "Trace",
    "build_model",
    "heads_named",
    "heads_of",
]


def build_model(config: ModelConfig, seed: int = 0) -> Model:
    """A fresh model; its weights depend on the config and the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return MODELS[config.kind](config)


def heads_of(model: Model) -> list[Head]:
    """Every head, in the order of the forward pass."""
    sites = [(m.site, m.heads) for m in model.modules() if isinstance(m, Attention)]
    return [Head(site, number) for site, heads in sites for number in range(heads)]
