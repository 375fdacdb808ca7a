"""Models whose weights are quantised: as they come, or with ``--quantize``, by torchao, weights alone."""

import importlib.util
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from icrbench.backbone.anatomy import blocks_of, dimensions_of
from icrbench.util.errors import UserError, unknown

QUANTIZE = ("int4", "int8")
GROUP = 32
"""Weights that share a scale under ``int4``: successive inputs of one output. Under ``int8`` it is a whole row."""

PACKAGES = {
    "torchao": ("torchao",),
    "bitsandbytes": ("bitsandbytes",),
    "gptq": ("gptqmodel", "optimum"),
    "awq": ("gptqmodel",),
    "compressed-tensors": ("compressed-tensors",),
}
"""What transformers needs to load weights of each method of quantisation, as the package index calls it."""


def check_quantize(asked: str | None) -> None:
    """Raise a UserError for a kind of quantisation that there is not."""
    if asked is not None and asked not in QUANTIZE:
        raise unknown("quantisation", asked, QUANTIZE)


def check_quantisable(model: str, config: Any, asked: str | None) -> str | None:
    """Find what can be found wrong before weights are loaded; returns the method of quantisation, if there is one.

    Args:
        model: what the user calls it.
        config: its configuration.
        asked: ``--quantize``.

    Raises:
        UserError: if it comes quantised already, cannot be quantised, or needs a package that is not installed.
    """
    check_quantize(asked)
    own = quantisation(config)
    if own is not None and asked is not None:
        raise UserError(f"model '{model}' comes quantised ({own['quant_method']}): leave out --quantize.")
    if own is None and asked is None:
        return None
    method = "torchao" if own is None else str(own["quant_method"])
    missing = [name for name in PACKAGES.get(method, ()) if importlib.util.find_spec(name.replace("-", "_")) is None]
    if missing:
        way = "--quantize" if own is None else f"model '{model}' comes quantised ({method}) and"
        packages = " ".join(missing)
        raise UserError(f"{way} needs a package that is not installed: `pip install {packages}` gets it.")
    if asked == "int4":
        dims = dimensions_of(config)
        odd = [width for width in (dims.hidden, dims.heads * dims.head_dim, dims.inner) if width % GROUP]
        if odd:
            raise UserError(
                f"--quantize int4 takes weights in groups of {GROUP}, into which the {odd[0]} inputs of a projection of"
                f" model '{model}' do not divide: use int8."
            )
    return method


def torchao_config(asked: str) -> Any:
    """Return transformers' configuration of ``--quantize``: what runs on every device in every number type."""
    from torchao.quantization import Int8WeightOnlyConfig, IntxWeightOnlyConfig, PerGroup
    from transformers import TorchAoConfig

    if asked == "int8":
        return TorchAoConfig(Int8WeightOnlyConfig(version=2))
    int4: Any = getattr(torch, "int4")  # noqa: B009  # torch's stubs lack it
    return TorchAoConfig(IntxWeightOnlyConfig(weight_dtype=int4, granularity=PerGroup(GROUP)))


def check_quantised(model: Any, anatomy: Any, name: str) -> None:
    """Check that ``--quantize`` reached the bulk of the weights.

    Raises:
        UserError: if most of the blocks' weights are as they were; torchao takes those of linear layers alone.
    """
    weights = [weight for block in blocks_of(model, anatomy) for weight in block.parameters()]
    done = sum(weight.numel() for weight in weights if not is_plain(weight))
    if 2 * done < sum(weight.numel() for weight in weights):
        raise UserError(
            f"model '{name}' keeps most of its weights outside of linear layers, where --quantize cannot reach them:"
            " leave it out."
        )


def quantisation(config: Any) -> dict[str, Any] | None:
    """Return the method of quantisation (``quant_method``) and its parameters, as JSON values; None for plain weights.

    Args:
        config: of a model, loaded or not.
    """
    own = getattr(config, "quantization_config", None)
    if own is None:
        return None
    values: Mapping[str, Any] = own if isinstance(own, Mapping) else own.to_dict()
    method = values.get("quant_method", "bitsandbytes")  # whose older folders do not name it
    named = {name: value for name, value in values.items() if name[0] != "_"}
    return {**named, "quant_method": str(getattr(method, "value", method))}


def quantiser(method: str) -> str:
    """Return the packages of a method of quantisation and their versions, for a result's identity."""
    return ", ".join(f"{name} {_version(name)}" for name in PACKAGES.get(method, ()))


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


def is_plain(weight: Tensor) -> bool:
    """Whether a weight holds the numbers that it multiplies with, and not a code for them."""
    return weight.is_floating_point() and not _wraps(weight)


def _wraps(tensor: Tensor) -> bool:
    return is_traceable_wrapper_subclass(tensor)


def parts(name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield the plain tensors that a tensor is made of, by name: itself, or the codes and scales of a quantised one."""
    if not _wraps(tensor):
        yield name, tensor
        return
    inner, _ = tensor.__tensor_flatten__()  # type: ignore[attr-defined]  # as torch asks of such tensors
    for part in inner:
        yield from parts(f"{name}.{part}", getattr(tensor, part))


def matrix(layer: nn.Module) -> Tensor:
    """Return what a linear layer multiplies with, ``[d_out, d_in]``, however its weights are kept."""
    weight = layer.weight
    assert isinstance(weight, Tensor)
    if not isinstance(layer, nn.Linear):
        return weight.T  # GPT-2's projections are stored transposed
    if not is_plain(weight):
        dtype = weight.dtype if weight.is_floating_point() else torch.float32
        eye = torch.eye(layer.in_features, dtype=dtype, device=weight.device)
        with torch.no_grad():
            return (layer.forward(eye) - layer.forward(eye[:1] * 0)).T
    return weight
