"""Execution of graphs with static shapes: the arena, the buffers of outputs, and the calls of compiled code."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np

from relayc.backend.runtime.context import Context
from relayc.backend.runtime.device import Device
from relayc.backend.runtime.graph import Graph
from relayc.backend.runtime.input_ports import InputPorts
from relayc.backend.runtime.module import Module
from relayc.backend.runtime.ndarray import NDArray, empty
from relayc.backend.runtime.runners import CapturingRunner, EntryRunner, NodeRunner, OutputBuffer

__all__ = ["StaticRunner"]


class StaticRunner:
    """Runs one graph of static shapes. All memory is allocated here, but for that of inputs and weights."""

    def __init__(
        self,
        graph: Graph,
        module: Module,
        context: Context,
        where: Device,
        params: dict[str, NDArray],
        inputs: InputPorts,
    ) -> None:
        self._graph, self._module, self._context, self._device = graph, module, context, where
        self._params, self._inputs = params, inputs
        self._lent: set[int] = set()
        """outputs that were lent since the last run"""
        self._outputs = [self._output_buffer(position) for position in range(len(graph.outputs))]
        self._arena = empty((max(graph.arena_bytes, 1),), "uint8", where)
        self._tensors_in: dict[tuple[str, int | str], list[int]] = defaultdict(list)
        for index, tensor in enumerate(graph.tensors):
            self._tensors_in[tensor.storage, tensor.place].append(index)
        self.runner = self._make_runner()

    def _output_buffer(self, position: int) -> OutputBuffer | None:
        """The buffer of an output; None for one that aliases other memory."""
        tensor = self._graph.tensors[self._graph.outputs[position]]
        if not self._graph.has_own_memory(position):
            return None
        return OutputBuffer(tensor.static_shape, tensor.dtype, self._device, position, self._lent)

    def _make_runner(self) -> EntryRunner | NodeRunner | CapturingRunner:
        graph = self._graph
        if graph.entry is None:
            nodes = NodeRunner(graph, self._module, self._context)
            runner = CapturingRunner(nodes, self._device) if nodes.is_queued else nodes
        else:
            runner = EntryRunner(graph, self._module, self._context, self._arena)
        for index, tensor in enumerate(graph.tensors):
            known = tensor.storage != "input" or self._inputs.has_value(int(tensor.place))
            if known and (graph.entry is None or tensor.storage != "arena"):  # the entry knows the places in the arena
                runner.move(index, self.array(index))
        return runner

    def run(self) -> None:
        """Run all nodes."""
        self._renew_outputs()
        while self._inputs.moved:
            self._moved("input", self._inputs.moved.pop())
        self.runner()

    def run_arrays(self, arrays: list[Any], inherited: Mapping[str, int]) -> bool:
        """Run all nodes on numpy arrays, one for each input; false, and nothing is done, where they can't be read in
        place. A static graph has no sizes to inherit."""
        if self._lent:
            self._renew_outputs()
        return isinstance(self.runner, EntryRunner) and self.runner.call_with_arrays(arrays)

    def _renew_outputs(self) -> None:
        """Replace buffers of outputs that users still reference."""
        while self._lent:
            position = self._lent.pop()
            buffer = self._outputs[position]
            if buffer is not None and buffer.is_lent and buffer.renew():
                self._moved("output", position)

    def _moved(self, storage: str, place: int) -> None:
        for index in self._tensors_in[storage, place]:
            self.runner.move(index, self.array(index))

    def array(self, index: int) -> NDArray:
        """The array that currently holds a tensor of the graph."""
        tensor = self._graph.tensors[index]
        if tensor.storage == "arena":
            return self._arena._create_view(tensor.static_shape, tensor.dtype, int(tensor.place))
        if tensor.storage == "param":
            home = self._params[str(tensor.place)]
        elif tensor.storage == "input":
            home = self._inputs.array(int(tensor.place))
        else:
            buffer = self._outputs[int(tensor.place)]
            assert buffer is not None, "a graph's output buffers are those of its outputs"
            home = buffer.array
        same = (home.shape, home.dtype) == (tensor.shape, tensor.dtype)
        return home if same else home._create_view(tensor.static_shape, tensor.dtype)

    def numpy(self, position: int) -> Any:
        """An output of the last run as a numpy array of the user's."""
        buffer = self._outputs[position]
        return self.array(self._graph.outputs[position]).numpy() if buffer is None else buffer.numpy()

    def use_output(self, position: int, array: NDArray | None) -> bool:
        """Make later runs write an output into `array`, or (None) into own memory; false if it has no buffer."""
        buffer = self._outputs[position]
        if buffer is None:
            return False
        buffer.use(array)
        self._lent.add(position)  # its own memory may be
        self._moved("output", position)
        return True

    def output(self, position: int) -> NDArray:
        """An output of the last run, owned by the caller; a copy where it aliases an input or a weight."""
        buffer = self._outputs[position]
        return self.array(self._graph.outputs[position]).copyto(self._device) if buffer is None else buffer.lend()

    def time_nodes(self, repeat: int) -> list[float]:
        """The median time of each node in `repeat` runs after a warm-up."""
        self._renew_outputs()
        nodes = NodeRunner(self._graph, self._module, self._context)
        for index in range(len(self._graph.tensors)):
            nodes.move(index, self.array(index))
        seconds = nodes.time(self._device, repeat)
        times: Any = np.median(np.array(seconds).reshape(repeat, len(self._graph.nodes)), axis=0)
        return times.tolist()
