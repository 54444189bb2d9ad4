"""How many variants go best in one pass: tried, not guessed. The first passes are made in several sizes and timed; what
they compute is used."""

import math

SIZES = (1, 1, 2, 4)
"""the first pass is slow for other reasons"""


class Stacking:
    def __init__(self) -> None:
        self.ahead = list(SIZES)
        self.spent: dict[int, float] = {}
        """seconds a variant, by size"""

    def size(self, most: int) -> int:
        """Of the next pass, which may hold no more than `most`."""
        if self.ahead and self.ahead[0] <= most:
            return self.ahead[0]
        return max((size for size in self.spent if size <= most), key=lambda size: -self.spent[size], default=1)

    def took(self, size: int, seconds: float) -> None:
        if self.ahead and self.ahead[0] == size:
            self.ahead.pop(0)
            self.spent[size] = min(self.spent.get(size, math.inf), seconds / size)

    def stay_small(self) -> None:
        """One at a time from now on: memory has run out."""
        self.ahead, self.spent = [], {1: 0.0}
