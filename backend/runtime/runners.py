"""Runners of graphs whose memory is laid out: one call of compiled code, node by node, or recorded device work."""

from __future__ import annotations

import ctypes
import math
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy.typing as npt

from relayc.backend.runtime.array_call import array_call
from relayc.backend.runtime.context import Context
from relayc.backend.runtime.device import Device
from relayc.backend.runtime.dtype import nbytes as nbytes_of
from relayc.backend.runtime.errors import ModuleError
from relayc.backend.runtime.graph import Graph
from relayc.backend.runtime.module import Module
from relayc.backend.runtime.ndarray import NDArray, empty
from relayc.backend.runtime.packed_func import PackedFunc, takes_pointers
from relayc.backend.runtime.sizes import evaluate

__all__ = [
    "MOST_WASTE", "SMALL_BUFFER", "CapturingRunner", "EntryRunner", "NodeRunner", "OutputBuffer", "Recordings",
    "serves",
]  # fmt: skip

_MAX_SPARE = 2
_GROWTH = 4
"""An output that outgrows its buffer gets 1 / _GROWTH more than it needs."""
MOST_WASTE, SMALL_BUFFER = 4, 1 << 16
"""Largest ratio of a reused buffer's size to the size needed; buffers up to `SMALL_BUFFER` bytes are always reused."""
_LENT_BYTES = 1 << 18
"""Bytes from which lending memory to a numpy array takes less time than a copy, whose pages are new to the process."""
_MAX_RECORDINGS = 4  # outputs that users hold one at a time move among `_MAX_SPARE` + 1 buffers


class EntryRunner:
    """Runs all nodes in one call: `void entry(Ctx*, uint8* arena, void** tensors)`.

    `tensors[id]` is the address of a graph input, output or weight; compiled code knows the offsets in the arena.
    """

    def __init__(self, graph: Graph, module: Module, context: Context, arena: NDArray) -> None:
        entry = module.get_function(str(graph.entry), query_imports=True)
        if not takes_pointers(entry, 2):
            raise ModuleError(
                f"entry {graph.entry!r} of model {graph.name!r} is {entry!r}; expected a kernel of two pointers"
            )
        self._table = (ctypes.c_void_p * max(len(graph.tensors), 1))()
        self._call, self._address = entry.raw, entry.address
        self._arguments = context.address, arena.handle, ctypes.addressof(self._table)
        self._arena, self._graph = arena, graph

    def move(self, tensor: int, array: NDArray) -> None:
        """Rebind a tensor to `array`."""
        self._table[tensor] = array.handle

    def __call__(self) -> None:
        self._call(*self._arguments)

    @cached_property
    def call_with_arrays(self) -> Callable[[list[Any]], bool]:
        """The call with numpy arrays as inputs."""
        return array_call(self._graph, self._address, self._arguments, self._arguments[-1])


class NodeRunner:
    """Runs the nodes one after another, each as a call of its function on its input, output and scratch arrays."""

    def __init__(self, graph: Graph, module: Module, context: Context) -> None:
        functions: dict[str, PackedFunc] = {}
        for node in graph.nodes:
            if node.func not in functions:
                functions[node.func] = module.get_function(node.func, query_imports=True)
        self._functions = [functions[node.func] for node in graph.nodes]
        self._tensors: list[Sequence[int]] = [(*node.inputs, *node.outputs, *node.scratch) for node in graph.nodes]
        self._sizes = [[evaluate(size, {}) for size in node.sizes] for node in graph.nodes]
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
        """Rebind a tensor to `array`."""
        self._arrays[tensor] = array
        for index in self._users.get(tensor, ()):
            self._calls[index] = None

    def __call__(self) -> None:
        for index, call in enumerate(self._calls):
            (call or self._bind(index))()

    def time(self, device: Device, repeat: int) -> list[list[float]]:
        """The seconds of each node in each of `repeat` runs.

        Measured by device events, or by synchronising after every node. A device that can record the nodes replays
        them, so that launch overhead of the host does not count.
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
        call = self._calls[index] = self._functions[index].bind(*arrays, *self._sizes[index], context=self._context)
        return call


class Recordings:
    """A cache of recorded device work (such as CUDA graphs), keyed by all it depends on: addresses, sizes.

    The first submission of a key runs directly, which also triggers lazy loading; the second is recorded. The last
    `limit` keys are kept. After a failed recording, nothing is recorded any more.
    """

    def __init__(self, device: Device, limit: int) -> None:
        self._device = device
        self._limit = limit
        self._kept: OrderedDict[Hashable, Callable[[], None] | None] = OrderedDict()
        self._can_record = True

    def find(self, key: Hashable, submit: Callable[[], object]) -> Callable[[], object]:
        """The callable to run for this key: a replay, or `submit` itself."""
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
    """Runs nodes by replaying recorded device work in a single call.

    Recordings are cached by the addresses of inputs and outputs.
    """

    def __init__(self, nodes: NodeRunner, device: Device) -> None:
        self._nodes = nodes
        self._places: dict[int, tuple[int, int]] = {}  # tensor -> its handle and byte offset
        self._key: Hashable = None
        self._replay: Callable[[], object] | None = None
        self._recordings = Recordings(device, _MAX_RECORDINGS)

    def move(self, tensor: int, array: NDArray) -> None:
        """Rebind a tensor to `array`."""
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
    """Referenced by every array lent to a user; while it lives, the memory is not overwritten."""

    __slots__ = ("__weakref__", "memory")

    def __init__(self, memory: NDArray) -> None:
        self.memory = memory


class _Block:
    """Memory of an output: its bytes, the array of the output in it, and the lease of the array that was lent."""

    __slots__ = ("array", "lease", "memory", "nbytes")

    def __init__(self, nbytes: int, shape: tuple[int, ...], dtype: str, device: Device) -> None:
        self.memory, self.nbytes = empty((nbytes,), "uint8", device), nbytes
        self.lease: weakref.ref[_Lease] | None = None
        self.shape(shape, dtype)

    def shape(self, shape: tuple[int, ...], dtype: str) -> None:
        """Make `array` one of that shape."""
        self.array = NDArray(self.memory.handle, shape, dtype, self.memory.device, self.memory)

    @property
    def is_held(self) -> bool:
        """Does a user have the array?"""
        return self.lease is not None and self.lease() is not None


class OutputBuffer:
    """The memory of one output. Arrays lent to users keep their values: later runs use other memory.

    An output that outgrows its memory is over-allocated, so that one that grows with every run, such as a decoder's KV
    cache, is seldom reallocated.
    """

    def __init__(
        self, shape: tuple[int, ...], dtype: str, device: Device, number: int = 0, lent: set[int] | None = None
    ) -> None:
        """The set `lent` gets the buffer's number whenever it is lent."""
        self._device, self._needed = device, nbytes_of(dtype, math.prod(shape))
        self._number, self._lent_numbers = number, set[int]() if lent is None else lent
        self._block = _Block(self._needed, shape, dtype, device)
        self._spare: list[_Block] = []
        self._users: NDArray | None = None
        """the user's array that takes the place of own memory"""
        self.array = self._block.array
        self._lent: weakref.ref[NDArray] | None = None
        """the value of `array` that was lent last"""

    @property
    def nbytes(self) -> int:
        """Bytes of the current memory."""
        return self._block.nbytes

    def show(self, shape: tuple[int, ...]) -> None:
        """Make `array` one of another shape, for which the memory is large enough."""
        dtype = self.array.dtype
        self._needed = nbytes_of(dtype, math.prod(shape))
        self._block.shape(shape, dtype)
        self.array = self._block.array

    @property
    def is_lent(self) -> bool:
        """Was the current memory lent since it was renewed? The user may have returned it."""
        return self._users is None and self._block.lease is not None

    def use(self, array: NDArray | None) -> None:
        """Make later runs write into a user's array of the same shape; None: into memory of the buffer's own."""
        self._users = array
        self.array = self._block.array if array is None else array

    def lend(self) -> NDArray:
        """Lend the current buffer to the user as an array.

        What is lent again, under the same shape, is viewed as numpy once for all later times.
        """
        if self._users is not None:
            return self._users
        if self._lent is None or self._lent() is not self.array:
            self._lent = weakref.ref(self.array)
        else:
            self.array.view_on_host()
        return self.hold()

    def hold(self) -> NDArray:
        """Lend the current buffer to another instruction."""
        reference = self._block.lease
        lease = None if reference is None else reference()
        if lease is None:
            lease = _Lease(self._block.memory)
            self._block.lease = weakref.ref(lease)
        self._lent_numbers.add(self._number)
        return self.array.owned_by(lease)

    def numpy(self) -> npt.NDArray[Any]:
        """The values as a numpy array of the user's: a copy, or large memory of the host that nobody else has, lent."""
        is_large = self._needed >= _LENT_BYTES and self._device.api.host_accessible
        if is_large and self._users is None and not self._block.is_held:
            return self.hold().__array__(copy=False)
        return self.array.numpy()

    def renew(self, shape: tuple[int, ...] | None = None) -> bool:
        """Make `array` an unshared array of `shape`; true when its memory changed."""
        before = self.array
        if shape is None:
            shape = before.shape
        if shape == before.shape:
            if self._block.lease is None:
                return False
        else:
            self._needed = nbytes_of(before.dtype, math.prod(shape))
        moved = self.renew_memory(shape)
        if self._block.array.shape != shape:
            self._block.shape(shape, before.dtype)
            self.array = self._block.array
        return moved

    def renew_memory(self, shape: tuple[int, ...]) -> bool:
        """Take memory that nobody holds, as large as it was last needed; true when it changed.

        `array` has any shape until it is shown under the one that it will have, `shape` if the memory is new.
        """
        block, before = self._block, self.array
        if block.is_held or not serves(block.nbytes, self._needed):
            self._block = self._free() or self._grown(shape, before)
            if block.is_held:
                self._spare = [*self._spare, block][-_MAX_SPARE:]
        self._block.lease = None
        self.array = self._block.array
        return self._block is not block

    def _free(self) -> _Block | None:
        """A spare block that serves, and that nobody has any more; it is no spare one from now on."""
        for block in self._spare:
            if not block.is_held and serves(block.nbytes, self._needed):
                self._spare.remove(block)
                return block
        return None

    def _grown(self, shape: tuple[int, ...], before: NDArray) -> _Block:
        """A new block, with some bytes more if the output grows."""
        more = self._needed // _GROWTH if self._needed > before.nbytes else 0
        return _Block(self._needed + more, shape, before.dtype, self._device)


def serves(nbytes: int, needed: int) -> bool:
    """Is memory large enough, and not far too large?"""
    return needed <= nbytes <= max(MOST_WASTE * needed, SMALL_BUFFER)
