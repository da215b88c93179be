"""Networks of random blocks, written as exporters write them: the graph computes sizes from shapes of tensors."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from tests.fuzz.names import needed

__all__ = ["BLOCKS", "EXTENTS", "Extents", "Image", "Input", "Net", "Tokens", "block"]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Image:
    """A tensor [batch, channels, height, width] of which only the channels are known."""

    name: str
    channels: int


@dataclass(frozen=True, slots=True)
class Tokens:
    """A tensor [batch, length, width] of which only the width is known."""

    name: str
    width: int


State = Image | Tokens
Block = Callable[["Net", Any], State]
BLOCKS: dict[type[Image] | type[Tokens], dict[str, Block]] = {Image: {}, Tokens: {}}
"""By what they take and by name."""


def block(takes: type[Image] | type[Tokens]) -> Callable[[Block], Block]:
    """Register a block of networks."""

    def add(function: Block) -> Block:
        BLOCKS[takes][function.__name__] = function
        return function

    return add


@dataclass(frozen=True, slots=True)
class Input:
    """An input of a graph: normally distributed float32, or integers from `low` to `high`."""

    shape: tuple[int | str, ...]
    dtype: str = "float32"
    low: int = 0
    high: int = 0


@dataclass(frozen=True, slots=True)
class Extents:
    """How large the tensors of a network are, so that every kind of network takes about as long.

    `channels` of images, `widths` of tokens and `hidden` layers are drawn from; beyond `most` channels an image is
    brought to fewer. `spans` has the least and the largest size of each named dimension.
    """

    channels: tuple[int, ...]
    widths: tuple[int, ...]
    hidden: tuple[int, ...]
    most: int
    spans: Mapping[str, tuple[int, int]]


EXTENTS = {
    "small": Extents(
        channels=(4, 6, 8, 12, 16, 20, 24, 32, 40, 48),
        widths=(12, 16, 20, 24, 32, 36, 48),
        hidden=(8, 12, 20, 24, 40, 64, 100),
        most=100,
        spans={"batch": (1, 3), "length": (3, 40), "context": (1, 24), "past": (0, 20), "room": (20, 50),
               "height": (9, 40), "width": (9, 40), "side": (9, 40)},
    ),
    "wide": Extents(
        channels=(48, 64, 72, 96, 128, 136, 192, 256, 320, 512),
        widths=(64, 96, 128, 160, 192, 256, 384, 512, 768, 1024),
        hidden=(64, 128, 200, 256, 384, 512),
        most=640,
        spans={"batch": (1, 2), "length": (1, 20), "context": (1, 12), "past": (0, 12), "room": (20, 24),
               "height": (5, 15), "width": (5, 15), "side": (5, 15)},
    ),
    "long": Extents(
        channels=(3, 4, 6, 8, 12, 16),
        widths=(8, 12, 16, 24, 32),
        hidden=(8, 16, 24),
        most=48,
        spans={"batch": (1, 2), "length": (60, 520), "context": (1, 300), "past": (0, 300), "room": (20, 600),
               "height": (5, 12), "width": (60, 200), "side": (9, 50)},
    ),
}  # fmt: skip
"""Few channels and short rows, many channels, and long rows, which schedules treat in other ways."""


@dataclass(slots=True)
class Net:
    """A graph under construction."""

    rng: random.Random
    numbers: np.random.Generator
    extents: Extents
    nodes: list[NodeProto] = field(default_factory=list)
    initializers: list[TensorProto] = field(default_factory=list)
    inputs: dict[str, Input] = field(default_factory=dict)
    results: list[str] = field(default_factory=list)
    """Outputs beside the last tensor, such as caches for the next run."""
    dtypes: dict[str, str] = field(default_factory=dict)
    """The types of results that are not float32, as numpy names them."""
    opset: int = 20
    """The opset of the graph: blocks raise it to what their operators need."""
    grown: bool = False
    """Whether a block has enlarged it: one may, as attention takes the square of the size."""

    def chance(self, share: float) -> bool:
        """True in that share of the cases."""
        return self.rng.random() < share

    def choice(self, options: Sequence[Any]) -> Any:
        """One of the options."""
        return self.rng.choice(options)

    def channels(self) -> int:
        """A number of channels of an image."""
        return self.choice(self.extents.channels)

    def width(self) -> int:
        """A width of tokens."""
        return self.choice(self.extents.widths)

    def hidden(self) -> int:
        """A width between two dense layers, or of the state of a recurrence."""
        return self.choice(self.extents.hidden)

    def fixed(self, name: str) -> int:
        """A size that a named dimension may have."""
        return self.rng.randint(*self.extents.spans[name])

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """The first output of a new node."""
        return self.ops(kind, 1, *inputs, **attributes)[0]

    def ops(self, kind: str, count: int, *inputs: str, domain: str = "", **attributes: Any) -> list[str]:
        """The outputs of a new node."""
        names = [f"t{len(self.nodes)}_{i}" for i in range(count)]
        name = f"{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), names, name=name, domain=domain, **attributes))
        return names

    def input(self, *shape: int | str) -> str:
        """A new input of float32."""
        return self._input(Input(shape))

    def integers(self, *shape: int | str, low: int, high: int, dtype: str = "int64") -> str:
        """A new input of integers between two, with both."""
        return self._input(Input(shape, dtype, low, high))

    def _input(self, value: Input) -> str:
        name = f"x{len(self.inputs)}"
        self.inputs[name] = value
        return name

    @property
    def batch(self) -> int | str:
        """The size of all inputs along the batch."""
        return next(iter(self.inputs.values())).shape[0]

    def constant(self, value: Any, dtype: str) -> str:
        """An initializer."""
        name = f"c{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def narrow(self, values: Any, kind: int) -> str:
        """An initializer of a type of fewer than 32 bits, which numpy may not have."""
        name, array = f"c{len(self.initializers)}", np.asarray(values, np.float32)
        self.initializers.append(helper.make_tensor(name, kind, array.shape, array.reshape(-1)))
        return name

    def ints(self, *values: int) -> str:
        """An initializer, a vector of int64."""
        return self.constant(values, "int64")

    def whole(self, value: int) -> str:
        """An initializer, a scalar of int64."""
        return self.constant(value, "int64")

    def number(self, value: float) -> str:
        """An initializer, a scalar of float32."""
        return self.constant(value, "float32")

    def real(self, x: str) -> str:
        """`x` in float32."""
        return self.op("Cast", x, to=TensorProto.FLOAT)

    def weight(self, *shape: int, depth: int | None = None) -> str:
        """An initializer of random numbers, for sums of `depth` terms: by default all dimensions but the first."""
        depth = math.prod(shape[1:]) if depth is None else depth
        return self.constant(self.numbers.normal(size=shape) / math.sqrt(max(depth, 1)), "float32")

    def bias(self, *shape: int) -> str:
        """An initializer of small random numbers."""
        return self.constant(self.numbers.normal(size=shape) * 0.3, "float32")

    def size(self, x: str, axis: int) -> str:
        """A vector of one element: the size of an axis."""
        if self.chance(0.5):
            return self.op("Shape", x, start=axis, **({} if axis == -1 else {"end": axis + 1}))
        return self.op("Gather", self.op("Shape", x), self.ints(axis))

    def sizes(self, *parts: str | int) -> str:
        """A shape of vectors of one element, and of numbers."""
        return self.op("Concat", *[self.ints(p) if isinstance(p, int) else p for p in parts], axis=0)

    def reshape(self, x: str, *parts: str | int) -> str:
        """`x` with a shape of sizes as `size` gives them, and of numbers."""
        if all(isinstance(p, int) for p in parts):
            return self.op("Reshape", x, self.ints(*[int(p) for p in parts]))
        return self.op("Reshape", x, self.sizes(*parts))

    def transpose(self, x: str, *order: int) -> str:
        return self.op("Transpose", x, perm=list(order))

    def slice(self, x: str, axis: int, start: int | str, end: int | str, step: int = 1) -> str:
        """A part of one axis; bounds may be sizes as `size` gives them."""
        bounds = [self.ints(b) if isinstance(b, int) else b for b in (start, end)]
        return self.op("Slice", x, *bounds, self.ints(axis), self.ints(step))

    def range_of(self, size: str) -> str:
        """0, 1, 2 ... in int64, as many as `size` says."""
        return self.op("Range", self.whole(0), self.op("Squeeze", size, self.ints(0)), self.whole(1))

    def padded_size(self, size: str, multiple: int) -> str:
        """What is missing of a size to the next multiple."""
        m = self.ints(multiple)
        if self.chance(0.5):
            return self.op("Mod", self.op("Sub", m, self.op("Mod", size, m)), m)
        up = self.op("Mul", self.op("Div", self.op("Add", size, self.ints(multiple - 1)), m), m)
        return self.op("Sub", up, size)

    def pad_end(self, x: str, rank: int, amounts: dict[int, str], mode: str = "constant") -> str:
        """`x` padded at the end of axes."""
        ends = [amounts.get(axis, 0) for axis in range(rank)]
        return self.op("Pad", x, self.sizes(*[0] * rank, *ends), mode=mode)

    def activation(self, x: str) -> str:
        """An activation, some as a chain of nodes."""
        kind = self.choice(
            ("Relu", "Gelu", "Silu", "Tanh", "LeakyRelu", "HardSwish", "Mish", "Clip", "Elu", "QuickGelu")
        )
        if kind == "Gelu":
            inner = self.op("Erf", self.op("Div", x, self.number(math.sqrt(2))))
            return self.op("Mul", self.op("Mul", x, self.op("Add", inner, self.number(1))), self.number(0.5))
        if kind == "Silu":
            return self.op("Mul", x, self.op("Sigmoid", x))
        if kind == "QuickGelu":
            return self.op("Mul", x, self.op("Sigmoid", self.op("Mul", x, self.number(1.702))))
        if kind == "Clip":
            return self.op("Clip", x, self.number(0), self.number(6))
        return self.op(kind, x)

    def linear(self, x: str, depth: int, width: int, bias: bool = True) -> str:
        """A dense layer of the last axis."""
        product = self.op("MatMul", x, self.weight(depth, width, depth=depth))
        return self.op("Add", product, self.bias(width)) if bias else product

    def layer_norm(self, x: str, width: int) -> str:
        """A normalisation of the last axis: one node, or as a chain of them."""
        scale, shift = self.bias(width), self.bias(width)
        way = self.rng.random()
        if way < 0.4:
            return self.op("LayerNormalization", x, scale, shift, axis=-1)
        if way < 0.7:
            square = self.op("ReduceMean", self.op("Mul", x, x), self.ints(-1))
            root = self.op("Sqrt", self.op("Add", square, self.number(1e-5)))
            return self.op("Mul", self.op("Div", x, root), scale)
        centred = self.op("Sub", x, self.op("ReduceMean", x, self.ints(-1)))
        variance = self.op("ReduceMean", self.op("Pow", centred, self.number(2)), self.ints(-1))
        root = self.op("Sqrt", self.op("Add", variance, self.number(1e-5)))
        return self.op("Add", self.op("Mul", self.op("Div", centred, root), scale), shift)

    def model(self, values: Sequence[str]) -> ModelProto:
        """The graph of these values, of all that they need."""
        nodes, names = needed(self.nodes, values)
        inputs = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(x.dtype)), x.shape)
            for name, x in self.inputs.items()
            if name in names
        ]
        kinds = {n: helper.np_dtype_to_tensor_dtype(np.dtype(self.dtypes.get(n, "float32"))) for n in values}
        outputs = [helper.make_tensor_value_info(n, kind, None) for n, kind in kinds.items()]
        weights = [tensor for tensor in self.initializers if tensor.name in names]
        graph = helper.make_graph(nodes, "network", inputs, outputs, weights)
        imports = [helper.make_opsetid("", self.opset), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=imports, ir_version=10 if self.opset == 20 else 13)
