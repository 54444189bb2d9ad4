"""The plan of a language model's length study: lengths, tasks, cures and depths, with every default filled in."""

from dataclasses import dataclass

from headway.attach.cures import cures_for
from headway.attach.order import TokenOrder
from headway.errors import HeadwayError, unknown
from headway.flags import parse_numbers, parse_range, parse_words
from headway.lengths.language.corpus import Material
from headway.lengths.language.effective import NONE
from headway.lengths.language.recall import PromptLayout, RecallTask, choose_tasks
from headway.lengths.question import LengthsQuestion

TIMES = 4  # of the training length: the longest default length
SHORTEST = 32  # tokens of a prompt
ANSWERS, LEAST_ANSWERS = 64, 16  # for each depth at each length
MOST_DEPTHS = 20


@dataclass(frozen=True)
class LanguagePlan:
    """What is asked of a model, with every default filled in."""

    trained: int
    trained_from: str
    """given, config or loss"""
    lengths: tuple[int, ...]
    tasks: tuple[RecallTask, ...]
    layouts: dict[str, PromptLayout]
    cures: tuple[str, ...]
    depths: int
    answers: int
    seed: int
    insists: bool
    """whether cures were named, so that they are measured even for a task that was not learned"""

    @property
    def beyond(self) -> tuple[int, ...]:
        return tuple(length for length in self.lengths if length > self.trained)

    @property
    def tests(self) -> int:
        """The number of cells that are decided together."""
        return len(self.tasks) * (len(self.lengths) + len(self.beyond) * (len(self.cures) - 1))


def find_trained(order: TokenOrder, question: LengthsQuestion) -> tuple[int, str]:
    """Returns the training length, and where it is known from."""
    if question.train_lengths is not None:
        longest = parse_range("train_lengths", question.train_lengths)[1]
        if longest < SHORTEST:
            raise HeadwayError(f"`train_lengths={question.train_lengths}`: a language model's is at least {SHORTEST}")
        return longest, "given"
    if order.claimed is None:
        raise HeadwayError("the model's config names no training length; give it as `train_lengths`, such as 2048")
    return order.claimed, "config"


def make_plan(
    question: LengthsQuestion, order: TokenOrder, material: Material, trained: int, source: str
) -> LanguagePlan:
    """Fills in the defaults; rejects what is impossible."""
    most = question.to or TIMES * trained
    ladder = [max(SHORTEST, trained // 2), trained]
    while 2 * ladder[-1] <= most:
        ladder.append(2 * ladder[-1])
    given = parse_numbers("lengths", question.lengths)
    wanted = given or (*ladder, most if most > trained else trained)
    lengths: tuple[int, ...] = tuple(sorted({trained, *wanted}))
    if lengths[0] < SHORTEST:
        raise HeadwayError(f"`lengths={lengths[0]}`: prompts have at least {SHORTEST} tokens")
    known, named = cures_for(order), parse_words("cures", question.cures)
    for name in named:
        if name not in known:
            raise unknown("cure of this model", name, known)
    answers = ANSWERS if question.examples is None else question.examples
    if answers < LEAST_ANSWERS:
        raise HeadwayError(f"`examples={answers}`: use at least {LEAST_ANSWERS} answers for each depth at each length")
    if not 1 <= question.depths <= MOST_DEPTHS:
        raise HeadwayError(f"`depths={question.depths}`: test 1 to {MOST_DEPTHS} depths")
    tasks = choose_tasks(parse_words("probes", question.probes), material)
    if not given and not all(task.fits(lengths[0], question.depths, material) for task in tasks):
        lengths = tuple(length for length in lengths if length >= trained)  # half of it is too short for the facts
    layouts = {task.name: task.layout(lengths[0], question.depths, material) for task in tasks}
    cures = (NONE, *(name for name in known if name in named)) if named else known
    return LanguagePlan(
        trained, source, lengths, tuple(tasks), layouts, cures, question.depths, answers, question.seed, bool(named)
    )
