"""Certificates: a proof, by going through all cases, that a model is right at every length.

Where attention goes through windows and positions are relative, an answer depends on a bounded neighbourhood of
tokens, the same wherever it stands. There are finitely many neighbourhoods, the borders included. Each is put before
the real model inside a real problem, and what it says is held against the truth. docs/certificates.md has the argument
in one page, and what it does not cover.
"""

from __future__ import annotations

from headway.certify.columns import certify_addition
from headway.certify.locality import NotLocal, check_relative
from headway.certify.neighbours import certify_sortedness
from headway.certify.verdict import Verdict, Watch
from headway.models import Classifier, Decoder, Model
from headway.tasks import Addition, Sortedness, Task


def certify(model: Model, task: Task, watch: Watch | None = None) -> Verdict:
    """Goes through every context there is; says why not where there can be no certificate."""
    was_training = model.training
    model.eval()
    try:
        check_relative(model)
        if isinstance(task, Addition) and isinstance(model, Decoder):
            return certify_addition(model, task, watch).settle()
        if isinstance(task, Sortedness) and isinstance(model, Classifier):
            return certify_sortedness(model, task, watch).settle()
        raise NotLocal(f"{task.name} with this model has no contexts that could be listed")
    except NotLocal as reason:
        return Verdict(reason=str(reason))
    finally:
        model.train(was_training)
