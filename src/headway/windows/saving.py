"""Saves a model of transformers with its budget: the weights as they are, and `budget.json` beside them."""

import os
import secrets
import shutil
from pathlib import Path
from typing import Any

import torch

from headway.errors import HeadwayError
from headway.runs.disk import explain_os_error
from headway.windows.budget import Budget


def save_with_budget(model: Any, tokenizer: Any, budget: Budget, out: Path) -> None:
    """Writes a folder that plain transformers loads, whole or not at all; raises if a weight is read back otherwise."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise HeadwayError(f"{out} is not empty; name a new folder")
    part = out.with_name(f".{out.name}.{os.getpid()}.{secrets.token_hex(3)}.part")
    try:
        part.mkdir(parents=True)
        model.save_pretrained(part)
        if tokenizer is not None:
            tokenizer.save_pretrained(part)
        budget.write(part)
        _check_weights(model, part)
        os.replace(part, out)
    except OSError as error:
        raise explain_os_error(error, out) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _check_weights(model: Any, folder: Path) -> None:
    loaded, before = type(model).from_pretrained(folder).state_dict(), model.state_dict()
    for name, weight in before.items():
        if name not in loaded or not torch.equal(loaded[name], weight.cpu()):
            raise HeadwayError(f"{name} differs after the model was saved and read back; nothing was written")
