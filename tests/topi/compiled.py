"""Results of a function of one tensor, compiled and by the reference definitions of its operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from relayc import relay
from relayc.backend.runtime import device, graph_executor
from relayc.relay.expr import Expr, Var
from relayc.relay.interpreter import evaluate

Array = np.ndarray[Any, Any]


def compiled_and_defined(function: Callable[[Var], Expr], data: Array, target: str = "llvm") -> tuple[Array, Array]:
    """The results on two threads, and those of the reference definitions."""
    x = Var("x", relay.TensorType(data.shape, str(data.dtype)))
    program = relay.Function((x,), function(x))
    module = graph_executor.GraphModule(relay.build(program, target)["default"](device("cpu", 0)), 2)
    module.set_input("x", data)
    module.run()
    return module.get_output(0).numpy(), evaluate(program, [data])
