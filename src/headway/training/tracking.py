"""Curves in a tracker of the user's: TensorBoard or trackio, from the extra `tracking`; off by default."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from headway.errors import HeadwayError, unknown

Track = Callable[[int, dict[str, float]], None]


def tracker(name: str, run: Path, title: str) -> Track:
    """A function that takes a step and its numbers."""
    try:
        if name == "tensorboard":
            from torch.utils.tensorboard import SummaryWriter

            writer = SummaryWriter(str(run / "tensorboard"))

            def to_tensorboard(step: int, numbers: dict[str, float]) -> None:
                for key, value in numbers.items():
                    writer.add_scalar(key, value, step)
                writer.flush()

            return to_tensorboard
        if name == "trackio":
            import trackio  # pyright: ignore[reportMissingImports]

            trackio.init(project="headway", name=title)
            return lambda step, numbers: trackio.log(numbers, step=step)
    except ImportError as error:
        raise HeadwayError(
            f"--tracker {name} needs a package that is not here ({error}); pip install 'headway[tracking]'"
        ) from error
    raise unknown("tracker", name, ("tensorboard", "trackio"))
