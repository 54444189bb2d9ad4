"""Every tensor shape that a signature names is enforced while the tests run."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from jaxtyping import install_import_hook

spec = find_spec("headway")
assert spec is not None
assert spec.origin is not None
parts = [path.stem for path in Path(spec.origin).parent.iterdir() if path.suffix == ".py" or path.is_dir()]
# Triton reads the source of a kernel and cannot take a wrapped one.
hook = install_import_hook([f"headway.{part}" for part in parts if part != "kernels"], "beartype.beartype")

import pytest  # noqa: E402
import torch  # noqa: E402

from headway.machine import prepare  # noqa: E402

prepare(torch.device("cpu"))


@pytest.fixture(scope="session")
def adder():
    """The trained adder that ships with the package."""
    from headway.api import pretrained

    return pretrained("adder")
