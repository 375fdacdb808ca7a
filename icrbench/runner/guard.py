"""What a method must leave as it was: the model, and what the process shares. Looked at after every fit and cell.

A look compares what can be compared for nothing (hooks, attributes, version counters, functions) and reads of every
weight matrix as many numbers as its longer side has, so placed that each row and each column is among them. Whatever
changes a whole matrix, row or column is found then, and so is every change made through torch, which counts them. A
single number written behind torch's back (``weight.data[i, j] = x``) may be missed by a look; `Guard.left` with
``whole=True`` reads every weight.
"""

import hashlib
import math
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from icrbench.backbone import Backbone
from icrbench.backbone.finite import not_finite
from icrbench.backbone.quantised import parts
from icrbench.method import Fitted, Method
from icrbench.util.errors import UserError

PLAIN = (bool, int, float, str, bytes, type(None), torch.dtype, torch.device)
OURS = tuple(f"icrbench.{part}" for part in ("backbone", "data", "scoring", "toolkit", "method", "runner"))
IGNORED = {"deprecation_warnings"}  # of tokenizers: which warnings were given
SHOWN = 3  # things in a sentence
LARGE = 1000  # entries


class LeftBehind(UserError):
    """A method has left something behind that would change what comes after it."""


@contextmanager
def contained(method: str) -> Iterator[None]:
    """Turn what would end the process silently (``sys.exit``) into an error of the method; Ctrl-C goes through."""
    try:
        yield
    except (Exception, KeyboardInterrupt, GeneratorExit):
        raise
    except SystemExit as stop:
        raise UserError(f"{method} tried to end the program, by sys.exit({stop.code!r}).") from stop
    except BaseException as error:  # a library's panic
        raise UserError(f"{method} failed with {type(error).__name__}: {error}.") from error


def check_fit(backbone: Backbone, method: Method, fitted: object) -> None:
    """Check what ``fit`` returned, before it is stored.

    Raises:
        UserError: if it is not of the declared type, or holds numbers that are not finite.
    """
    if not isinstance(fitted, Fitted):
        raise UserError(f"{method.name}.fit returned {type(fitted).__name__}, not a Fitted.")
    for name, tensor in fitted.tensors.items():
        if not isinstance(tensor, Tensor):
            raise UserError(f"{method.name}.fit returned {type(tensor).__name__} as the tensor '{name}'.")
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise not_finite(backbone, f"the numbers of the fit's '{name}'")


def fingerprint(fitted: Fitted) -> str:
    """Return a hash of all that a fit holds; equal before and after a method is applied."""
    digest = hashlib.sha256(repr(fitted.config).encode())
    for name, tensor in sorted(fitted.tensors.items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)} {_bits_sum(tensor)}".encode())
    return digest.hexdigest()


class Guard:
    """Remembers a model and the process as they are, and says what has changed since."""

    def __init__(self, backbone: Backbone) -> None:
        self._objects = list(_objects(backbone))
        self._vars = [_copies(vars(item)) for _, item in self._objects]
        self._vocabulary = len(backbone.tokenizer)
        self._tokenizer = backbone.tokenizer
        self._weights = [_Weight(*part) for whole in _tensors(backbone.model) for part in parts(*whole)]
        self._functions = [(space, _functions(space)) for space in _namespaces(backbone.model)]
        self._process = {name: read() for name, (read, _) in _PROCESS.items()}
        self._global_hooks = {name: dict(hooks) for name, hooks in _global_hooks().items()}
        self._threads = set(threading.enumerate())

    def left(self, *, whole: bool = False) -> list[str]:
        """Say what differs from when the guard was made, each as a part of a sentence; nothing, if all is well.

        Args:
            whole: read every weight instead of a sample.
        """
        return [
            *(
                said
                for (name, item), before in zip(self._objects, self._vars, strict=True)
                for said in _differences(name, before, vars(item))
            ),
            *([] if len(self._tokenizer) == self._vocabulary else ["tokens added to the tokenizer"]),
            *(f"the weight {weight.name} changed" for weight in self._weights if weight.changed(whole=whole)),
            *(
                f"the function {space.__name__}.{name} replaced"
                for space, before in self._functions
                for name, function in before.items()
                if vars(space).get(name) is not function
            ),
            *(f"another {name}" for name, (read, _) in _PROCESS.items() if read() != self._process[name]),
            *(
                "a hook on all modules"
                for name, hooks in _global_hooks().items()
                if not _same(self._global_hooks[name], hooks)
            ),
            *(f"the thread {thread.name} still running" for thread in self._new_threads()),
        ]

    def restore(self) -> None:
        """Put back what is not part of the model: functions, hooks on all modules, settings of the process."""
        for space, before in self._functions:
            for name, function in before.items():
                if vars(space).get(name) is not function:
                    setattr(space, name, function)
        for name, (read, write) in _PROCESS.items():
            if read() != self._process[name]:
                write(self._process[name])
        for name, hooks in _global_hooks().items():
            hooks.clear()
            hooks.update(self._global_hooks[name])

    def _new_threads(self) -> list[threading.Thread]:
        # Bars have a thread of their own, which tqdm starts with the first of them.
        return [
            thread
            for thread in threading.enumerate()
            if thread not in self._threads and not type(thread).__module__.startswith("tqdm")
        ]


def sentence(method: str, left: list[str]) -> LeftBehind:
    """Return the error that names what a method has left behind."""
    more = f" and {len(left) - SHOWN} more" if len(left) > SHOWN else ""
    return LeftBehind(f"{method} left behind {', '.join(left[:SHOWN])}{more}: undo it before returning.")


class _Weight:
    """A parameter or buffer, and what it was."""

    def __init__(self, name: str, tensor: Tensor) -> None:
        self.name = name
        self._tensor = tensor
        self._sum = _bits_sum(tensor)
        self._sample = _sample(tensor).clone()
        self._remember()

    def _remember(self) -> None:
        self._version = _version(self._tensor)
        self._place = self._tensor.data_ptr()

    def changed(self, *, whole: bool) -> bool:
        """Whether any number read is another one; a weight that was changed and put back is as it was."""
        if self._tensor.requires_grad and isinstance(self._tensor, nn.Parameter):
            return True
        touched = _version(self._tensor) != self._version or self._tensor.data_ptr() != self._place
        if not touched and not whole:
            return not torch.equal(_sample(self._tensor), self._sample)
        if _bits_sum(self._tensor) != self._sum or not torch.equal(_sample(self._tensor), self._sample):
            return True
        self._remember()
        return False


def _version(tensor: Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version


def _bits(tensor: Tensor) -> Tensor:
    """Return the bits of a tensor as whole numbers, so that equal bits are equal, NaN or not."""
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.detach().view(kinds[tensor.element_size()])


def _bits_sum(tensor: Tensor) -> int:
    """Return a sum of all bits taken as whole numbers: exact in any order."""
    if tensor.is_meta:
        return 0
    flat = _bits(tensor).reshape(-1)
    if flat.dtype != torch.int64 and flat.numel() * flat.element_size() % 8 == 0 and flat.storage_offset() == 0:
        flat = flat.view(torch.int64)  # an eighth of the additions
    return int(flat.sum(dtype=torch.int64))


def _sample(tensor: Tensor) -> Tensor:
    """Return some of the bits of a tensor: at least one number of every row and of every column of a matrix."""
    if tensor.is_meta or not tensor.is_contiguous():
        return tensor.new_empty(0) if tensor.is_meta else _bits(tensor).reshape(-1)
    flat = _bits(tensor).reshape(-1)
    columns = tensor.shape[-1] if tensor.ndim else 1
    if tensor.ndim < 2 or columns < 2:
        return flat
    # A step without a common factor with the row's length comes through every column; one no longer than a row
    # misses no row, and one no longer than a column comes round to every column.
    step = min(columns, flat.numel() // columns)
    while step > 1 and math.gcd(step, columns) > 1:
        step -= 1
    return flat[::step]


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters()
    computed = {name for name, module in model.named_modules() if _moving(module)}
    for name, buffer in model.named_buffers():
        if name.rpartition(".")[0] not in computed:
            yield name, buffer


def _moving(module: nn.Module) -> bool:
    """Whether a module computes its buffers anew for long inputs (rotary embeddings that stretch)."""
    kind = str(getattr(module, "rope_type", ""))
    return kind.startswith(("dynamic", "longrope"))


def _objects(backbone: Backbone) -> Iterator[tuple[str, Any]]:
    """Return the objects whose attributes are watched, named as a sentence names them."""
    yield "the backbone", backbone
    yield "the tokenizer", backbone.tokenizer
    config = backbone.model.config
    yield "the configuration", config
    if config.get_text_config() is not config:
        yield "the configuration", config.get_text_config()
    for name, module in backbone.model.named_modules():
        if not _moving(module):
            yield name or "the model", module


def _copies(attributes: dict[str, Any]) -> dict[str, Any]:
    """Attributes by name; containers as shallow copies, which later changes do not reach."""
    return {name: _copy(value) for name, value in attributes.items() if name not in IGNORED}


def _copy(value: Any) -> Any:
    if not isinstance(value, dict | list | set):
        return value
    return value.copy() if len(value) <= LARGE else _Large(value, len(value))


class _Large(NamedTuple):
    """A container too large to be looked through, such as a vocabulary: only another one or another size is seen."""

    container: Any
    size: int


def _differences(name: str, before: dict[str, Any], now: dict[str, Any]) -> Iterator[str]:
    for key in before.keys() | (now.keys() - IGNORED):
        if key in before and key in now and _same(before[key], now[key]):
            continue
        if name == "the backbone" and key not in before:
            continue  # what it computes once
        yield f"a hook on {name}" if "hooks" in key else f"the attribute {key} of {name}"


def _same(before: Any, now: Any) -> bool:
    if before is now:
        return True
    if isinstance(before, _Large):
        return before.container is now and before.size == len(now)
    if isinstance(before, dict):
        return isinstance(now, dict) and before.keys() == now.keys() and all(_same(before[k], now[k]) for k in before)
    if isinstance(before, list | tuple):
        return type(before) is type(now) and len(before) == len(now) and all(map(_same, before, now))
    if isinstance(before, (set, *PLAIN)):
        return type(before) is type(now) and bool(before == now)
    return False


def _namespaces(model: nn.Module) -> list[Any]:
    """Classes and Python modules whose functions are watched: those of the model, torch's, and ours that compute."""
    kinds = {base for module in model.modules() for base in type(module).__mro__ if base is not object}
    sources = {sys.modules[kind.__module__] for kind in kinds if kind.__module__ in sys.modules}
    ours = {module for name, module in sys.modules.items() if name.startswith(OURS)}
    return [*kinds, *sources, torch.nn.functional, *ours]


def _functions(space: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(space).items() if isinstance(value, FunctionType)}


def _global_hooks() -> dict[str, dict[Any, Any]]:
    """Torch's hooks on all modules there are."""
    return {
        name: value for name, value in vars(nn.modules.module).items() if "_global" in name and isinstance(value, dict)
    }


_PROCESS: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    "default number type": (torch.get_default_dtype, torch.set_default_dtype),
    "default device": (torch.get_default_device, torch.set_default_device),
    "number of threads": (torch.get_num_threads, torch.set_num_threads),
    "gradient mode": (torch.is_grad_enabled, torch.set_grad_enabled),
    "precision of matrix products": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    "choice of algorithms": (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
    "working folder": (os.getcwd, os.chdir),
    "standard output": (lambda: sys.stdout, lambda stream: setattr(sys, "stdout", stream)),
    "handler of Ctrl-C": (
        lambda: signal.getsignal(signal.SIGINT),
        lambda handler: signal.signal(signal.SIGINT, handler),
    ),
}
"""Settings that all methods of a process share: how each is read and written."""
