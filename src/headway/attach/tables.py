"""Tables of positions with other rows, for a while: longer than the model's own, so that it can run past its end."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headway.attach.order import offset_of

if TYPE_CHECKING:
    from headway.attach.order import Setting

CURES = ("interpolation", "clamp", "reuse")
SHAM = "interpolation-in-range"


def change_rows(rows: Float[Tensor, "row width"], cure: str, setting: "Setting") -> Float[Tensor, "position width"]:
    """Returns the rows of positions 0, 1, … of a cure; all but the sham have at least the length of the setting."""
    trained = min(setting.trained, len(rows))
    place = torch.arange(max(setting.length, len(rows)), device=rows.device)
    if cure == "reuse":
        return rows[place % trained]
    if cure == "clamp":
        return rows[place.clamp(max=trained - 1)]
    between = (place.double() / setting.factor).clamp(max=trained - 1)
    below = between.long()
    weight = (between - below)[:, None].to(torch.float32)
    mixed = rows[below].float().lerp(rows[(below + 1).clamp(max=trained - 1)].float(), weight).to(rows.dtype)
    return torch.cat((mixed[:trained], rows[trained:])) if cure == SHAM else mixed


@contextmanager
def change_table(model: nn.Module, path: str, cure: str, setting: "Setting") -> Iterator[None]:
    """Puts a table with the rows of a cure in the place of the model's, inside the context."""
    table = model.get_submodule(path)
    assert isinstance(table, nn.Embedding)
    own, offset = table._parameters["weight"], offset_of(table)
    assert own is not None
    with torch.no_grad():
        rows = torch.cat((own[:offset], change_rows(own[offset:], cure, setting)))
    try:
        table._parameters["weight"] = nn.Parameter(rows, requires_grad=False)
        yield
    finally:
        table._parameters["weight"] = own
