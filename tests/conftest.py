"""What all tests share: the mark ``slow``, for files that `make quick` leaves out, and a registry of one's own."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from icrbench import method
from icrbench.registry import methods

if os.environ.get("ICRBENCH_TEST_DEVICE", "").startswith("pretend"):
    import pretend_device  # noqa: F401  # makes the devices known

FOLDERS = ("icr", "methods")
SLOW = [
    "test_chat",
    "test_contract",
    "test_devices",
    "test_distillation",
    "test_experiments",
    "test_explain",
    "test_export_fits",
    "test_figures",
    "test_generation",
    "test_input_properties",
    "test_integrity",
    "test_launch",
    "test_lm_eval_answers",
    "test_lm_eval_methods",
    "test_lm_eval_parity",
    "test_lm_eval_results",
    "test_misbehaving_plugins",
    "test_identity",
    "test_packaging",
    "test_page_browser",
    "test_page_costs",
    "test_page_first_sight",
    "test_page_view",
    "test_plugins",
    "test_python",
    "test_python_docs",
    "test_quantised",
    "test_ray",
    "test_runner",
    "test_sensitivity",
    "test_slurm",
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.stem in SLOW or item.path.relative_to(here).parts[0] in FOLDERS:
            item.add_marker(pytest.mark.slow)


@pytest.fixture
def own_registry() -> Iterator[None]:
    """Methods registered by a test are not there for the next."""
    methods()  # all modules are imported, so what follows is undone whole
    known = dict(method.REGISTRY)
    yield
    method.REGISTRY.clear()
    method.REGISTRY.update(known)
    for name in [name for name in sys.modules if name.startswith("icrbench_methods_")]:
        del sys.modules[name]
