"""torch's AdamW without the import of the compiler.

Methods of torch's optimizers tell torch.compile to leave them alone. Eager training compiles nothing, yet for that they
import all of torch._dynamo, which takes about a third of the time of the shortest run and of each new process that
trains.
"""

import torch
from torch.optim import Optimizer

MARK = "__dynamo_disable"
"""the attribute under which torch stores the function that it calls in place of one that must not be compiled"""


def spare_dynamo() -> None:
    """Makes the methods that optimizers inherit call their own code, instead of a copy made by torch._dynamo. Nothing
    changes where torch has other names for this, or has loaded it already."""
    for name in ("add_param_group", "zero_grad", "state_dict", "load_state_dict"):
        plain = getattr(getattr(Optimizer, name), "__wrapped__", None)
        if plain is not None and not hasattr(plain, MARK):
            setattr(plain, MARK, plain)


class AdamW(torch.optim.AdamW):
    """The same steps as torch's, to the bit."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        inherited = torch.optim.AdamW.step
        getattr(inherited, "__wrapped__", inherited)(self)  # without the graph breaks around it
