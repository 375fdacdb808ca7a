"""A safetensors file that is written piece by piece, so that its tensors are never in memory whole.

The safetensors library writes tensors that are there; what it writes is small enough to be written by hand: the length
of a JSON header in 8 bytes, the header (type, shape and place of each tensor), the tensors one after the other
(https://huggingface.co/docs/safetensors, "Format").
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path

import torch
from torch import Tensor

_CODES = {torch.float16: "F16", torch.float32: "F32"}


class TensorFile:
    """An open file of tensors ``[L, N, n]``, whose rows (the second dimension) are put as they come."""

    def __init__(self, descriptor: int, places: Mapping[str, int], shapes: Mapping[str, Sequence[int]]) -> None:
        self._descriptor = descriptor
        self._places = places
        self._shapes = shapes

    def put(self, name: str, start: int, rows: Tensor) -> None:
        """Write the rows from ``start`` on.

        Args:
            name: of a tensor.
            start: place of the first row.
            rows: ``[L, B, n]``, of the file's type.

        Raises:
            ValueError: if the rows do not fit.
        """
        slices, count, width = self._shapes[name]
        if rows.shape != (slices, rows.shape[1], width) or start + rows.shape[1] > count:
            raise ValueError(f"{name}: rows {tuple(rows.shape)} from {start} on do not fit {slices, count, width}")
        for index, own in enumerate(rows.cpu().contiguous()):
            place = self._places[name] + (index * count + start) * width * own.itemsize
            _write_all(self._descriptor, own.numpy().tobytes(), place)


@contextmanager
def tensor_file(
    path: Path, shapes: Mapping[str, tuple[int, int, int]], dtype: torch.dtype = torch.float16
) -> Iterator[TensorFile]:
    """Yield a file to fill; what is not filled is zero.

    Args:
        path: made, in a folder that is there.
        shapes: of the tensors ``[L, N, n]``, by name.
        dtype: of all tensors.
    """
    header, places, end = {}, {}, 0
    for name, shape in shapes.items():
        begin, end = end, end + prod(shape) * dtype.itemsize
        header[name] = {"dtype": _CODES[dtype], "shape": list(shape), "data_offsets": [begin, end]}
        places[name] = begin
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of 8 bytes, as the library has it
    first = 8 + len(text)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        _write_all(descriptor, len(text).to_bytes(8, "little") + text, 0)
        os.truncate(descriptor, first + end)
        yield TensorFile(descriptor, {name: first + place for name, place in places.items()}, shapes)
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, content: bytes, place: int) -> None:
    view = memoryview(content)
    while view:
        written = os.pwrite(descriptor, view, place)
        view, place = view[written:], place + written
