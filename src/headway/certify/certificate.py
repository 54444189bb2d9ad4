"""Certificates: a proof, by going through all cases, that a model is right at every length.

Where attention goes through windows and positions are relative, an answer depends on a bounded neighbourhood of
tokens, the same wherever it stands. There are finitely many neighbourhoods, the borders included. Each is put before
the real model inside a real problem, and what it says is held against the truth. docs/certificates.md has the argument
in one page, and what it does not cover.
"""

from headway.certify.columns import certify_columns
from headway.certify.locality import NotLocal, check_relative
from headway.certify.neighbours import certify_neighbours
from headway.certify.verdict import Verdict, Watch
from headway.models import Model
from headway.tasks import Task
from headway.tasks.problems import Columns, Neighbours

PROOFS = {(Columns, "decoder"): certify_columns, (Neighbours, "classifier"): certify_neighbours}
"""by what a task says its answers depend on, and the kind of the model"""


def certify(model: Model, task: Task, watch: Watch | None = None) -> Verdict:
    """Goes through every context there is; says why not where there can be no certificate."""
    was_training = model.training
    model.eval()
    try:
        stream, local = check_relative(model), task.local
        if isinstance(local, str):
            raise NotLocal(local)
        if (prove := PROOFS.get((type(local), model.config.kind))) is None:
            raise NotLocal(f"{task.name} with this model has no contexts that could be listed")
        return prove(stream, task, local, watch).settle()
    except NotLocal as reason:
        return Verdict(reason=str(reason))
    finally:
        model.train(was_training)
