"""Saves a model of transformers with its budget: the weights as they are, and beside them `budget.json`, the report
`windows.json` and what is exported."""

import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from headway.errors import HeadwayError
from headway.runs import disk
from headway.windows.budget import Budget
from headway.windows.exporting import export_budget

SCHEMA = "headway.windows/1"


def save_with_budget(model: Any, tokenizer: Any, budget: Budget, out: Path, report: Mapping[str, Any]) -> None:
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
        disk.write_json(part / "windows.json", {"schema": SCHEMA, **report})
        if (form := report.get("exported")) is not None:
            export_budget(budget, form, part / form)
        _check_weights(model, part)
        os.replace(part, out)
    except OSError as error:
        raise disk.explain_os_error(error, out) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _check_weights(model: Any, folder: Path) -> None:
    loaded, before = type(model).from_pretrained(folder).state_dict(), model.state_dict()
    for name, weight in before.items():
        if name not in loaded or not torch.equal(loaded[name], weight.cpu()):
            raise HeadwayError(f"{name} differs after the model was saved and read back; nothing was written")
