"""Problems of several lengths in one table: shorter rows end in PADDING, which no model reads."""

from jaxtyping import Int
from torch import Tensor

from headway.tasks import Problems

PADDING = -1


def lengths_of(problems: Problems) -> Int[Tensor, " row"]:
    """Returns a key for each problem; two keys are equal where sources and answers have equal lengths."""
    answers = (problems.answer != PADDING).sum(1)
    if problems.source.is_floating_point():
        return answers
    return (problems.source != PADDING).sum(1) * (problems.answer.shape[1] + 1) + answers


def mean_length(problems: Problems) -> int:
    """Returns how many tokens a problem has with its answer, on average."""
    answers = (problems.answer != PADDING).sum(1)
    if problems.source.is_floating_point():
        return round(float(answers.float().mean()))
    return round(float(((problems.source != PADDING).sum(1) + answers).float().mean()))


def trim(problems: Problems) -> Problems:
    """Removes the columns that are padding in every row; problems of one length are then not padded at all."""
    answers = max(1, int((problems.answer != PADDING).sum(1).max()))
    scored = None if problems.scored is None else problems.scored[:, :answers]
    source = problems.source
    if not source.is_floating_point():
        source = source[:, : int((source != PADDING).sum(1).max())]
    return Problems(source, problems.answer[:, :answers], scored)


def sort_by_length(problems: Problems) -> Problems:
    """Sorts problems so that those of equal length are adjacent."""
    lengths = lengths_of(problems)
    return problems if bool((lengths == lengths[:1]).all()) else problems[lengths.argsort(stable=True)]


def most_common_length(problems: Problems, most: int) -> Problems:
    """Returns at most `most` problems of the most common length."""
    lengths = lengths_of(problems)
    return trim(problems[(lengths == lengths.mode().values).nonzero()[:most, 0]])
