"""Random ONNX graphs: valid by construction, tame in their values, the same for the same seed.

A graph grows node by node. Each value carries what the next node must know: type, shape, the interval its elements lie
in, and whether it is *exact*, that is, the same to the last bit however it is computed. Operators with jumps (Floor,
Greater, ArgMax ...) take exact values only, for which every implementation must agree; intervals keep chains of
operators away from overflow, and from where functions are undefined.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

__all__ = [
    "FLOATS", "INTEGERS", "NAMED", "OPSET", "GraphBuilder", "Sample", "Value", "generators", "operator", "random_graph",
]  # fmt: skip

OPSET = 21
FLOATS = ("float32", "float32", "float32", "float64", "float16")
INTEGERS = ("int64", "int64", "int32", "int32", "uint8", "int8", "int16", "uint16", "uint32", "uint64")

SMALL = 5
"""The largest size of a dimension that is not a named one."""

SYMBOLS = {"batch": 7, "length": 11}
"""Named dimensions, by sizes that no other dimension has."""

NAMED = frozenset(SYMBOLS.values())

LARGEST = 1e3
"""Values are scaled down when they may be larger."""


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor of the graph; `low` and `high` bound its elements."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    exact: bool
    low: float
    high: float

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def is_float(self) -> bool:
        return self.dtype in FLOATS

    @property
    def largest(self) -> float:
        """The largest magnitude."""
        return max(abs(self.low), abs(self.high))


@dataclass(frozen=True, slots=True)
class Sample:
    """A graph and inputs for it. `outputs` are the values to compare, with how exactly each is known."""

    seed: int
    model: ModelProto
    inputs: dict[str, np.ndarray[Any, Any]]
    outputs: list[Value]


Generator = Callable[["GraphBuilder"], "Value | None"]
generators: dict[str, Generator] = {}
"""By operator: adds one such node, or several; None when the graph has nothing that it could take."""


def operator(*names: str) -> Callable[[Callable[..., Value | None]], Callable[..., Value | None]]:
    """Register a generator for operators; one for several operators is told which as second argument."""

    def add(function: Callable[..., Value | None]) -> Callable[..., Value | None]:
        for name in names:
            assert name not in generators, name
            generators[name] = function if len(names) == 1 else lambda g, name=name: function(g, name)
        return function

    return add


@dataclass(slots=True)
class GraphBuilder:
    """A graph under construction. `rng` decides everything."""

    rng: random.Random
    numbers: np.random.Generator
    dynamic: bool = False
    nodes: list[NodeProto] = field(default_factory=list)
    inputs: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    initializers: list[TensorProto] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    counter: int = 0

    # -- choices

    def chance(self, share: float) -> bool:
        """True in that share of the cases."""
        return self.rng.random() < share

    def integer(self, low: int, high: int) -> int:
        """An integer of [low, high]."""
        return self.rng.randint(low, high)

    def choice(self, options: Sequence[Any]) -> Any:
        """One of the options."""
        return self.rng.choice(list(options))

    def shape(self, low: int = 0, high: int = 4, smallest: int = 1) -> tuple[int, ...]:
        """A shape of rank [low, high]; now and then with a dimension of 0 where `smallest` allows."""
        dims = [self.integer(max(smallest, 1), SMALL) for _ in range(self.integer(low, high))]
        if smallest == 0 and dims and self.chance(0.05):
            dims[self.integer(0, len(dims) - 1)] = 0
        if self.dynamic and dims and self.chance(0.6):
            dims[0] = SYMBOLS["batch"]
            if len(dims) > 1 and self.chance(0.4):
                dims[1] = SYMBOLS["length"]
        return tuple(dims)

    # -- values

    def name(self, prefix: str) -> str:
        self.counter += 1
        return f"{prefix}{self.counter}"

    def fill(self, dtype: str, shape: Sequence[int], low: float = -2.0, high: float = 2.0) -> np.ndarray[Any, Any]:
        """An array with elements in [low, high]."""
        if dtype == "bool":
            return np.asarray(self.numbers.random(tuple(shape)) < 0.5)
        if dtype in FLOATS:
            return np.asarray(self.numbers.uniform(low, high, tuple(shape)), dtype)
        first, last = int(max(low, -8)), int(high)
        if dtype.startswith("uint"):
            first = max(first, 0)
        return np.asarray(self.numbers.integers(first, max(last, first) + 1, tuple(shape)), dtype)

    def input(self, dtype: str, shape: Sequence[int], low: float = -2.0, high: float = 2.0) -> Value:
        """A new graph input."""
        array = self.fill(dtype, shape, low, high)
        name = self.name("x")
        self.inputs[name] = array
        return self._keep(Value(name, dtype, tuple(shape), True, *_bounds(array)))

    def constant(self, array: Any, dtype: str | None = None) -> str:
        """The name of a new initializer."""
        name = self.name("c")
        self.initializers.append(numpy_helper.from_array(np.asarray(array, dtype), name))
        return name

    def weight(self, dtype: str, shape: Sequence[int], low: float = -1.0, high: float = 1.0) -> Value:
        """A constant tensor as a value. Not for named dimensions: raises LookupError."""
        if self.dynamic and not NAMED.isdisjoint(shape):
            raise LookupError("a constant has no named dimensions")
        array = self.fill(dtype, shape, low, high)
        return Value(self.constant(array), dtype, tuple(shape), True, *_bounds(array))

    def pick(
        self,
        dtypes: Sequence[str] = FLOATS,
        low: int = 0,
        high: int = 4,
        *,
        exact: bool = False,
        within: tuple[float, float] = (-LARGEST, LARGEST),
        smallest: int = 0,
        where: Callable[[Value], bool] = lambda value: True,
    ) -> Value:
        """A value of a type and rank in bounds, preferably one that was computed; a new input when there is none."""

        def fits(v: Value) -> bool:
            return (
                v.dtype in dtypes
                and low <= v.rank <= high
                and (v.exact or not exact)
                and within[0] <= v.low
                and v.high <= within[1]
                and all(d >= smallest for d in v.shape)
                and where(v)
            )

        found = [v for v in self.values if fits(v)]
        if found and self.chance(0.85):
            return found[-1] if self.chance(0.5) else self.choice(found)
        for _ in range(50):
            shape = self.shape(low, high, smallest)
            limits = max(within[0], -2.0), min(within[1], 2.0 if within[0] < 2.0 else within[0] + 2.0)
            candidate = Value("", self.choice(dtypes), shape, True, *limits)
            if where(candidate):
                return self.input(candidate.dtype, shape, *limits)
        raise LookupError("no value of the kind wanted")

    def node(
        self,
        op: str,
        inputs: Sequence[Value | str | None],
        dtype: str,
        shape: Sequence[int],
        exact: bool,
        low: float,
        high: float,
        *,
        outputs: int = 1,
        **attributes: Any,
    ) -> Value:
        """Add a node; its first output as a value, scaled down when it may be too large."""
        names = [v.name if isinstance(v, Value) else (v or "") for v in inputs]
        out = [self.name("t") for _ in range(outputs)]
        self.nodes.append(helper.make_node(op, names, out, name=f"{op}_{len(self.nodes)}", **attributes))
        value = Value(out[0], dtype, tuple(int(d) for d in shape), exact, float(low), float(high))
        if value.is_float and value.largest > LARGEST / 4:
            return self._scaled(value)
        return self._keep(value)

    def also(
        self, output: int, like: Value, dtype: str, shape: Sequence[int], exact: bool, low: float, high: float
    ) -> Value:
        """Output number `output` of the node that gave `like`."""
        node = next(n for n in reversed(self.nodes) if like.name in n.output)
        return self._keep(Value(node.output[output], dtype, tuple(shape), exact, low, high))

    def _scaled(self, value: Value) -> Value:
        scale = 2.0 ** -np.ceil(np.log2(value.largest))
        return self.node("Mul", [value, self.constant(scale, value.dtype)], value.dtype, value.shape, value.exact,
                         value.low * scale, value.high * scale)  # fmt: skip

    def _keep(self, value: Value) -> Value:
        self.values.append(value)
        return value

    # -- the result

    def finish(self, seed: int) -> Sample:
        """The model: its outputs are the values that nothing reads, and a few others."""
        read = {name for node in self.nodes for name in node.input}
        made = {name for node in self.nodes for name in node.output}
        computed = [v for v in self.values if v.name in made]
        outputs = [v for v in computed if v.name not in read or self.chance(0.1)]
        graph = helper.make_graph(
            self.nodes,
            f"random_{seed}",
            [self._declare(name, array) for name, array in self.inputs.items() if name in read],
            [_declaration(v.name, v.dtype, None) for v in outputs],
            self.initializers,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
        return Sample(seed, model, {n: a for n, a in self.inputs.items() if n in read}, outputs)

    def _declare(self, name: str, array: np.ndarray[Any, Any]) -> ValueInfoProto:
        symbols = {size: symbol for symbol, size in SYMBOLS.items()} if self.dynamic else {}
        return _declaration(name, array.dtype.name, [symbols.get(d, d) for d in array.shape])


def _declaration(name: str, dtype: str, shape: Sequence[int | str] | None) -> ValueInfoProto:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(getattr(ml_dtypes, dtype, dtype)))
    return helper.make_tensor_value_info(name, kind, shape)


def _bounds(array: np.ndarray[Any, Any]) -> tuple[float, float]:
    return (float(array.min()), float(array.max())) if array.size else (0.0, 0.0)


def random_graph(seed: int, *, only: Sequence[str] = (), dynamic: bool | None = None) -> Sample:
    """The graph of a seed: 1 to 12 nodes, by any of the operators (or those of `only`).

    `dynamic`: do named dimensions stand in the inputs' shapes? By default in a third of the graphs.
    """
    rng = random.Random(seed)
    wanted = rng.random() < 1 / 3 if dynamic is None else dynamic
    builder = GraphBuilder(rng, np.random.default_rng(seed), wanted)
    names = sorted(only or generators)
    count = rng.randint(1, 12)
    while len(builder.nodes) < count:
        try:
            generators[rng.choice(names)](builder)
        except LookupError:  # nothing that this operator could take
            builder.input("float32", builder.shape(2, 3))
    return builder.finish(seed)
