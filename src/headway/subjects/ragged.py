"""Problems of several lengths in one table: what is missing at the end of a row is NOTHING, which no model sees."""

from jaxtyping import Int
from torch import Tensor

from headway.tasks import Problems

NOTHING = -1


def lengths_of(problems: Problems) -> Int[Tensor, " row"]:
    """A number for each problem that is the same for those whose sources and answers have as many tokens."""
    answers = (problems.answer != NOTHING).sum(1)
    if problems.source.is_floating_point():
        return answers
    return (problems.source != NOTHING).sum(1) * (problems.answer.shape[1] + 1) + answers


def trim(problems: Problems) -> Problems:
    """The same problems without what none of them has; problems of one length are then not padded at all."""
    answers = max(1, int((problems.answer != NOTHING).sum(1).max()))
    scored = None if problems.scored is None else problems.scored[:, :answers]
    source = problems.source
    if not source.is_floating_point():
        source = source[:, : int((source != NOTHING).sum(1).max())]
    return Problems(source, problems.answer[:, :answers], scored)


def sort_by_length(problems: Problems) -> Problems:
    """The same problems, those of one length side by side."""
    lengths = lengths_of(problems)
    return problems if bool((lengths == lengths[:1]).all()) else problems[lengths.argsort(stable=True)]


def most_common_length(problems: Problems, most: int) -> Problems:
    """Some of those problems that are of the commonest length."""
    lengths = lengths_of(problems)
    return trim(problems[(lengths == lengths.mode().values).nonzero()[:most, 0]])
