"""`headway.cache`: a smaller cache for `model.generate`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.errors import HeadwayError
from headway.windows.budget import FILE, Budget

if TYPE_CHECKING:
    from headway.windows.cache import WindowCache


def cache(model: Any, budget: Budget | str | Path | None = None) -> "WindowCache":
    """Makes a cache for a causal language model of transformers in which each key-value group keeps what its budget
    lets it see: `model.generate(**inputs, past_key_values=headway.cache(model))`.

    The budget is a `Budget` or its file; without one it is the `budget.json` of the folder that the model was loaded
    from. The model attends through Headway's implementation until the cache is closed.
    """
    try:
        from headway.windows.switching import check_family, switch_of
    except ImportError as error:
        raise HeadwayError("a cache of windows needs transformers: pip install 'headway[hf]'") from error
    check_family(model)
    if budget is None:
        folder = Path(str(getattr(model, "name_or_path", "") or ""))
        if not (folder / FILE).is_file():
            raise HeadwayError(
                f"{type(model).__name__} has no budget; give one, or load the model from a folder that `headway prune "
                "--windows` wrote"
            )
        budget = folder
    return switch_of(model).make(budget if isinstance(budget, Budget) else Budget.read(budget))
