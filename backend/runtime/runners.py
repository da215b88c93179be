"""How a graph is run once its tensors have places: in one call of compiled code, or node by node."""

from __future__ import annotations

import ctypes
import math
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from itertools import pairwise
from typing import Any

from relayc.backend.runtime.context import Context
from relayc.backend.runtime.device import Device
from relayc.backend.runtime.dtype import nbytes as nbytes_of
from relayc.backend.runtime.errors import ModuleError
from relayc.backend.runtime.graph import Graph
from relayc.backend.runtime.module import Module
from relayc.backend.runtime.ndarray import NDArray, empty
from relayc.backend.runtime.packed_func import KernelFunc, PackedFunc

__all__ = ["CapturingRunner", "EntryRunner", "NodeRunner", "OutputBuffer", "Recordings"]

_MAX_SPARE = 2
_GROWTH = 4
"""The part of what it needs, one over this, that an output which outgrew its memory gets in addition."""
_MOST_WASTE, _SMALL = 4, 1 << 16
"""How many times what is needed memory may have and be kept; bytes for which that does not matter."""
_MAX_RECORDINGS = 4  # outputs that users hold one at a time move among `_MAX_SPARE` + 1 buffers


class EntryRunner:
    """Runs all nodes in one call: `void entry(Ctx*, uint8* arena, void** tensors)`.

    `tensors[id]` is the address of a graph input, output or weight; compiled code knows the offsets in the arena.
    """

    def __init__(self, graph: Graph, module: Module, context: Context, arena: NDArray) -> None:
        entry = module.get_function(str(graph.entry), query_imports=True)
        if not isinstance(entry, KernelFunc) or len(entry.params) != 2:
            raise ModuleError(
                f"entry {graph.entry!r} of model {graph.name!r} is {entry!r}; expected a kernel of two pointers"
            )
        self._table = (ctypes.c_void_p * max(len(graph.tensors), 1))()
        self._call = entry.raw
        self._arguments = context.address, arena.handle, ctypes.addressof(self._table)
        self._arena = arena

    def move(self, tensor: int, array: NDArray) -> None:
        """The tensor lives in `array` from now on."""
        self._table[tensor] = array.handle

    def __call__(self) -> None:
        self._call(*self._arguments)


class NodeRunner:
    """Runs the nodes one after another, each as a call of its function on its input, output and scratch arrays."""

    def __init__(self, graph: Graph, module: Module, context: Context) -> None:
        functions: dict[str, PackedFunc] = {}
        for node in graph.nodes:
            if node.func not in functions:
                functions[node.func] = module.get_function(node.func, query_imports=True)
        self._functions = [functions[node.func] for node in graph.nodes]
        self._tensors: list[Sequence[int]] = [(*node.inputs, *node.outputs, *node.scratch) for node in graph.nodes]
        self._calls: list[Callable[[], object] | None] = [None] * len(graph.nodes)
        self._users: dict[int, list[int]] = {}
        for index, tensors in enumerate(self._tensors):
            for tensor in tensors:
                self._users.setdefault(tensor, []).append(index)
        self._arrays: dict[int, NDArray] = {}
        self._context = context

    @property
    def is_queued(self) -> bool:
        """True when every node only queues work on the device."""
        return all(function.is_queued for function in self._functions)

    def move(self, tensor: int, array: NDArray) -> None:
        """The tensor lives in `array` from now on."""
        self._arrays[tensor] = array
        for index in self._users.get(tensor, ()):
            self._calls[index] = None

    def __call__(self) -> None:
        for index, call in enumerate(self._calls):
            (call or self._bind(index))()

    def time(self, device: Device, repeat: int) -> list[list[float]]:
        """The seconds that each node took, in each of `repeat` runs.

        By the device's events where it has them, else by waiting for every node. A device that can record the nodes
        replays them, so that the time it takes the host to launch one does not count.
        """
        calls = [call or self._bind(index) for index, call in enumerate(self._calls)]
        api, marks = device.api, list[Any]()

        def run() -> None:
            marks[:] = [api.record_mark(device)]
            for call in calls:
                call()
                marks.append(api.record_mark(device))

        def read() -> list[float]:
            api.stream_sync(device)
            return [api.seconds_between(device, start, end) for start, end in pairwise(marks)]

        run()  # loads what is loaded at first use
        api.stream_sync(device)
        again = (api.capture(device, run) if self.is_queued else None) or run
        seconds: list[list[float]] = []
        for _ in range(repeat):
            again()
            seconds.append(read())
        return seconds

    def _bind(self, index: int) -> Callable[[], object]:
        arrays = [self._arrays[tensor] for tensor in self._tensors[index]]
        call = self._calls[index] = self._functions[index].bind(*arrays, context=self._context)
        return call


class Recordings:
    """What a device recorded of work that comes again, under keys that say all it depends on: addresses, sizes.

    Work met for the first time is submitted as it is, which also loads what has to be loaded; the second time it is
    recorded. The last `limit` keys are kept. Where recording fails, nothing is recorded any more.
    """

    def __init__(self, device: Device, limit: int) -> None:
        self._device = device
        self._limit = limit
        self._kept: OrderedDict[Hashable, Callable[[], None] | None] = OrderedDict()
        self._can_record = True

    def find(self, key: Hashable, submit: Callable[[], object]) -> Callable[[], object]:
        """How to do the work of this key now: a replay, or `submit` itself."""
        if not self._can_record:
            return submit
        if key not in self._kept:
            self._kept[key] = None
            if len(self._kept) > self._limit:
                self._kept.popitem(last=False)
            return submit
        self._kept.move_to_end(key)
        replay = self._kept[key]
        if replay is None:
            replay = self._kept[key] = self._device.api.capture(self._device, submit)
            if replay is None:
                self._can_record = False
                self._kept.clear()
                return submit
        return replay


class CapturingRunner:
    """Runs the nodes of a device that can record work: recorded once, a run is a single call.

    A recording is good for the addresses that it was made with; addresses that come back find theirs.
    """

    def __init__(self, nodes: NodeRunner, device: Device) -> None:
        self._nodes = nodes
        self._places: dict[int, tuple[int, int]] = {}  # tensor -> its handle and byte offset
        self._key: Hashable = None
        self._replay: Callable[[], object] | None = None
        self._recordings = Recordings(device, _MAX_RECORDINGS)

    def move(self, tensor: int, array: NDArray) -> None:
        """The tensor lives in `array` from now on."""
        self._nodes.move(tensor, array)
        self._places[tensor] = array.handle, array.byte_offset
        self._key = self._replay = None

    def __call__(self) -> None:
        if self._replay is not None:
            self._replay()
            return
        if self._key is None:
            self._key = tuple(self._places.values())
        found = self._recordings.find(self._key, self._nodes)
        if found is not self._nodes:
            self._replay = found
        found()


class _Lease:
    """Held by every array given to a user; while it lives, the memory is not written again."""

    __slots__ = ("__weakref__", "memory")

    def __init__(self, memory: NDArray) -> None:
        self.memory = memory


class OutputBuffer:
    """The memory of one output. Arrays lent to users keep their values: a run in the meantime gets other memory.

    An output that outgrows its memory gets more than it needs, so that one which is longer with every run, as the cache
    of a decoder is, seldom gets new memory.
    """

    def __init__(self, shape: tuple[int, ...], dtype: str, device: Device) -> None:
        self._device = device
        self._lease: weakref.ref[_Lease] | None = None
        self._spare: list[tuple[NDArray, weakref.ref[_Lease]]] = []
        self._memory = empty((nbytes_of(dtype, math.prod(shape)),), "uint8", device)
        self.array = self._shaped(shape, dtype)

    def _shaped(self, shape: tuple[int, ...], dtype: str) -> NDArray:
        return NDArray(self._memory.handle, shape, dtype, self._device, self._memory)

    def lend(self) -> NDArray:
        """The current buffer as an array of the user's."""
        lease = self._lease() if self._lease is not None else None
        if lease is None:
            lease = _Lease(self._memory)
            self._lease = weakref.ref(lease)
        array = self.array
        return NDArray(array.handle, array.shape, array.dtype, self._device, lease, byte_offset=array.byte_offset)

    def renew(self, shape: tuple[int, ...] | None = None) -> bool:
        """Makes `array` one that nobody else holds, of `shape`; true when its memory is another than before."""
        shape = self.array.shape if shape is None else shape
        dtype, before = self.array.dtype, self._memory
        needed = nbytes_of(dtype, math.prod(shape))
        lent = None if self._lease is None or self._lease() is None else (self._memory, self._lease)
        if lent is not None or not _serves(self._memory, needed):
            free = next((pair for pair in self._spare if pair[1]() is None and _serves(pair[0], needed)), None)
            if free is None:
                grown = needed + needed // _GROWTH if needed > self.array.nbytes else needed
                self._memory = empty((grown,), "uint8", self._device)
            else:
                self._memory = free[0]
                self._spare.remove(free)
            self._spare = [*self._spare, *([] if lent is None else [lent])][-_MAX_SPARE:]
        self._lease = None
        if self._memory is not before or shape != self.array.shape:
            self.array = self._shaped(shape, dtype)
        return self._memory is not before


def _serves(memory: NDArray, needed: int) -> bool:
    """Is it enough, and not far too much?"""
    return needed <= memory.nbytes <= max(_MOST_WASTE * needed, _SMALL)
