"""Random ONNX graphs: valid by construction, tame in their values, the same for the same seed.

A graph grows node by node, at a version of the operator set. Each value carries what the next node must know: type,
shape, the interval its elements lie in, and whether it is *exact*, that is, the same to the last bit however it is
computed. Operators with jumps (Floor, Greater, ArgMax ...) take exact values only, for which every implementation must
agree; intervals keep chains of operators away from overflow, and from where functions are undefined.

A graph with named dimensions is run at several sizes of them, 1 among them; two of the names broadcast, so that either
may be 1 where the other is not.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from tests.fuzz.dims import RUNS, SYMBOLS, Symbolic, is_symbolic, shape_at
from tests.fuzz.names import reads
from tests.fuzz.schemas import as_dtype, exists, has_attribute, input_count, kind_of, types_of

__all__ = [
    "FLOATS", "INTEGERS", "NEWEST", "NUMBERS", "STRING", "WORDS", "GraphBuilder", "Modern", "Sample", "Value",
    "generators", "operator", "random_graph",
]  # fmt: skip

NEWEST = 21
"""The opset that the oracles support best; nodes of older versions are translated to it for them."""

OPSETS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, NEWEST, NEWEST, 22, 23, 24, 25, 26, 28)

DOMAINS = {"ai.onnx.ml": (1, 2, 3, 4, 5), "com.microsoft": (1,)}
"""Other domains, with the versions of them that graphs import."""

FLOATS = ("float32", "float64", "float16", "bfloat16")
INTEGERS = ("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8")
NUMBERS = (*FLOATS, *INTEGERS)
STRING = "object"
"""numpy's dtype name of strings."""

_FREQUENT = {"float32": 8, "float64": 2, "float16": 2, "bfloat16": 2, "int64": 3, "int32": 3, "bool": 2}
"""Relative frequency of input types; 1 for others."""

WORDS = ("", "a", "b", "tea", "Tea", "x y", "7", "-0.5", "ünï", "a,b", "日本")
"""Vocabulary of string tensors."""

_SAME_FROM_THE_START = frozenset((
    "Abs", "Ceil", "Elu", "Exp", "Floor", "GlobalAveragePool", "GlobalMaxPool", "HardSigmoid", "InstanceNormalization",
    "LRN", "LeakyRelu", "Log", "MatMul", "Max", "Mean", "Min", "Neg", "Not", "Reciprocal", "Relu", "Selu", "Sigmoid",
    "Softplus", "Softsign", "Sqrt", "Sum", "Tanh", "Transpose",
))  # fmt: skip
"""Operators whose semantics have not changed since version 1; the oracles evaluate their newest version."""

SMALL = 5
"""Largest size of most static dimensions."""

LONG = 40
"""Occasional largest size of a last dimension: enough for vectors and a remainder."""

LARGEST = 1e3
"""Bound of magnitudes; larger values are scaled down."""

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor of the graph, whose elements are in [low, high]."""

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
    def is_static(self) -> bool:
        """Is every dimension a number?"""
        return not is_symbolic(self.shape)

    @property
    def largest(self) -> float:
        """The largest magnitude."""
        return max(abs(self.low), abs(self.high))


@dataclass(frozen=True, slots=True)
class Sample:
    """A graph and inputs for it.

    `outputs` are the values to compare, with how exactly each is known. `runs` has the inputs, more than once where
    dimensions are symbolic. `modern` maps nodes by name to equivalent nodes of the opset `NEWEST`.
    `dtypes` has the type of every tensor.
    """

    seed: int
    model: ModelProto
    outputs: list[Value]
    runs: list[dict[str, Array]]
    modern: dict[str, list[NodeProto]]
    dtypes: dict[str, str]


Generator = Callable[["GraphBuilder"], "Value | None"]
Modern = Callable[[list[str], list[str]], list[NodeProto]]
"""Nodes of the newest version for the names of inputs and outputs."""

_weights: dict[str, int] = {}
generators: dict[str, Generator] = {}
"""By operator: adds one such node, or several. Raises LookupError when the graph has nothing that it could take."""


def operator(*names: str, weight: int = 1) -> Callable[[Callable[..., Value | None]], Callable[..., Value | None]]:
    """Register a generator for operators; one for several operators is told which as second argument. `weight` says
    how often it is tried, against 1."""

    def add(function: Callable[..., Value | None]) -> Callable[..., Value | None]:
        for name in names:
            assert name not in generators, name
            _weights[name] = weight
            generators[name] = function if len(names) == 1 else lambda g, name=name: function(g, name)
        return function

    return add


@dataclass(frozen=True, slots=True)
class _Input:
    """Generator of the array of a graph input, for any sizes."""

    dtype: str
    shape: tuple[int, ...]
    low: float
    high: float
    special: bool

    def array(self, numbers: np.random.Generator, shape: tuple[int, ...]) -> Array:
        """Its elements, for a shape that `shape` stands for."""
        made = _filled(numbers, self.dtype, shape, self.low, self.high)
        if self.special:
            odd = numbers.choice([np.nan, np.inf, -np.inf, 0.0, -0.0], shape)
            made = np.where(numbers.random(shape) < 0.3, odd, made).astype(made.dtype)
        return made


@dataclass(slots=True)
class GraphBuilder:
    """A graph under construction. `rng` decides everything."""

    rng: random.Random
    numbers: np.random.Generator
    opset: int = NEWEST
    dynamic: bool = False
    versions: dict[str, int] = field(default_factory=dict)
    nodes: list[NodeProto] = field(default_factory=list)
    inputs: dict[str, _Input] = field(default_factory=dict)
    initializers: list[TensorProto] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    arrays: dict[str, Array] = field(default_factory=dict)
    modern: dict[str, list[NodeProto]] = field(default_factory=dict)
    dtypes: dict[str, str] = field(default_factory=dict)
    fixed: set[str] = field(default_factory=set)
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
        rank = self.integer(low, min(high, 4)) if self.chance(0.9) else self.integer(low, high)
        top = SMALL if rank < 5 else 3
        dims = [self.integer(min(max(smallest, 1), top), top) for _ in range(rank)]
        if 0 < rank < 4 and self.chance(0.1):
            dims[-1] = self.integer(SMALL, LONG)
        if smallest == 0 and dims and self.chance(0.05):
            dims[self.integer(0, len(dims) - 1)] = 0
        if self.dynamic and dims and self.chance(0.6):
            dims[0] = Symbolic.named("wide" if self.chance(0.25) else "batch")
            if len(dims) > 1 and self.chance(0.4):
                dims[1] = Symbolic.named("length")
        return tuple(dims)

    # -- the operator set

    def offers(self, name: str) -> bool:
        """Is there such an operator? One of another domain is named "domain.operator"."""
        domain, _, op = name.rpartition(".")
        if domain == "com.microsoft":  # its schemas are onnxruntime's
            return self.opset >= 11
        return exists(op, self.versions.get(domain, self.opset), domain)

    def has(self, op: str, attribute: str) -> bool:
        """Has the operator this attribute, in this version?"""
        return has_attribute(op, self.opset, attribute)

    def takes(self, op: str, count: int) -> bool:
        """Can the operator have so many inputs, in this version?"""
        return input_count(op, self.opset) >= count

    def types(self, op: str, among: Sequence[str] = NUMBERS, position: int = 0) -> tuple[str, ...]:
        """Types of `among` that an input of the operator may have. Raises LookupError when there is none."""
        known = types_of(op, self.opset, position)
        allowed = tuple(dtype for dtype in among if dtype in known)
        if not allowed:
            raise LookupError(f"{op} takes none of the types {', '.join(among)}")
        return allowed

    # -- values

    def name(self, prefix: str) -> str:
        self.counter += 1
        return f"{prefix}{self.counter}"

    def fill(self, dtype: str, shape: Sequence[int], low: float = -2.0, high: float = 2.0) -> Array:
        """An array with elements in [low, high]."""
        return _filled(self.numbers, dtype, tuple(shape), low, high)

    def input(
        self, dtype: str, shape: Sequence[int], low: float = -2.0, high: float = 2.0, special: bool = False
    ) -> Value:
        """A new graph input; `special`: with NaN, infinities and zeros of both signs in it."""
        recipe = _Input(dtype, tuple(shape), low, high, special)
        name, array = self.name("x"), recipe.array(self.numbers, tuple(shape))
        self.inputs[name] = recipe
        self.arrays[name] = array
        bounds = (-math.inf, math.inf) if special else _bounds(array)
        return self._keep(Value(name, dtype, tuple(shape), True, *bounds))

    def constant(self, array: Any, dtype: str | None = None, *, fixed: bool = False) -> str:
        """The name of a new constant: an initializer, possibly listed as an input, or the output of a node; `fixed`:
        an initializer that nothing can replace."""
        name = self.name("c")
        value = np.asarray(array, None if dtype is None else as_dtype(dtype))
        fixed = fixed or value.dtype == object  # strings are known when compiling
        self.dtypes[name] = value.dtype.name
        if fixed:
            self.fixed.add(name)
        if self.chance(0.1) and not fixed:
            made = numpy_helper.from_array(value, name)
            self.nodes.append(helper.make_node("Constant", [], [name], name=f"Constant_{len(self.nodes)}", value=made))
        else:
            self.initializers.append(numpy_helper.from_array(value, name))
        return name

    def weight(self, dtype: str, shape: Sequence[int], low: float = -1.0, high: float = 1.0) -> Value:
        """A constant tensor as a value. Raises LookupError for symbolic dimensions."""
        if is_symbolic(shape):
            raise LookupError("a constant has no symbolic dimensions")
        array = self.fill(dtype, shape, low, high)
        return Value(self.constant(array), dtype, tuple(shape), True, *_bounds(array))

    def operand(self, dtype: str, shape: Sequence[int], low: float = -1.0, high: float = 1.0) -> Value:
        """A second operand: mostly a constant; an input if dimensions are symbolic."""
        make = self.input if is_symbolic(shape) or self.chance(0.3) else self.weight
        return make(dtype, shape, low, high)

    def pick(
        self,
        dtypes: Sequence[str],
        low: int = 0,
        high: int = 6,
        *,
        exact: bool = False,
        within: tuple[float, float] = (-LARGEST, LARGEST),
        smallest: int = 0,
        where: Callable[[Value], bool] = lambda value: True,
        special: bool = False,
    ) -> Value:
        """A value of a type and rank in bounds, preferably one that was computed; a new input when there is none.

        `special`: NaN and infinities may be among its elements.
        """
        if special and self.chance(0.08):
            kinds = [dtype for dtype in dtypes if dtype in FLOATS]
            if kinds:
                return self.input(self.choice(kinds), self.shape(low, high, smallest), special=True)

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
        weights = [_FREQUENT.get(dtype, 1) for dtype in dtypes]
        for _ in range(50):
            shape = self.shape(low, high, smallest)
            limits = max(within[0], -2.0), min(within[1], 2.0 if within[0] < 2.0 else within[0] + 2.0)
            candidate = Value("", self.rng.choices(list(dtypes), weights)[0], shape, True, *limits)
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
        /,
        *,
        outputs: int = 1,
        modern: Modern | None = None,
        **attributes: Any,
    ) -> Value:
        """Add a node; its first output as a value, scaled down when it may be too large. `op` as in `offers`."""
        names = [v.name if isinstance(v, Value) else (v or "") for v in inputs]
        out = [self.name("t") for _ in range(outputs)]
        domain, _, op = op.rpartition(".")
        name = f"{op}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, names, out, name=name, domain=domain, **attributes))
        if modern is None and self.opset < 6 and op in _SAME_FROM_THE_START:
            def modern(a: list[str], b: list[str]) -> list[NodeProto]:
                return [helper.make_node(op, a, b, **attributes)]
        if modern is not None:
            self.modern[name] = modern(names, out)
        value = Value(out[0], dtype, tuple(shape), exact, float(low), float(high))
        if value.is_float and LARGEST / 4 < value.largest < math.inf:
            return self._scaled(value)
        return self._keep(value)

    def also(
        self, output: int, like: Value, dtype: str, shape: Sequence[int], exact: bool, low: float, high: float
    ) -> Value:
        """Output number `output` of the node that gave `like`."""
        node = next(n for n in reversed(self.nodes) if like.name in n.output)
        return self._keep(Value(node.output[output], dtype, tuple(shape), exact, low, high))

    def _scaled(self, value: Value) -> Value:
        scale = float(2.0 ** -np.ceil(np.log2(value.largest)))
        self.dtypes[value.name] = value.dtype
        old = self.opset < 7
        return self.node("Mul", [value, self.constant(scale, value.dtype)], value.dtype, value.shape, value.exact,
                         value.low * scale, value.high * scale, **({"broadcast": 1} if old else {}),
                         modern=(lambda a, b: [helper.make_node("Mul", a, b)]) if old else None)  # fmt: skip

    def _keep(self, value: Value) -> Value:
        self.values.append(value)
        self.dtypes[value.name] = value.dtype
        return value

    # -- the result

    def finish(self, seed: int) -> Sample:
        """The model: its outputs are the values that nothing reads, and a few others."""
        read = {name for node in self.nodes for name in reads(node)}
        inputs = {name: x for name, x in self.inputs.items() if name in read}
        made = {name for node in self.nodes for name in node.output}
        computed = [v for v in self.values if v.name in made]
        outputs = [v for v in computed if v.name not in read or self.chance(0.1)]
        listed = [t for t in self.initializers if t.name not in self.fixed and self.chance(0.15)]
        graph = helper.make_graph(
            self.nodes,
            f"random_{seed}",
            [
                *[self._declare(name, x) for name, x in inputs.items()],
                *[helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in listed],
            ],
            [_declaration(v.name, v.dtype, None) for v in outputs],
            self.initializers,
        )
        used = {node.domain for node in self.nodes} & set(self.versions)
        imports = {"": self.opset, **{domain: self.versions[domain] for domain in sorted(used)}}
        opsets = [helper.make_opsetid(domain, version) for domain, version in imports.items()]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
        return Sample(seed, model, outputs, self._runs(seed, inputs), self.modern, self.dtypes)

    def _runs(self, seed: int, inputs: dict[str, _Input]) -> list[dict[str, Array]]:
        if not any(is_symbolic(x.shape) for x in inputs.values()):
            return [{name: self.arrays[name] for name in inputs}]
        runs: list[dict[str, Array]] = []
        for large in RUNS:
            size = self.integer(2, 13)
            sizes = {name: size if name in large else 1 for name in SYMBOLS}
            if large:
                sizes["length"] = self.integer(1, 13)
            numbers = np.random.default_rng([seed, *sizes.values()])
            runs.append({name: x.array(numbers, shape_at(x.shape, sizes)) for name, x in inputs.items()})
        return runs

    def _declare(self, name: str, x: _Input) -> ValueInfoProto:
        dims = [(d.symbol or f"{name}_{i}") if isinstance(d, Symbolic) else d for i, d in enumerate(x.shape)]
        return _declaration(name, x.dtype, dims)


def _filled(
    numbers: np.random.Generator, dtype: str, shape: tuple[int, ...], low: float, high: float
) -> Array:
    if dtype == "bool":
        return np.asarray(numbers.random(shape) < 0.5)
    if dtype == STRING:
        return np.asarray(numbers.choice(np.array(WORDS, object), shape), object)
    if dtype == "float8_e8m0fnu":
        return np.asarray(2.0 ** numbers.integers(-4, 4, shape), as_dtype(dtype))
    if not dtype.startswith(("int", "uint")):
        return np.asarray(numbers.uniform(low, high, shape), as_dtype(dtype))
    least, most = {"int4": (-8, 7), "uint4": (0, 15), "int2": (-2, 1), "uint2": (0, 3)}.get(dtype, (-8, math.inf))
    first, last = int(max(low, least)), int(min(high, most))
    if dtype.startswith("uint"):
        first = max(first, 0)
    return np.asarray(numbers.integers(first, max(last, first) + 1, shape)).astype(as_dtype(dtype))


def _declaration(name: str, dtype: str, shape: Sequence[int | str] | None) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, kind_of(dtype), shape)


def _bounds(array: Array) -> tuple[float, float]:
    if array.size == 0 or array.dtype == object:
        return 0.0, 0.0
    wide = array.astype(np.float64)
    return float(wide.min()), float(wide.max())


def random_graph(
    seed: int, *, only: Sequence[str] = (), dynamic: bool | None = None, opset: int | None = None, most: int = 12
) -> Sample:
    """The graph of a seed: 1 to `most` nodes, by any of the operators (or those of `only`) that its operator set has.

    `dynamic`: do named dimensions stand in the inputs' shapes? By default in a third of the graphs. Raises ValueError
    where the operator sets of the seed have none of `only`.
    """
    rng = random.Random(seed)
    wanted = rng.random() < 1 / 3 if dynamic is None else dynamic
    builder = GraphBuilder(rng, np.random.default_rng(seed), rng.choice(OPSETS) if opset is None else opset, wanted)
    builder.versions = {domain: rng.choice(known) for domain, known in DOMAINS.items()}
    names = [name for name in sorted(only or generators) if builder.offers(name)]
    if not names:
        raise ValueError(f"none of {', '.join(only)} is in operator set {builder.opset} with {builder.versions}")
    weights = [_weights[name] for name in names]
    count = rng.randint(1, most)
    while len(builder.nodes) < count:
        try:
            generators[rng.choices(names, weights)[0]](builder)
        except LookupError:  # nothing that this operator could take
            builder.input("float32", builder.shape(2, 3))
    return builder.finish(seed)
