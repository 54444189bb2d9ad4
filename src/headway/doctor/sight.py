"""What does an answer depend on that it should not? Checks of later tokens and of padding."""

from contextlib import suppress

import torch

from headway.doctor.check import Checked, check, failed, passed, skipped
from headway.doctor.decoding import NO_DECODE, forced_sees_later, sees_later
from headway.doctor.patient import Patient
from headway.errors import HeadwayError
from headway.evaluation.verdicts import largest
from headway.tasks import Problems

PADDED = (4, 2, 1)
"""tokens of padding to add: as many as the model takes"""


@check("causality", forbids=("heads", "lengths"), explains=("greedy", "converged", "floor", "metric"))
def causality(patient: Patient) -> Checked:
    """Whether a later decoder token changes an earlier output."""
    if patient.answers_with_class:
        return skipped("it answers with a class; there are no later tokens")
    if patient.few.answer.shape[1] < 2:
        return skipped("answers have one token; there is no later one")
    remedy = "use the causal mask, in training and in evaluation"
    changed = forced_sees_later(patient, patient.few)
    if changed:
        what = f"changes {changed:.1%} of what the one pass says before them: it sees the answer"
        return failed(f"exchanging later tokens {what}", remedy, changed=changed)
    if patient.subject.decode is None or patient.subject.start is None:
        return skipped(NO_DECODE)
    worst = sees_later(patient, patient.few)
    if worst <= patient.same:
        return passed(f"exchanging later tokens moves no earlier logit by more than {worst:.1g}", moved=worst)
    what = f"moves earlier logits by up to {worst:.2g}: it sees the answer that it is to predict"
    return failed(f"exchanging later tokens {what}", remedy, moved=worst)


@check("padding", explains=("converged", "floor"))
def padding(patient: Patient) -> Checked:
    """Whether adding padding changes an answer."""
    pad, problems = patient.subject.pad, patient.few
    if pad is None:
        return skipped("no padding token was given; Subject(pad=TOKEN) where sequences are padded")
    plain, added, tried = patient.logits[: len(problems)], 0, []
    for added in PADDED:
        more = torch.full_like(problems.source[:, :1], pad).expand(-1, added)
        for parts in ((problems.source, more), (more, problems.source)):  # behind, as an encoder's; or before
            with suppress(HeadwayError):
                tried.append(patient.run(Problems(torch.cat(parts, 1), problems.answer, problems.scored)))
        if tried:
            break
    if not tried:
        return skipped(
            f"the model takes no source longer than {problems.source.shape[1]} tokens; give shorter examples"
        )
    padded = min(tried, key=lambda logits: largest(logits - plain))
    moved = largest(padded - plain)
    changed = float((padded.argmax(-1) != plain.argmax(-1)).any(-1).float().mean())
    if moved <= patient.same:
        return passed(f"{added} tokens of padding move no logit by more than {moved:.1g}", moved=moved, added=added)
    return failed(
        f"{added} tokens of padding move logits by up to {moved:.2g} and change {changed:.1%} of the answers: padding "
        "receives attention, or shifts positions",
        "mask padded keys in every attention, in evaluation too",
        moved=moved, changed=changed, added=added,
    )  # fmt: skip
