"""Certificates: a proof by exhaustion that a model is right at every length.

If attention is windowed and positions are relative, an answer depends on a bounded neighbourhood of tokens, wherever
it is in the sequence. There are finitely many neighbourhoods, the borders included. The real model runs on each of
them, inside a real problem, and its output is compared with the right answer. docs/certificates.md has the argument on
one page, and what it does not cover.
"""

from headway.certify.columns import certify_columns
from headway.certify.locality import NotLocal, check_relative
from headway.certify.neighbours import certify_neighbours
from headway.certify.verdict import Verdict, Watch
from headway.models import Model
from headway.tasks import Task
from headway.tasks.problems import Columns, Neighbours

PROOFS = {(Columns, "decoder"): certify_columns, (Neighbours, "classifier"): certify_neighbours}
"""by the kind of locality that a task declares, and the kind of the model"""


def certify(model: Model, task: Task, watch: Watch | None = None) -> Verdict:
    """Checks every context; the verdict has a reason if there can be no certificate."""
    was_training = model.training
    model.eval()
    try:
        stream, local = check_relative(model), task.local
        if isinstance(local, str):
            raise NotLocal(local)
        if (prove := PROOFS.get((type(local), model.config.kind))) is None:
            raise NotLocal(f"the contexts of {task.name} cannot be enumerated for this model")
        return prove(stream, task, local, watch).settle()
    except NotLocal as reason:
        return Verdict(reason=str(reason))
    finally:
        model.train(was_training)
