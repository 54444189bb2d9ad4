"""How a SUBJECT is opened that is a Hugging Face model: a part of every question that takes one. No torch in here."""

from dataclasses import dataclass

from headway.errors import HeadwayError
from headway.flags import parse_memory
from headway.question import Question


@dataclass(frozen=True, kw_only=True)
class Opening(Question):
    examples: int | str | None = None
    """that many fresh problems (default 10,000); of a Hugging Face model the file that holds them, JSONL or text"""
    metric: str | None = None
    """of a Hugging Face model: exact, loss, accuracy, kl, logit-difference or your own file.py:function (default: by
    what the examples are)"""
    memory: str = "1GB"
    """of a Hugging Face model: what a pass may take"""
    hub: bool = False
    """fetch a model of that name from the hub"""

    def __post_init__(self) -> None:
        if self.count is not None and self.count < 1:
            raise HeadwayError(f"examples is {self.count}; it must be at least 1")
        parse_memory(self.memory)

    @property
    def count(self) -> int | None:
        """How many problems were asked for."""
        return self.examples if isinstance(self.examples, int) else None

    @property
    def file(self) -> str | None:
        """The file of examples."""
        return self.examples if isinstance(self.examples, str) else None

    def check_unused(self, name: object) -> None:
        """Refuses a file and a metric for a subject that has problems of its own."""
        if self.file is not None or self.metric is not None:
            raise HeadwayError(
                f"{name} brings its own problems; a file of examples and a metric are for Hugging Face models"
            )
