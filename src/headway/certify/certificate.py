"""Certificates: a proof by exhaustion that a model is right at every length.

If attention is windowed and positions are relative, an answer depends on a bounded neighbourhood of tokens, wherever
it is in the sequence. There are finitely many neighbourhoods, the borders included. The real model runs on each of
them, inside a real problem; its output is compared with the right answer, and the lead of the right answer with a bound
on what rounding can change. docs/certificates.md has the argument on one page, and what it does not cover.
"""

from collections.abc import Callable

from headway.certify.assumptions import check_parts, write_assumptions
from headway.certify.columns import certify_columns
from headway.certify.fading import certify_fading, check_known
from headway.certify.framed import certify_framed, check_windows
from headway.certify.leads import check_weights
from headway.certify.locality import Certifiable, NotLocal, check_relative, check_windowed
from headway.certify.neighbours import certify_neighbours
from headway.certify.verdict import Verdict, Watch
from headway.machine import full_precision_matmul
from headway.models import Model
from headway.tasks import Task
from headway.tasks.problems import Columns, Neighbours

Prove = Callable[..., Verdict]
"""Called with the model, its task, the locality that the task declares, and what watches the progress."""
PROOFS: dict[tuple[type, str, bool], Prove] = {
    (Columns, "decoder", True): certify_columns,
    (Columns, "averaging", True): certify_framed,
    (Neighbours, "classifier", True): certify_neighbours,
    (Neighbours, "classifier", False): certify_fading,
}
"""by the kind of locality that a task declares, the kind of the model, and whether a window masks all distant keys"""
WINDOWS = {"averaging": check_windows}
"""by the kind of a model whose windows are its own: what is checked of them"""


def certify(model: Model, task: Task, watch: Watch | None = None) -> Verdict:
    """Checks every context; the verdict has a reason if there can be no certificate."""
    was_training = model.training
    model.eval()
    try:
        local = task.local
        stream, prove = _find_proof(model, local)
        check_parts(stream)
        check_weights(stream)
        if isinstance(local, str):
            raise NotLocal(local)
        if prove is None:
            raise NotLocal(f"the contexts of {task.name} cannot be enumerated for this model")
        with full_precision_matmul():  # TF32 is outside the theorem
            verdict = prove(stream, task, local, watch).settle()
        verdict.assumes = write_assumptions(stream).to_json()
        return verdict
    except NotLocal as reason:
        return Verdict(reason=str(reason))
    finally:
        model.train(was_training)


def _find_proof(model: Model, local: Columns | Neighbours | str) -> tuple[Certifiable, Prove | None]:
    """Returns the model, once it is checked what its heads can see, and the proof for it."""
    if model.config.kind in WINDOWS:
        return WINDOWS[model.config.kind](model), PROOFS.get((type(local), model.config.kind, True))
    stream = check_relative(model)
    kind = type(local), model.config.kind, stream.positions.offsets is not None
    (check_known if kind in PROOFS and not kind[2] else check_windowed)(stream)
    return stream, PROOFS.get(kind)
