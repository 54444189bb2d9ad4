"""Lets tests import the engine of mistakes, which is a recipe and not installed."""

import sys
from pathlib import Path

ROOT = str(Path(__file__).parents[2])
if ROOT not in sys.path:
    sys.path.append(ROOT)
