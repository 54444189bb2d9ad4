"""Loads a language model from a GGUF file, as llama.cpp and many downloads have it.

`transformers` reads the file itself and turns its quantised numbers into float32. What it returns refuses to be saved,
so the numbers are copied into a fresh model of the same config.
"""

import copy
import io
from contextlib import redirect_stderr
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from headway.errors import HeadwayError

NEEDED = ("gguf", "accelerate")


def load_gguf(path: Path) -> tuple[Any, Any]:
    """Loads the model and the tokenizer of a GGUF file, in float32."""
    import transformers

    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise HeadwayError(f"{path} is a GGUF file, which needs {' and '.join(missing)}: pip install 'headway[gguf]'")
    if not path.is_file():
        raise HeadwayError(f"there is no file {path}; a GGUF file is one file, such as model.Q4_1.gguf")
    given = {"gguf_file": path.name, "local_files_only": True, "trust_remote_code": False}
    with redirect_stderr(io.StringIO()):  # a progress bar that has no switch
        loaded = transformers.AutoModelForCausalLM.from_pretrained(str(path.parent), dtype=torch.float32, **given)
        tokenizer = transformers.AutoTokenizer.from_pretrained(str(path.parent), **given)
    return _copy_plain(loaded), tokenizer


def _copy_plain(loaded: Any) -> Any:
    """Copies a loaded model into one that does not know it was quantised, and so can be saved."""
    config = copy.deepcopy(loaded.config)
    config.__dict__.pop("quantization_config", None)
    with torch.device("meta"):
        empty = type(loaded)(config)
    plain = empty.to_empty(device="cpu")
    buffers = dict(loaded.named_buffers())  # also those that no state dict has, such as rotary frequencies
    with torch.no_grad():
        for name, buffer in plain.named_buffers():
            buffer.copy_(buffers[name])
        for name, weight in plain.named_parameters():
            weight.copy_(loaded.get_parameter(name))
    plain.generation_config = copy.deepcopy(loaded.generation_config)
    plain.tie_weights()
    return plain.eval()
