"""What is the number worth? A check of how right answers are counted."""

from torch import Tensor

from headway.doctor.check import Checked, check, failed, passed, skipped
from headway.doctor.patient import Patient
from headway.errors import HeadwayError
from headway.tasks import Problems


@check("metric", forbids=("heads", "lengths"), explains=("converged", "floor"))
def metric(patient: Patient) -> Checked:
    """Whether the reported accuracy is over whole answers."""
    score, problems = patient.subject.score, patient.problems
    if score is None:
        return skipped("it needs the accuracy as you report it: Subject(score=lambda problems: …)")
    value = patient.call("score", score, problems)
    if not isinstance(value, int | float) and not (isinstance(value, Tensor) and value.numel() == 1):
        raise HeadwayError(f"score of {patient.subject.name} returned {type(value).__name__}; return one number")
    reported = float(value) / 100 if float(value) > 1 else float(value)  # in percent
    answers = [patient.logits.argmax(-1)]
    if patient.subject.generate is not None and not patient.answers_with_class:
        answers.append(patient.generate_wide(problems))
    forced = patient.predict(problems)
    if forced is not None and forced.shape == problems.answer.shape:
        answers.append(forced)
    others = [float(patient.judge_tokens(tokens, problems).float().mean()) for tokens in answers[1:]]
    near = 0.5 / len(problems) + 1e-6
    if any(abs(reported - each) <= near for each in (patient.accuracy, *others)):
        return passed(f"the reported {reported:.4f} is the share of whole answers that are right", reported=reported)
    counts = [count for tokens in answers for count in _other_counts(patient, tokens, problems).items()]
    named = [name for name, value in counts if abs(value - reported) <= near]
    what = f"it is accuracy {named[0]}" if named else "it is neither that nor accuracy over tokens"
    return failed(
        f"reported {reported:.4f}, but {patient.accuracy:.4f} of the whole answers are right: {what}",
        "count an answer as right when all of its tokens are",
        reported=reported, exact_match=patient.accuracy, candidates=dict(reversed(counts)),
    )  # fmt: skip


def _other_counts(patient: Patient, tokens: Tensor, problems: Problems) -> dict[str, float]:
    """What people count instead of whole answers."""
    same, length = tokens == problems.answer, problems.answer.shape[1]
    counts = {"over tokens": float(same.float().mean())}
    for token in dict.fromkeys((patient.subject.pad, 0)):
        if token is not None and bool((counted := problems.answer != token).any()):
            counts[f"over tokens other than {token}"] = float(same[counted].float().mean())
            counts[f"over answers, whose tokens {token} do not count"] = float((same | ~counted).all(1).float().mean())
    for first in range(1, length):
        counts[f"over the last {length - first} tokens of an answer"] = float(same[:, first:].float().mean())
        counts[f"over answers without their first {first} tokens"] = float(same[:, first:].all(1).float().mean())
    return counts | {f"over token {at} alone": float(same[:, at].float().mean()) for at in range(length)}
