"""A Hugging Face model as a Subject: out of a folder, or an object that is at hand."""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from headway.attach.huggingface import attach_huggingface
from headway.attach.prompts import problems_of, read_prompts
from headway.attach.readers import check_reads, reader_of
from headway.attach.runner import UserRunner
from headway.errors import HeadwayError
from headway.evaluation.metrics import Metric
from headway.subjects.naming import is_transformers_folder
from headway.subjects.ragged import NOTHING, most_common_length
from headway.subjects.runner import MEMORY
from headway.subjects.subject import Reader, Subject
from headway.tasks import Problems

PROVED = 4
"""problems that interventions are proved on"""


def subject_from_transformers(
    model: Any,
    examples: str | Path | Iterable[Any] | Problems,
    *,
    tokenizer: Any = None,
    metric: Metric | str | None = None,
    reader: Reader | None = None,
    mask: int | None = None,
    name: str = "",
    device: torch.device | str | None = None,
    memory: int = MEMORY,
    hub: bool = False,
) -> Subject:
    """A model with its heads found and every intervention proved on some of the examples.

    `model` is a folder, or with `hub` a name on the hub, or a model of transformers. Where no metric is named, it is
    `exact` of answers, `loss` of texts and `logit-difference` of answers that come with a wrong one.
    """
    if isinstance(model, str | Path):
        name = name or Path(model).name
        model, found = load(model, hub)
        tokenizer = tokenizer or found
        model = model.to(device or "cpu").eval()
    place = next(model.parameters()).device if device is None else torch.device(device)
    mask = getattr(tokenizer, "mask_token_id", None) if mask is None else mask
    read = reader or reader_of(model, mask)
    if isinstance(examples, Problems):
        problems, usual = examples.to(place), "exact"
    else:
        prompts = read_prompts(examples, model, tokenizer)
        if metric == "logit-difference" and any(each.wrong is None for each in prompts):
            raise HeadwayError(
                "a logit difference needs a wrong answer beside each right one; give examples with 'wrong'"
            )
        problems, usual = problems_of(prompts).to(place), "loss" if any(each.continues for each in prompts) else "exact"
        if all(each.wrong is not None for each in prompts):
            usual = "logit-difference"
    check_reads(model, read, problems)
    few = most_common_length(problems, PROVED)
    attached = attach_huggingface(model, lambda: read(model, few.source, few.answer))
    subject = Subject(
        model,
        examples=problems,
        name=name,
        memory=memory,
        metric=metric or usual,
        spelled=lambda tokens: [
            str(token) if tokenizer is None else tokenizer.decode([token]) for token in tokens if token != NOTHING
        ],
        tokenizer=tokenizer,
        problem=lambda written: problems_of(read_prompts([written], model, tokenizer)).to(place),
    )
    return subject.with_runner(UserRunner(attached, read, memory, subject.name))


def load(name: str | Path, hub: bool = False) -> tuple[Any, Any]:
    """The model that a folder holds, of the class that it was saved as, and its tokenizer where there is one."""
    try:
        import transformers
    except ImportError as error:
        raise HeadwayError("models of Hugging Face need transformers: pip install 'headway[hf]'") from error
    local = is_transformers_folder(name)
    if not local and not hub:
        raise HeadwayError(
            f"{name} is no folder with a Hugging Face model (config.json, model.safetensors); to fetch a model of that "
            "name from the hub add --hub"
        )
    source, only = str(name), {"local_files_only": not hub, "trust_remote_code": False}
    with _explained(source, source):
        transformers.utils.logging.disable_progress_bar()
        config = transformers.AutoConfig.from_pretrained(source, **only)
        kind = (config.architectures or [None])[0]
        if kind is None or not hasattr(transformers, kind):
            raise HeadwayError(
                f"{name} does not say what it is (architectures: {kind}); save it from a class such as "
                "AutoModelForCausalLM"
            )
        model = getattr(transformers, kind).from_pretrained(source, weights_only=True, **only)
    if local and not any(Path(source).glob("*token*")):
        return model, None
    with _explained(source, f"the tokenizer of {source}"):
        return model, transformers.AutoTokenizer.from_pretrained(source, **only)


@contextmanager
def _explained(name: str, what: str) -> Iterator[None]:
    """A sentence for whatever a broken folder, or a library that is not here, makes transformers raise."""
    try:
        yield
    except HeadwayError:
        raise
    except ImportError as error:
        ways = r"pip install ([\w\-\[\]=<>.]+)", r"requires the (\w+) library"
        named = [found[1] for way in ways if (found := re.search(way, str(error)))]
        package = next(iter(named), error.name or "the missing package")
        raise HeadwayError(f"{name} needs a library that is not here: pip install {package}") from error
    except Exception as error:
        line = " ".join(str(error).split())[:200]
        raise HeadwayError(f"{what} cannot be loaded ({type(error).__name__}: {line})") from error
