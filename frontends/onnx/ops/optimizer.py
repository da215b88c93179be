"""Optimizers of ai.onnx.preview.training: one update of several tensors.

Inputs: the learning rate, the number of steps taken, then all parameters, all gradients, and one group of as many
tensors for each kind of state. Outputs: new parameters, then the new state, group by group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from relayc.frontends.onnx.node import OnnxNode
from relayc.frontends.onnx.ops.common import reshape_to
from relayc.frontends.onnx.registry import converter
from relayc.relay import op
from relayc.relay.expr import Constant, Expr

DOMAIN = "ai.onnx.preview.training"

Step = Callable[..., Sequence[Expr]]
"""A function from a parameter, its gradient and its states to the new parameter and states."""


def _number(value: float, like: Expr) -> Expr:
    return Constant(np.array(value, str(like.dtype)))


def _scaled(value: float, x: Expr) -> Expr:
    return op.multiply(_number(value, x), x)


def _each(node: OnnxNode, states: int, step: Step) -> list[Expr]:
    """`step` applied to every parameter."""
    groups = 2 + states
    count = (len(node) - 2) // groups
    if count < 1 or len(node) != 2 + groups * count:
        raise node.error(f"{len(node)} inputs", expected=f"2, and {groups} for each parameter")
    results = [step(*[node[2 + group * count + i] for group in range(groups)]) for i in range(count)]
    return [result[group] for group in range(1 + states) for result in results]


def _regularized(node: OnnxNode, x: Expr, gradient: Expr) -> Expr:
    return op.add(_scaled(node.attr_float("norm_coefficient", 0.0), x), gradient)


def _rate(node: OnnxNode) -> tuple[Expr, Expr]:
    """The learning rate and the number of steps, a float, as scalars."""
    rate = reshape_to(node[0], ())
    return rate, op.cast(reshape_to(node[1], ()), str(rate.dtype))


@converter("Adagrad", domain=DOMAIN)
def adagrad(node: OnnxNode) -> list[Expr]:
    """Adagrad (Duchi et al., 2011). State: the sum of squared gradients."""
    rate, steps = _rate(node)
    rate = op.divide(rate, op.add(_number(1.0, rate), _scaled(node.attr_float("decay_factor", 0.0), steps)))
    epsilon = node.attr_float("epsilon", 1e-6)

    def step(x: Expr, gradient: Expr, squares: Expr) -> Sequence[Expr]:
        slope = _regularized(node, x, gradient)
        squares = op.add(squares, op.multiply(slope, slope))
        scale = op.add(op.sqrt(squares), _number(epsilon, x))
        return op.subtract(x, op.divide(op.multiply(op.cast(rate, str(x.dtype)), slope), scale)), squares

    return _each(node, 1, step)


@converter("Adam", domain=DOMAIN)
def adam(node: OnnxNode) -> list[Expr]:
    """Adam (Kingma and Ba, 2015). States: the running means of gradients and of their squares."""
    alpha, beta = node.attr_float("alpha", 0.9), node.attr_float("beta", 0.999)
    epsilon, after = node.attr_float("epsilon", 1e-6), node.attr_float("norm_coefficient_post", 0.0)
    rate, steps = _rate(node)
    one = _number(1.0, rate)
    grown = [op.subtract(one, op.power(_number(decay, rate), steps)) for decay in (beta, alpha)]
    corrected = op.divide(op.multiply(rate, op.sqrt(grown[0])), grown[1])
    rate = op.where(op.greater(steps, _number(0.0, rate)), corrected, rate)

    def step(x: Expr, gradient: Expr, mean: Expr, squares: Expr) -> Sequence[Expr]:
        slope = _regularized(node, x, gradient)
        mean = op.add(_scaled(alpha, mean), _scaled(1 - alpha, slope))
        squares = op.add(_scaled(beta, squares), _scaled(1 - beta, op.multiply(slope, slope)))
        change = op.divide(mean, op.add(op.sqrt(squares), _number(epsilon, x)))
        moved = op.subtract(x, op.multiply(op.cast(rate, str(x.dtype)), change))
        return _scaled(1 - after, moved) if after else moved, mean, squares

    return _each(node, 2, step)


@converter("Momentum", domain=DOMAIN)
def momentum(node: OnnxNode) -> list[Expr]:
    """Momentum, optionally Nesterov's (Sutskever et al., 2013). State: the velocity."""
    alpha, beta = node.attr_float("alpha"), node.attr_float("beta")
    nesterov = node.attr_choice("mode", ("standard", "nesterov"), "standard") == "nesterov"
    rate, steps = _rate(node)
    first = op.greater(steps, _number(0.0, steps))

    def step(x: Expr, gradient: Expr, velocity: Expr) -> Sequence[Expr]:
        slope = _regularized(node, x, gradient)
        weight = op.where(first, _number(beta, x), _number(1.0, x))
        velocity = op.add(_scaled(alpha, velocity), op.multiply(weight, slope))
        change = op.add(slope, _scaled(alpha, velocity)) if nesterov else velocity
        return op.subtract(x, op.multiply(op.cast(rate, str(x.dtype)), change)), velocity

    return _each(node, 1, step)
