"""Families beyond those on which every method is held against its formulas: what holds for every family and method."""

from pathlib import Path
from typing import Any

import pytest
import torch

from icrbench.util.errors import UserError
from method_setup import fit, logits, zero_shot_questions
from test_contract import ROWS
from tiny import FURTHER, tiny_backbone

METHODS = ("few_shot", "function_vector", "i2cl", "icr", "ia2", "live", "lora", "reft", "state_vector", "ttt")
NOT_ON_EXPERTS = {"ttt"}


@pytest.mark.parametrize("family", FURTHER)
@pytest.mark.parametrize("name", METHODS)
def test_methods(name: str, family: str, tmp_path: Path) -> None:
    """A method fits; a batch gives what each row gives alone; strength 0 is zero-shot; the formula counts right."""
    backbone, row = tiny_backbone(family), ROWS[name]
    if family == "qwen3_moe" and name in NOT_ON_EXPERTS:
        with pytest.raises(UserError, match="is a mixture of experts, whose weights cannot be adapted"):
            fit(name, backbone, **row.settings)
        return
    fitted: Any = fit(name, backbone, workspace=tmp_path, **row.settings)
    questions = zero_shot_questions(backbone)
    together = logits(backbone, fitted, questions)
    alone = torch.cat([logits(backbone, fitted, [question]) for question in questions])
    torch.testing.assert_close(together, alone, rtol=0, atol=2e-4)
    torch.testing.assert_close(logits(backbone, fitted, questions, "left"), together, rtol=0, atol=2e-4)
    if row.neutral is not None:
        plain = logits(backbone, None, questions)
        torch.testing.assert_close(logits(backbone, row.neutral(fitted), questions), plain, rtol=0, atol=1e-5)
    assert fitted.cached_parameters == fitted.parameters_by_formula(backbone.dims)
