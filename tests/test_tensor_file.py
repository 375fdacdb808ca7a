"""Files of tensors that are written piece by piece are those that safetensors would have written."""

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from icrbench.toolkit.tensor_file import tensor_file


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_pieces_in_any_order_make_the_library_s_file(tmp_path: Path, dtype: torch.dtype) -> None:
    whole = {"keys": torch.randn(3, 7, 2).to(dtype), "queries": torch.randn(3, 7, 5).to(dtype)}
    shapes = {name: (3, 7, tensor.shape[2]) for name, tensor in whole.items()}
    with tensor_file(tmp_path / "pieces", shapes, dtype) as file:
        for start, end in ((4, 7), (0, 1), (1, 4)):
            for name, tensor in whole.items():
                file.put(name, start, tensor[:, start:end])
    save_file(whole, tmp_path / "whole")
    assert (tmp_path / "pieces").read_bytes() == (tmp_path / "whole").read_bytes()
    with safe_open(tmp_path / "pieces", framework="pt") as read:
        assert torch.equal(read.get_slice("keys")[1], whole["keys"][1])


def test_rows_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    with tensor_file(tmp_path / "file", {"keys": (2, 3, 4)}) as file:
        for start, rows in ((2, torch.zeros(2, 2, 4)), (0, torch.zeros(2, 1, 5)), (0, torch.zeros(1, 1, 4))):
            with pytest.raises(ValueError, match="do not fit"):
                file.put("keys", start, rows.half())
