"""Makes a Subject from a Hugging Face model: from a folder, a GGUF file, the hub, or a loaded model."""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from headway.attach.gguf import load_gguf
from headway.attach.huggingface import attach_huggingface
from headway.attach.prompts import problems_of, read_prompts
from headway.attach.readers import check_reads, reader_of
from headway.attach.runner import UserRunner
from headway.errors import HeadwayError
from headway.evaluation.metrics import Metric
from headway.subjects.naming import is_gguf, is_transformers_folder
from headway.subjects.ragged import PADDING, most_common_length
from headway.subjects.runner import MEMORY
from headway.subjects.subject import Reader, Subject
from headway.tasks import Problems

PROOF_EXAMPLES = 4
"""number of examples that interventions are proved on"""


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
    """Finds the heads of a model, proves every intervention on some of the examples and returns the Subject.

    `model` is a folder, a GGUF file, or with `hub` a name on the hub, or a transformers model. The default metric is
    `exact` for answers, `loss` for texts and `logit-difference` for answers that each come with a wrong one.
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
            raise HeadwayError("a logit difference needs a wrong answer for each right one; give examples with 'wrong'")
        problems, usual = problems_of(prompts).to(place), "loss" if any(each.continues for each in prompts) else "exact"
        if all(each.wrong is not None for each in prompts):
            usual = "logit-difference"
    check_reads(model, read, problems)
    few = most_common_length(problems, PROOF_EXAMPLES)
    attached = attach_huggingface(model, lambda: read(model, few.source, few.answer))
    subject = Subject(
        model,
        examples=problems,
        name=name,
        memory=memory,
        metric=metric or usual,
        spelled=lambda tokens: [
            str(token) if tokenizer is None else tokenizer.decode([token]) for token in tokens if token != PADDING
        ],
        tokenizer=tokenizer,
        problem=lambda written: problems_of(read_prompts([written], model, tokenizer)).to(place),
    )
    return subject.with_runner(UserRunner(attached, read, memory, subject.name))


def load(name: str | Path, hub: bool = False) -> tuple[Any, Any]:
    """Loads the model of a folder, as the class it was saved from, or of a GGUF file, and its tokenizer if there is
    one."""
    try:
        import transformers
    except ImportError as error:
        raise HeadwayError("Hugging Face models need transformers: pip install 'headway[hf]'") from error
    if is_gguf(name):
        with _explain_errors(str(name), str(name)):
            transformers.utils.logging.disable_progress_bar()
            return load_gguf(Path(name))
    local = is_transformers_folder(name)
    if not local and not hub:
        raise HeadwayError(
            f"{name} is not a folder with a Hugging Face model (config.json, model.safetensors); use `hub` to download "
            "a model of that name"
        )
    source, only = str(name), {"local_files_only": not hub, "trust_remote_code": False}
    with _explain_errors(source, source):
        transformers.utils.logging.disable_progress_bar()
        config = transformers.AutoConfig.from_pretrained(source, **only)
        kind = (config.architectures or [None])[0]
        if kind is None or not hasattr(transformers, kind):
            raise HeadwayError(
                f"{name} does not name its model class (architectures: {kind}); save it from a class such as "
                "AutoModelForCausalLM"
            )
        model = getattr(transformers, kind).from_pretrained(source, weights_only=True, **only)
    if local and not any(Path(source).glob("*token*")):
        return model, None
    with _explain_errors(source, f"the tokenizer of {source}"):
        return model, transformers.AutoTokenizer.from_pretrained(source, **only)


@contextmanager
def _explain_errors(name: str, what: str) -> Iterator[None]:
    """Turns the errors that transformers raises for a broken folder or a missing library into a HeadwayError."""
    try:
        yield
    except HeadwayError:
        raise
    except ImportError as error:
        ways = r"pip install ([\w\-\[\]=<>.]+)", r"requires the (\w+) library"
        named = [found[1] for way in ways if (found := re.search(way, str(error)))]
        package = next(iter(named), error.name or "the missing package")
        raise HeadwayError(f"{name} needs a library that is not installed: pip install {package}") from error
    except Exception as error:
        line = " ".join(str(error).split())[:200]
        raise HeadwayError(f"{what} cannot be loaded ({type(error).__name__}: {line})") from error
