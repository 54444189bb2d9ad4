"""A healthy lab from which any combination of mistakes can be planted, in the ways people write them."""

from .lab import build, build_plan, default_folder
from .mistakes import MISTAKES, Mistake, find_conflict
from .plan import Plan, Style, every_style
from .training import Recipe

__all__ = [
    "MISTAKES",
    "Mistake",
    "Plan",
    "Recipe",
    "Style",
    "build",
    "build_plan",
    "default_folder",
    "every_style",
    "find_conflict",
]
