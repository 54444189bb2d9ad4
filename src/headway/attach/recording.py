"""Records what the modules of a user's model return in one pass, and returns it in later ones."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn

from headway.attach.intervention import replace_forward


@contextmanager
def record_calls(model: nn.Module, paths: Sequence[str]) -> Iterator[dict[str, list[Any]]]:
    """Records what these modules return inside the context, by path: one value for each call."""
    returned: dict[str, list[Any]] = {}

    def record(path: str, forward: Callable[..., Any], /, *inputs: Any, **named: Any) -> Any:
        output = forward(*inputs, **named)
        returned.setdefault(path, []).append(map_tensors(output, Tensor.clone))  # a later layer may write into it
        return output

    with ExitStack() as stack:
        for path in dict.fromkeys(paths):
            module = model.get_submodule(path)
            stack.enter_context(replace_forward(module, partial(record, path, module.forward)))
        yield returned


def override_first(model: nn.Module, path: str, outputs: Sequence[Callable[[], Any]]) -> AbstractContextManager[None]:
    """Makes the first calls of the module at a path return these outputs, without running, inside the context."""
    module, waiting = model.get_submodule(path), list(outputs)
    forward = module.forward
    return replace_forward(module, lambda *inputs, **named: waiting.pop(0)() if waiting else forward(*inputs, **named))


def first_tensor(value: Any) -> Tensor | None:
    """Returns a module's first output, if it is a tensor."""
    if isinstance(value, tuple | list) and value:
        value = value[0]
    return value if isinstance(value, Tensor) else None


def map_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Applies a function to every tensor in a nested structure."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, tuple | list):
        parts = [map_tensors(each, change) for each in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if isinstance(value, dict):
        return type(value)({name: map_tensors(each, change) for name, each in value.items()})
    return value


def repeat(tensor: Tensor, rows: int, variants: int) -> Tensor:
    """Repeats a tensor with a row for each problem once for every variant; copies any other unchanged."""
    if variants == 1 or tensor.ndim == 0 or tensor.shape[0] != rows:
        return tensor.clone()
    return tensor.repeat(variants, *[1] * (tensor.ndim - 1))
