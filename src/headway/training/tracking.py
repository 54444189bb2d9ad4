"""Training curves in TensorBoard or trackio, from the extra `tracking`; off by default."""

import importlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from headway.errors import HeadwayError, unknown

Log = Callable[[int, dict[str, float]], object]  # takes a step and its numbers
Tracker = Callable[[Path, str], AbstractContextManager[Log | None]]
"""Called with the run folder and the run's name; open while the run trains."""


def find_tracker(name: str | None) -> Tracker:
    """Finds the tracker of this name; fails before anything is trained if its packages are missing."""
    if name is None:
        return lambda run, title: nullcontext()
    known = {"tensorboard": (_tensorboard, "torch.utils.tensorboard"), "trackio": (_trackio, "trackio")}
    if name not in known:
        raise unknown("tracker", name, known)
    tracker, module = known[name]
    try:
        importlib.import_module(module)
        return tracker
    except ImportError as error:
        raise HeadwayError(
            f"`tracker={name}` needs more packages ({error}); pip install 'headway[tracking]'"
        ) from error


@contextmanager
def _tensorboard(run: Path, title: str) -> Iterator[Log]:
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(run / "tensorboard")) as writer:
        yield lambda step, numbers: [writer.add_scalar(key, value, step) for key, value in numbers.items()]


@contextmanager
def _trackio(run: Path, title: str) -> Iterator[Log]:
    import trackio  # pyright: ignore[reportMissingImports]

    trackio.init(project="headway", name=title)
    try:
        yield lambda step, numbers: trackio.log(numbers, step=step)
    finally:
        trackio.finish()
