"""How a class of submissions is examined: where they are, and what each may use. Imports no torch."""

from dataclasses import dataclass, fields
from typing import Literal

from headway.errors import HeadwayError
from headway.flags import parse_memory
from headway.question import Question

Format = Literal["gradescope", "otter", "nbgrader"]


@dataclass(frozen=True, kw_only=True)
class ClassQuestion(Question):
    each: tuple[str, ...] = ()
    """examine many submissions with one adapter: a folder, or a pattern such as 'submissions/*'"""
    out: str | None = None
    """with --each: folder for the results (default: examined)"""
    timeout: float = 120.0
    """with --each: seconds after which a submission is stopped"""
    memory_limit: str = "4GB"
    """with --each: memory that each process of a submission may use"""
    workers: int | None = None
    """with --each: submissions examined at a time (default: one per core)"""
    format: tuple[Format, ...] = ()
    """with --each: also write the results for gradescope, otter or nbgrader"""

    def check_class(self) -> None:
        """Raises if a setting makes no sense."""
        if not self.each:
            for entry in fields(ClassQuestion):
                if entry.name not in ("device", "quiet") and getattr(self, entry.name) != entry.default:
                    raise HeadwayError(f"`{entry.name}` is for many submissions; add `each='submissions/*'`")
        if not 1 <= self.timeout <= 86_400:
            raise HeadwayError(f"`timeout={self.timeout:g}`: ask for 1 to 86,400 seconds")
        if self.workers is not None and not 1 <= self.workers <= 1_000:
            raise HeadwayError(f"`workers={self.workers}`: ask for 1 to 1,000")
        if self.memory_bytes < 2**29:
            raise HeadwayError(f"`memory_limit={self.memory_limit}`: PyTorch alone needs 512MB; ask for more")

    @property
    def memory_bytes(self) -> int:
        return parse_memory(self.memory_limit)
