"""`headway lengths FOLDER` as a function: the length study of a causal language model."""

from pathlib import Path
from typing import Any

import torch

from headway.attach.from_transformers import load
from headway.errors import HeadwayError
from headway.lengths.language.answer import LanguageLengths
from headway.lengths.language.study import study_language
from headway.lengths.question import LANGUAGE, LengthsQuestion
from headway.lengths.subjects import USED, check_untrained
from headway.machine import choose_device
from headway.report.lengths import lengths_figures
from headway.runs import disk
from headway.runs.config import folder_name
from headway.runs.folder import RunFolder
from headway.subjects.naming import kind_of

PARTIAL = "lengths.partial.json"  # what an unfinished study has measured
PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def study_folder(name: str, question: LengthsQuestion) -> LanguageLengths | None:
    """Studies the language model in a folder, or with `hub` on the hub; None if the name is of something else."""
    if kind_of(name, question.hub) != "transformers":
        return None
    check_untrained(question, (*USED, *LANGUAGE, "train_lengths", "precision"))
    device, wanted = choose_device(question.device), question.precision
    if wanted != "auto" and wanted not in PRECISIONS:
        raise HeadwayError(f"unknown precision {wanted!r}; there are: auto, {', '.join(PRECISIONS)}")
    model, tokenizer = load(name, question.hub)
    model = model.to(device, PRECISIONS.get(wanted)).eval()
    home = Path(question.out or Path("runs") / folder_name(f"lengths-{Path(name).name}"))
    found = study_language(model, tokenizer, question, name, home / PARTIAL)
    write_language_lengths(found, home)
    return found


def study_model(model: Any, tokenizer: Any, question: LengthsQuestion) -> LanguageLengths:
    """Studies a loaded language model; it is saved only in `out`."""
    check_untrained(question, (*USED, *LANGUAGE, "train_lengths"))
    home = None if question.out is None else Path(question.out)
    found = study_language(model, tokenizer, question, type(model).__name__, home and home / PARTIAL)
    if home is not None:
        write_language_lengths(found, home)
    return found


def write_language_lengths(found: LanguageLengths, home: Path) -> None:
    """Writes lengths.json, lengths.csv and the figure."""
    RunFolder(home).record("lengths", found.to_json())
    disk.write_bytes(home / "lengths.csv", found.to_csv().encode())
    lengths_figures(home / "lengths.json", home)
