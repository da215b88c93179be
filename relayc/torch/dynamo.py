"""`torch.compile(model, backend="relayc")`.

Dynamo gives a graph of torch's calls. AOTAutograd makes a graph of aten operators of it, without mutation, and takes
care of what mutates, of views and of aliases around it. That graph becomes an ONNX model, and a compiled one when it is
first called: parameters are constants then.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._guards import TracingContext
from torch.fx import GraphModule, Node
from torch.types import py_sym_types

from relayc.backend.runtime.log import logger, warn_once
from relayc.runtime import ArgumentError, RelaycError
from relayc.te.errors import CompileError
from relayc.torch.errors import TorchExportError
from relayc.torch.execution import Execution
from relayc.torch.exporting import Exported, export_graph
from relayc.torch.fx_rewrites import decompositions
from relayc.torch.options import Options
from relayc.torch.partition import split, unsupported_operators

__all__ = ["relayc_backend"]

log = logger().getChild("torch")

_MOST_CHANGES = 1
"""How often a parameter or buffer may change before it is an argument of the compiled graph."""


def relayc_backend(
    module: GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Compile a graph of Dynamo's: the backend "relayc" of `torch.compile`. The options are those of `Options`.

    What relayc has no operator for runs as eager mode does, and is named once in the log "relayc.torch". So does a call
    that records gradients. Raises `ArgumentError` for unknown options, and for a mode.
    """
    if mode is not None:
        raise ArgumentError(f"torch.compile(mode={mode!r}): the backend relayc has no modes; expected options={{...}}")
    chosen = Options.of(options)
    compiler = aot_autograd(
        fw_compiler=_training,
        bw_compiler=_eager,
        inference_compiler=lambda graph, _: _inference(graph, chosen),
        decompositions=decompositions(),
    )
    return compiler(module, example_inputs)


def _inference(module: GraphModule, options: Options) -> Callable[..., Any]:
    """A graph of aten operators, whose nodes have fake tensors; what is static comes from AOTAutograd."""
    context = TracingContext.try_get()
    metadata = None if context is None else context.fw_metadata
    static = [] if metadata is None else metadata.static_input_indices or []
    mutated = [] if metadata is None else metadata.mutated_inp_runtime_indices
    constant = [at for at in static if at not in mutated]
    reason = _foreign_tensor(module)
    if reason is not None:
        _warn_once(f"a graph runs as eager mode does: {reason}")
        return _eager(module, ())
    if not any(map(_makes_tensors, module.graph.nodes)):
        return _eager(module, ())
    try:
        return _CompiledGraph(module, export_graph(module), constant, options)
    except TorchExportError as error:
        return _in_parts(module, constant, options, error)


def _in_parts(module: GraphModule, constant: Sequence[int], options: Options, error: Exception) -> Callable[..., Any]:
    """The graph with compiled parts, and operators between them that torch runs."""
    refused = unsupported_operators(module)
    for name, reason in refused.items():
        _warn_once(f"the operator {name} runs as eager mode does: {reason}")
    if not refused:
        _warn_once(f"a graph runs as eager mode does: {error}")
        return _eager(module, ())
    whole, parts = split(module, frozenset(refused))
    inputs = [node for node in whole.graph.nodes if node.op == "placeholder"]
    fixed = {inputs[at] for at in constant}
    for call in [node for node in whole.graph.nodes if node.target in parts]:
        part = whole.get_submodule(str(call.target))
        assert isinstance(part, GraphModule), "the partitioner makes graphs"
        static = [at for at, source in enumerate(call.args) if source in fixed]
        whole.set_submodule(str(call.target), _Part(part, static, options))
    return _eager(whole, ())


class _Part(torch.nn.Module):
    """A compiled part of a graph, called with its arguments."""

    def __init__(self, module: GraphModule, static: Sequence[int], options: Options) -> None:
        super().__init__()
        self._is_single = isinstance(module.graph.output_node().args[0], Node)
        try:
            self._call: Callable[..., Any] = _CompiledGraph(module, export_graph(module), static, options)
        except TorchExportError as error:
            _warn_once(f"a part of a graph runs as eager mode does: {error}")
            self._call, self._is_single = _eager(module, ()), False

    def forward(self, *args: Any) -> Any:
        results = self._call(list(args))
        return results[0] if self._is_single else results


def _training(module: GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
    _warn_once("a call records gradients, and runs as eager mode does; use torch.no_grad() or torch.inference_mode()")
    return _eager(module, _)


def _eager(module: GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
    """The graph run by torch, operator by operator."""

    def call(args: list[Any]) -> Any:
        values = list(args)
        args.clear()
        return module(*values)

    call._boxed_call = True  # type: ignore[attr-defined]
    return call


class _CompiledGraph:
    """A graph of aten operators, compiled when it is first called. Takes a list of arguments, which it empties."""

    _boxed_call = True

    def __init__(self, module: GraphModule, exported: Exported, static: Sequence[int], options: Options) -> None:
        self._module, self._exported, self._static, self._options = module, exported, static, options
        self._lock = threading.Lock()
        self._execution: Execution | None = None
        self._changes: Counter[int] = Counter()
        self._is_eager = False

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        values = list(args)
        args.clear()  # torch's convention: the callee alone holds the arguments
        execution = self._execution
        if execution is None or execution.changed(values):
            execution = self._compile(values)
        return self._module(*values) if execution is None else execution(values)

    def _compile(self, values: Sequence[Any]) -> Execution | None:
        """The execution for these values of the parameters; None where the graph runs eagerly."""
        with self._lock:
            if self._is_eager:
                return None
            changed = [] if self._execution is None else self._execution.changed(values)
            if self._execution is not None and not changed:
                return self._execution  # of another thread
            self._changes.update(changed)
            constant = [at for at in self._static if self._changes[at] <= _MOST_CHANGES and _is_tracked(values[at])]
            try:
                self._execution = Execution(self._exported, values, constant, self._options)
                log.info("compiled a graph of %d nodes", len(self._module.graph.nodes))
            except (CompileError, RelaycError) as error:
                self._is_eager, self._execution = True, None
                _warn_once(f"a graph runs as eager mode does: {error}")
            return self._execution


def _is_tracked(tensor: torch.Tensor) -> bool:
    """Does torch count the changes of this tensor?"""
    return not tensor.is_inference()


def _makes_tensors(node: Node) -> bool:
    """Is the node a call whose results are tensors, rather than sizes and numbers of Python?"""
    return node.op == "call_function" and not isinstance(node.meta.get("val"), py_sym_types)


def _foreign_tensor(module: GraphModule) -> str | None:
    """A tensor of the graph that is not a dense one of the CPU, in words."""
    for node in module.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and (value.device.type != "cpu" or value.layout != torch.strided):
            return f"it has a tensor of layout {value.layout} on {value.device}; expected dense ones on the CPU"
    return None


def _warn_once(message: str) -> None:
    warn_once(message, "torch")
