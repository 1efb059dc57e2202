"""Every address that an interpreted kernel touches is checked, as long as this is installed.

An access must lie in the storage of a tensor that the launch was given. Programs of one launch run
in no promised order, so none may write what another reads or writes; and the lanes of one store
must not disagree about a number. (Addresses beyond a tensor but inside its storage pass: give
tensors storages of their own to catch those.)
"""

from dataclasses import dataclass

import numpy as np
import torch
from triton.runtime import interpreter

Builder = interpreter.InterpreterBuilder
Executor = interpreter.GridExecutor
NOBODY, SEVERAL = -1, -2


class MemoryFault(AssertionError):
    """A kernel touched what it must not."""


@dataclass
class Region:
    """The storage of one argument: who read and who wrote each of its units, by program."""

    start: int
    size: int
    unit: int
    readers: np.ndarray
    writers: np.ndarray

    @classmethod
    def of(cls, tensor: torch.Tensor) -> "Region":
        storage, unit = tensor.untyped_storage(), tensor.element_size()
        count = -(-storage.nbytes() // unit)
        empty = np.full(count, NOBODY, np.int64)
        return cls(storage.data_ptr(), storage.nbytes(), unit, empty, empty.copy())


_regions: dict[int, Region] = {}


def _program() -> int:
    builder = interpreter.interpreter_builder
    (x, y, z), (nx, ny, _) = builder.grid_idx, builder.grid_dim
    return int(x + nx * (y + ny * z))


def _tensors(arguments):
    for x in arguments:
        if isinstance(x, torch.Tensor):
            yield x
        elif isinstance(x, tuple | list):
            yield from _tensors(x)
        elif hasattr(x, "base"):
            yield x.base


def _touch(region: Region, units: np.ndarray, writes: bool) -> None:
    me = _program()
    readers, writers = region.readers[units], region.writers[units]
    others = (writers != NOBODY) & (writers != me)
    if writes:
        others |= (readers != NOBODY) & (readers != me)
        region.writers[units] = me
    else:
        region.readers[units] = np.where((readers == NOBODY) | (readers == me), me, SEVERAL)
    if others.any():
        kind = "writes" if writes else "reads"
        raise MemoryFault(f"program {me} {kind} {int(others.sum())} numbers of another program")


def _check(addresses: np.ndarray, mask: np.ndarray, size: int, writes: bool) -> None:
    addresses, mask = np.broadcast_arrays(addresses, mask)
    addresses = addresses[mask].astype(np.int64)
    left = np.ones(addresses.shape, bool)
    for region in _regions.values():
        inside = (addresses >= region.start) & (addresses + size <= region.start + region.size)
        if inside.any():
            left &= ~inside
            _touch(region, (addresses[inside] - region.start) // region.unit, writes)
    if left.any():
        kind = "stores to" if writes else "loads from"
        raise MemoryFault(f"program {_program()} {kind} {int(left.sum())} addresses of no argument")


def _check_agreement(addresses: np.ndarray, values: np.ndarray, mask: np.ndarray) -> None:
    addresses, values, mask = np.broadcast_arrays(addresses, values, mask)
    addresses, values = addresses[mask], values[mask]
    order = np.argsort(addresses, kind="stable")
    same = addresses[order][1:] == addresses[order][:-1]
    bits = values[order].view(f"u{values.dtype.itemsize}")
    if (same & (bits[1:] != bits[:-1])).any():
        raise MemoryFault(f"program {_program()} stores different numbers to one address")


def install() -> None:
    """Check all launches of this process from now on."""
    load, store, run = Builder.create_masked_load, Builder.create_masked_store, Executor.__call__

    def checked_load(self, addresses, mask, *rest):
        size = addresses.get_element_ty().primitive_bitwidth // 8
        _check(addresses.data, mask.data, size, writes=False)
        return load(self, addresses, mask, *rest)

    def checked_store(self, addresses, value, mask, *rest):
        size = addresses.get_element_ty().primitive_bitwidth // 8
        _check(addresses.data, mask.data, size, writes=True)
        _check_agreement(addresses.data, value.data, mask.data)
        return store(self, addresses, value, mask, *rest)

    def checked_run(self, *arguments, **named):
        given = _tensors((*arguments, *named.values()))
        _regions.update({x.untyped_storage().data_ptr(): Region.of(x) for x in given if x.numel()})
        try:
            return run(self, *arguments, **named)
        finally:
            _regions.clear()

    Builder.create_masked_load, Builder.create_masked_store = checked_load, checked_store
    Executor.__call__ = checked_run
