"""Every tensor shape that a signature names is enforced while the tests run."""

from __future__ import annotations

from jaxtyping import install_import_hook

hook = install_import_hook("headway", "beartype.beartype")

import pytest  # noqa: E402
import torch  # noqa: E402

from headway.machine import prepare  # noqa: E402

prepare(torch.device("cpu"))


@pytest.fixture(scope="session")
def adder():
    """The trained adder that ships with the package."""
    from headway.api import pretrained

    return pretrained("adder")
