"""The tensor shapes that signatures name are enforced while the tests run (on a machine without a GPU)."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import jaxtyping
import torch
from hypothesis import HealthCheck, settings

from checked import CALLS, check_first_calls

spec = find_spec("headway")
assert spec is not None
assert spec.origin is not None
parts = [path.stem for path in Path(spec.origin).parent.iterdir() if path.suffix == ".py" or path.is_dir()]
if not torch.cuda.is_available():  # the compiler cannot see through the checks
    # Triton reads the source of a kernel and cannot take a wrapped one.
    jaxtyping.jaxtyped = check_first_calls
    jaxtyping.install_import_hook([f"headway.{part}" for part in parts if part != "kernels"], "beartype.beartype")

import pytest  # noqa: E402

from headway.machine import prepare  # noqa: E402
from headway.report import figures  # noqa: E402

prepare(torch.device("cpu"))
# A busy machine fails no test: nothing is held against a clock.
settings.register_profile(
    "busy", deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
settings.load_profile("busy")


# Files whose tests take longest, longest first: a core that begins one of them last would leave the others idle.
LONGEST = (
    "test_museum.py", "test_study.py", "test_golden.py", "test_page.py", "test_class.py", "test_own_models_doc.py",
    "test_recipes.py", "test_page_evidence.py", "test_sweep_ray.py", "test_cli.py", "test_members.py", "test_sums.py",
    "test_paths.py", "test_sweep.py", "test_certificate.py", "test_population.py", "test_extending.py",
    "test_kinds.py", "test_sweep_kill.py", "test_kill.py", "test_drive.py", "test_page_model.py", "test_doctor.py",
    "test_reach.py", "test_extrapolation.py", "test_reports_recipe.py", "test_maps.py", "test_patching.py",
    "test_sweep_files.py", "test_validation.py", "test_teaching_doc.py", "test_head_figures.py", "test_page_files.py",
    "test_loop.py", "test_optimum.py", "test_exact.py", "test_readers.py",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.name, len(places)))


@pytest.fixture(autouse=True)
def _check_anew() -> None:
    CALLS.clear()


@pytest.fixture(scope="session", autouse=True)
def _no_pictures() -> Iterator[None]:
    """Nothing is drawn where a test does not ask for `pictures`: drawing takes longer than most tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "can_draw", lambda: False)
        yield


@pytest.fixture
def pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "can_draw", lambda: True)


@pytest.fixture(scope="session")
def adder():
    """The trained adder that ships with the package."""
    from headway.api import pretrained

    return pretrained("adder")
