"""Opening: the options for a SUBJECT that is a Hugging Face model, part of every question. Imports no torch."""

from dataclasses import dataclass

from headway.errors import HeadwayError
from headway.flags import parse_memory
from headway.question import Question


@dataclass(frozen=True, kw_only=True)
class Opening(Question):
    examples: int | str | None = None
    """number of fresh problems (default 10,000); for a Hugging Face model, a JSONL or text file of examples"""
    metric: str | None = None
    """for a Hugging Face model: exact, loss, accuracy, kl, logit-difference or your own file.py:function (the default
    depends on the examples)"""
    memory: str = "1GB"
    """for a Hugging Face model: the memory limit of one pass"""
    hub: bool = False
    """download the model of that name from the Hugging Face hub"""

    def __post_init__(self) -> None:
        if self.count is not None and self.count < 1:
            raise HeadwayError(f"examples is {self.count}; it must be at least 1")
        parse_memory(self.memory)

    @property
    def count(self) -> int | None:
        """The number of problems, if one was given."""
        return self.examples if isinstance(self.examples, int) else None

    @property
    def file(self) -> str | None:
        """The file of examples, if one was given."""
        return self.examples if isinstance(self.examples, str) else None

    def check_unused(self, name: object) -> None:
        """Raises if a file or a metric is given for a subject that has its own problems."""
        if self.file is not None or self.metric is not None:
            raise HeadwayError(
                f"{name} has its own problems; a file of examples and a metric are only for Hugging Face models"
            )
