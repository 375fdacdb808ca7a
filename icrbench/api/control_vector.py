"""A fit as a control vector: the GGUF file that llama.cpp (``--control-vector``) and repeng read.

The file has one tensor ``direction.N`` for each block ``N`` from 1 on, which is added to the output of that block, of
those counted from 0, at every token (llama.cpp: ``llama_adapter_cvec``; the first block has none).
"""

from pathlib import Path

import gguf
import numpy as np
import torch

from icrbench.api.fit import Fit
from icrbench.toolkit.layer_vector import LayerVector
from icrbench.util.errors import UserError
from icrbench.util.files import atomic_path

ARCHITECTURE = "controlvector"


def write_control_vector(fit: Fit, path: Path) -> str | None:
    """Write the file; returns what is to be known in using it.

    Args:
        fit: one that adds a vector to the output of a block.
        path: of the file.

    Raises:
        UserError: if the fit does something else, or the file cannot be written.
    """
    fitted, dims = fit.fitted, fit.backbone.dims
    if not isinstance(fitted, LayerVector) or not _adds(fitted):
        raise UserError(
            f"a control vector is added to what a block gives, and {fit.method.name} does something else:"
            " function_vector and learned_task_vector can be exported."
        )
    if not fitted.first_layer:
        raise UserError("this fit adds to the first block's output, for which llama.cpp has no control vector.")
    with atomic_path(path) as made:
        writer = gguf.GGUFWriter(made, ARCHITECTURE)
        writer.add_string(f"{ARCHITECTURE}.model_hint", str(fit.backbone.model.config.model_type))
        writer.add_uint32(f"{ARCHITECTURE}.layer_count", dims.layers)
        vector = fitted.tensors["vector"].float().numpy()
        for block in range(1, dims.layers):  # readers want a tensor of each
            writer.add_tensor(f"direction.{block}", vector if block == fitted.first_layer else np.zeros_like(vector))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    if fitted.where == "all":
        return None
    return "readers of the file add the vector at every token, icrbench where an answer is predicted alone."


def _adds(fitted: LayerVector) -> bool:
    """Whether the states become their sum with the vector."""
    vector = fitted.tensors["vector"]
    states = torch.stack([torch.zeros_like(vector), torch.ones_like(vector)])
    return torch.equal(fitted.changed(states, vector), states + vector)
