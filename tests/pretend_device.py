"""Two accelerators that are not there: `pretend:0` and `pretend:1` compute on the CPU and refuse what GPUs refuse.

Importing this module makes them known to torch, and from then on they are devices like any other::

    model.to("pretend:0")
    torch.ones(3, device="pretend:0") + torch.ones(3)  # RuntimeError: Expected all tensors to be on the same device

A tensor there is a wrapper around a tensor of the CPU that nobody else holds. Every operation on it comes to
`PretendTensor.__torch_dispatch__`, below autograd, which looks at where the operands are, computes with what they
wrap, and wraps the results. What is refused, and what is not, is what CUDA does (`_common_device`). Random numbers
come from a generator of the devices' own, so that whoever draws there gets other numbers than on the CPU, as on CUDA.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
from torch.utils import backend_registration

NAME = "pretend"
COUNT = 2

_MOVES = {"aten::copy_", "aten::_has_compatible_shallow_copy_type"}  # between any two devices, to that of the first
_INDEXED = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_", "aten::_unsafe_index"}
_FILLED = {"aten::fill", "aten::fill_", "aten::masked_fill", "aten::masked_fill_", "aten::index_fill_"}
_FACTORIES = ("empty.memory_format", "empty_strided", "arange", "arange.start", "arange.start_step", "eye", "eye.m")

_random = torch.Generator().manual_seed(0)


class _Runtime(backend_registration._DummyBackendModule):
    """What torch asks of ``torch.pretend``, as it asks ``torch.cuda``."""

    def device_count(self) -> int:
        return COUNT

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16]

    def manual_seed_all(self, seed: int) -> None:
        _random.manual_seed(seed + 1)

    def get_rng_state(self, _device: Any = None) -> Tensor:
        return _random.get_state()

    def set_rng_state(self, state: Tensor, _device: Any = None) -> None:
        _random.set_state(state)


backend_registration._setup_privateuseone_for_python_backend(NAME, backend_module=_Runtime())
# Forking torch's generators warns where a machine has several devices; other tests of the process mean none of these.
torch.random._fork_rng_warned_already = True
torch.autograd.set_multithreading_enabled(False)  # torch would make a thread for the first of the devices alone


class _Operation(NamedTuple):
    """What torch says of one of its operations."""

    name: str
    composite: bool  # made of others, on every device
    elementwise: bool
    random: bool
    view: bool
    reshapes: bool  # its operand, in place
    writes: bool  # into its first operand

    @classmethod
    @cache
    def of(cls, func: Any) -> Self:
        name, tags = func._schema.name, func.tags
        return cls(
            name,
            composite=torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"),
            elementwise=torch.Tag.pointwise in tags,
            random=torch.Tag.nondeterministic_seeded in tags,
            view=func.is_view,
            reshapes=torch.Tag.inplace_view in tags and name != "aten::detach_",
            writes=func._schema.is_mutable,
        )


class PretendTensor(Tensor):
    """A tensor on one of the devices.

    Attributes:
        raw: the tensor of the CPU that holds its numbers.
    """

    raw: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, raw: Tensor, device: torch.device) -> Self:
        made = Tensor._make_wrapper_subclass(
            cls,
            raw.shape,
            strides=raw.stride(),
            storage_offset=raw.storage_offset(),
            dtype=raw.dtype,
            device=device if device.index is not None else torch.device(NAME, 0),
        )
        made.raw = raw
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        operation = _Operation.of(func)
        leaves = list(_leaves([*args, *kwargs.values()]))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        asked = [leaf for leaf in leaves if isinstance(leaf, torch.device)]
        devices = {tensor.device for tensor in tensors}
        if operation.composite and (asked or len(devices) > 1):
            return func.decompose(*args, **kwargs)  # the operations it is made of come here again
        if asked:
            device = asked[0]
        elif operation.name in _MOVES:
            device = args[0].device
        else:
            device = devices.pop() if len(devices) == 1 else _common_device(operation, args, tensors)
        if operation.reshapes:
            raise NotImplementedError(f"a tensor of {NAME} cannot get another shape in place ({func})")
        if any(isinstance(leaf, torch.Generator) for leaf in leaves):
            raise RuntimeError(f"Expected a '{NAME}' device type for generator but found 'cpu' ({func})")
        raw = {key: _mapped(_unwrapped, value) for key, value in kwargs.items()}
        with _own_random_numbers() if operation.random else nullcontext():
            computed = func(*_mapped(_unwrapped, args), **raw)
        # A view of a tensor that was made outside of inference mode is no inference tensor either.
        normal = operation.view and not args[0].is_inference()
        with torch.inference_mode(False) if normal else nullcontext():
            return _wrapped(func, computed, tensors, device)

    def __repr__(self) -> str:
        return f"{self.raw!r} on {self.device}"

    def tolist(self) -> Any:
        return self.raw.tolist()

    def numpy(self, *_: Any, **__: Any) -> Any:
        raise TypeError(f"can't convert {self.device} device type tensor to numpy. Use Tensor.cpu() first.")


def _common_device(operation: _Operation, args: Sequence[Any], tensors: Sequence[Tensor]) -> torch.device:
    """Where an operation on tensors of several devices computes.

    Tensors of the CPU may take part as CUDA lets them: a single number (a tensor of no dimensions) as an operand of an
    elementwise operation or as what is filled in, and indices of a tensor on the device.
    """
    own = [tensor for tensor in tensors if tensor.device.type == NAME]
    guests = [tensor for tensor in tensors if tensor.device.type != NAME]
    if operation.name in _INDEXED and isinstance(args[0], PretendTensor):
        guests = [guest for guest in guests if guest.dim() and not any(guest is index for index in args[1])]
    elif len(guests) == 1 and guests[0].device.type == "cpu" and guests[0].dim() == 0:
        written = operation.writes and guests[0] is args[0]
        if not written and (operation.elementwise or operation.name in _FILLED):
            guests = []
    devices = sorted({str(tensor.device) for tensor in own + guests}, reverse=True)
    if len(devices) > 1:
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices,"
            f" {devices[0]} and {devices[1]}! ({operation.name})"
        )
    return own[0].device


@contextmanager
def _own_random_numbers() -> Iterator[None]:
    """Within the context the CPU's generator goes on where the devices' own one stands."""
    before = torch.get_rng_state()
    torch.set_rng_state(_random.get_state())
    try:
        yield
    finally:
        _random.set_state(torch.get_rng_state())
        torch.set_rng_state(before)


def _leaves(tree: Any) -> Iterator[Any]:
    """What stands in an operation's arguments, which are nested in lists and tuples alone."""
    if isinstance(tree, list | tuple):
        for branch in tree:
            yield from _leaves(branch)
    else:
        yield tree


def _mapped(change: Callable[[Any], Any], tree: Any) -> Any:
    if isinstance(tree, list | tuple):
        return type(tree)([_mapped(change, branch) for branch in tree])
    return change(tree)


def _unwrapped(leaf: Any) -> Any:
    if isinstance(leaf, PretendTensor):
        return leaf.raw
    return torch.device("cpu") if isinstance(leaf, torch.device) and leaf.type == NAME else leaf


def _wrapped(func: Any, computed: Any, operands: Sequence[Tensor], device: torch.device) -> Any:
    """Results on their device; an operand that comes back (changed in place, say) is the operand itself."""
    known = {id(_unwrapped(operand)): operand for operand in operands}

    def of(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        operand = known.get(id(leaf))
        if operand is None:
            return PretendTensor(leaf, device) if device.type == NAME else leaf
        if operand.shape != leaf.shape:
            raise NotImplementedError(f"a tensor of {NAME} cannot get another shape in place ({func})")
        return operand

    return _mapped(of, computed)


def _made(func: Any) -> Callable[..., PretendTensor]:
    """How a factory makes a tensor of the devices; all factories come down to those in `_FACTORIES`."""

    def make(*args: Any, device: torch.device, **kwargs: Any) -> PretendTensor:
        return PretendTensor(func(*args, **{**kwargs, "pin_memory": None}, device="cpu"), device)

    return make


def _copy_from(source: Tensor, target: Tensor, _non_blocking: bool = False) -> Tensor:
    """What ``torch.tensor(..., device=...)`` copies by: it passes `PretendTensor.__torch_dispatch__` over."""
    _unwrapped(target).copy_(_unwrapped(source))
    return target


_library = torch.library.Library("aten", "IMPL")  # lives as long as the module
_library.impl("_copy_from", _copy_from, "PrivateUse1")
for _factory in _FACTORIES:
    _packet, _, _overload = _factory.partition(".")
    _library.impl(_factory, _made(getattr(getattr(torch.ops.aten, _packet), _overload or "default")), "PrivateUse1")
