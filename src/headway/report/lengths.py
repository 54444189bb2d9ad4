"""Pictures of a length study."""

from __future__ import annotations

from pathlib import Path


def lengths_figures(study: Path, out: Path) -> list[Path]:
    return []
