"""Fixtures for tests of passes: run a pass and check that results are unchanged; random graphs."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from relayc.relay import Call, Expr, Function, IRModule, Tuple, analysis, const, op, var
from relayc.relay.interpreter import evaluate
from relayc.relay.op import nn
from relayc.relay.op.base import OpDef
from relayc.relay.sizes import evaluate as size_of, size_variables
from relayc.te.ir import Pass, Sequential


def apply_and_compare(function: Function, *passes: Pass) -> Function:
    """The function after `passes`, checked: well-formed, of the same type, with the same results on random inputs.

    Symbolic sizes are 3, 4, 5, ... in the order of their names.
    """
    module = Sequential(passes)(IRModule({"main": function}))
    after: Function = module["main"]
    analysis.well_formed(module)
    assert after.ty is function.ty
    rng = np.random.default_rng(7)
    names = sorted(size_variables([p.tensor_type.shape for p in function.params]))
    sizes = {name: 3 + i for i, name in enumerate(names)}
    shapes = [[int(size_of(d, sizes)) for d in p.tensor_type.shape] for p in function.params]
    inputs = [rng.standard_normal(s).astype(str(p.dtype)) for s, p in zip(shapes, function.params, strict=True)]
    expected, found = evaluate(function, inputs), evaluate(after, inputs)
    pairs = zip(expected, found, strict=True) if isinstance(expected, tuple) else [(expected, found)]
    for a, b in pairs:
        np.testing.assert_allclose(b, a, rtol=2e-4, atol=2e-5)
    return after


def count_operators(function: Function) -> Counter[str]:
    """Calls of each operator, those inside fused functions included."""
    calls = [e for e in analysis.evaluation_order(function) if isinstance(e, Call)]
    return Counter(c.op.name for c in calls if isinstance(c.op, OpDef))


MAX_ELEMENTS = 4096


class Grower:
    """Grows a graph by operators that accept the existing values."""

    def __init__(self, seed: int) -> None:
        self.pick = random.Random(seed)
        self.numbers = np.random.default_rng(seed)
        self.inputs = [var("x", (1, 4, 6, 6)), var("y", (2, 6, 8)), var("z", (4, 12))]
        self.values: list[Expr] = list(self.inputs)

    def constant(self, *shape: int) -> Expr:
        return const(self.numbers.uniform(-1, 1, shape).astype("float32"))

    def positive(self, *shape: int) -> Expr:
        return const(self.numbers.uniform(0.5, 1.5, shape).astype("float32"))

    def like_part_of(self, x: Expr) -> Expr:
        """A constant that broadcasts to x without enlarging it."""
        shape = [int(d) if self.pick.random() < 0.6 else 1 for d in x.shape]
        return self.constant(*shape[self.pick.randrange(len(shape) + 1) :])

    def elementwise(self, x: Expr) -> Expr:
        f = self.pick.choice([nn.relu, op.tanh, op.sigmoid, lambda v: op.clip(v, -0.5, 0.75), op.negative, nn.gelu])
        return f(x)

    def with_constant(self, x: Expr) -> Expr:
        f = self.pick.choice([op.add, op.multiply, op.subtract, op.maximum])
        c = self.like_part_of(x) if self.pick.random() < 0.8 else const(self.pick.choice([0.0, 1.0, 2.0]))
        return f(x, c) if self.pick.random() < 0.7 or f is op.subtract else f(c, x)

    def with_other(self, x: Expr) -> Expr:
        same = [v for v in self.values if v.ty is x.ty]
        return self.pick.choice([op.add, op.multiply, op.maximum])(x, self.pick.choice(same))

    def view(self, x: Expr) -> Expr:
        shape = [int(d) for d in x.shape]
        for _ in range(self.pick.randrange(1, 3)):
            i = self.pick.randrange(len(shape))
            split = [d for d in range(1, shape[i] + 1) if shape[i] % d == 0]
            if len(shape) > 1 and (self.pick.random() < 0.5 or len(shape) >= 5):
                i = self.pick.randrange(len(shape) - 1)
                shape[i : i + 2] = [shape[i] * shape[i + 1]]
            else:
                d = self.pick.choice(split)
                shape[i : i + 1] = [d, shape[i] // d]
        return op.reshape(x, shape)

    def transposed(self, x: Expr) -> Expr:
        axes = list(range(len(x.shape)))
        self.pick.shuffle(axes)
        return op.transpose(x, axes)

    def cut(self, x: Expr) -> Expr:
        axis = self.pick.randrange(len(x.shape))
        size = int(x.shape[axis])
        if size % 2 == 0 and self.pick.random() < 0.5:
            return self.pick.choice(op.split(x, 2, axis))
        begin = self.pick.randrange(size)
        return op.strided_slice(x, (begin,), (self.pick.randrange(begin + 1, size + 1),), axes=(axis,))

    def concatenated(self, x: Expr) -> Expr:
        same = [v for v in self.values if v.ty is x.ty]
        return op.concatenate([x, self.pick.choice(same)], axis=self.pick.randrange(len(x.shape)))

    def padded(self, x: Expr) -> Expr:
        return nn.pad(x, [(self.pick.choice([0, 0, 1]), self.pick.choice([0, 0, 1])) for _ in x.shape])

    def reduced(self, x: Expr) -> Expr:
        axes = self.pick.sample(range(len(x.shape)), self.pick.randrange(1, len(x.shape) + 1))
        return self.pick.choice([op.mean, op.max, op.sum])(x, axis=tuple(axes), keepdims=self.pick.random() < 0.5)

    def normalised(self, x: Expr) -> Expr:
        size = int(x.shape[-1])
        if self.pick.random() < 0.5:
            return nn.softmax(x, axis=self.pick.randrange(len(x.shape)))
        return nn.layer_norm(x, self.positive(size), self.constant(size))

    def image(self, x: Expr) -> Expr:
        if len(x.shape) != 4 or min(int(d) for d in x.shape[2:]) < 3:
            return self.elementwise(x)
        channels = int(x.shape[1])
        choice = self.pick.randrange(4)
        if choice == 0:
            return nn.max_pool2d(x, 2, strides=self.pick.choice([1, 2]))
        if choice == 1:
            parameters = (self.positive(channels), self.constant(channels), self.constant(channels))
            return nn.batch_norm(x, *parameters, self.positive(channels))[0]
        kernel = self.pick.choice([1, 3])
        if choice == 2:
            return nn.conv2d(x, self.constant(channels, 1, kernel, kernel), groups=channels, padding=kernel // 2)
        return nn.conv2d(x, self.constant(self.pick.choice([4, 8]), channels, kernel, kernel), padding=kernel // 2)

    def layer(self, x: Expr) -> Expr:
        y = nn.dense(x, self.constant(self.pick.choice([4, 8, 12]), int(x.shape[-1])))
        return op.add(y, self.constant(int(y.shape[-1]))) if self.pick.random() < 0.5 else y

    def product(self, x: Expr) -> Expr:
        if len(x.shape) < 2:
            return self.elementwise(x)
        axes = (*range(len(x.shape) - 2), len(x.shape) - 1, len(x.shape) - 2)
        return nn.batch_matmul(x, op.transpose(x, axes), transpose_b=False)

    def step(self) -> None:
        x = self.pick.choice(self.values[-6:])
        if not x.shape:
            return
        steps: list[Callable[[Expr], Expr]] = [
            self.elementwise, self.with_constant, self.with_constant, self.with_other, self.view, self.transposed,
            self.cut, self.concatenated, self.padded, self.reduced, self.normalised, self.image, self.image, self.layer,
            self.product,
        ]  # fmt: skip
        made = self.pick.choice(steps)(x)
        if 0 < (made.tensor_type.size or 0) <= MAX_ELEMENTS:
            self.values.append(made)


def grow_graph(seed: int, steps: int, results: int) -> Function:
    """A random function of three inputs with the last `results` values as its result."""
    grower = Grower(seed)
    for _ in range(steps):
        grower.step()
    return Function(tuple(grower.inputs), Tuple(tuple(grower.values[-results:])))


@pytest.fixture
def random_graph() -> Callable[[int, int, int], Function]:
    """`random_graph(seed, steps, results)`: see `grow_graph`."""
    return grow_graph


@pytest.fixture
def transformed() -> Callable[..., Function]:
    """`transformed(function, *passes)`: see `apply_and_compare`."""
    return apply_and_compare


@pytest.fixture
def operators() -> Callable[[Function], Counter[str]]:
    """`operators(function)`: see `count_operators`."""
    return count_operators
