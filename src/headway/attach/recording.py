"""What the modules of a user's model return: recorded in one pass, given back in later ones."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn

from headway.attach.intervention import own_forward


@contextmanager
def recorded_calls(model: nn.Module, paths: Sequence[str]) -> Iterator[tuple[dict[str, Any], set[str]]]:
    """What these modules return while it lasts, by their paths, and which of them ran more than once."""
    returned: dict[str, Any] = {}
    twice: set[str] = set()

    def recorded(path: str, forward: Callable[..., Any], /, *inputs: Any, **named: Any) -> Any:
        output = forward(*inputs, **named)
        if path in returned:
            twice.add(path)
        returned[path] = map_tensors(output, Tensor.clone)  # a later layer may write into it
        return output

    with ExitStack() as stack:
        for path in dict.fromkeys(paths):
            module = model.get_submodule(path)
            stack.enter_context(own_forward(module, partial(recorded, path, module.forward)))
        yield returned, twice


def returning(model: nn.Module, path: str, output: Callable[[], Any]) -> AbstractContextManager[None]:
    """While it lasts, the module at a path does nothing and returns this."""
    return own_forward(model.get_submodule(path), lambda *_, **__: output())


def first_tensor(value: Any) -> Tensor | None:
    """The first of what a module returned, where that is a tensor."""
    if isinstance(value, tuple | list) and value:
        value = value[0]
    return value if isinstance(value, Tensor) else None


def map_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same structure with every tensor changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, tuple | list):
        parts = [map_tensors(each, change) for each in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if isinstance(value, dict):
        return type(value)({name: map_tensors(each, change) for name, each in value.items()})
    return value


def repeat(tensor: Tensor, rows: int, variants: int) -> Tensor:
    """A tensor with a row for each problem, repeated for every variant; any other as it is."""
    if variants == 1 or tensor.ndim == 0 or tensor.shape[0] != rows:
        return tensor.clone()
    return tensor.repeat(variants, *[1] * (tensor.ndim - 1))
