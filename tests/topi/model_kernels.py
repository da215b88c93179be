"""Layers of models as kernels to lower, by shape, without values."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from relayc import relay
from relayc.backend.target import Target
from relayc.relay.lowering.graph import make_graph
from relayc.relay.lowering.lower import Workload
from relayc.relay.op.base import make_call
from relayc.te.ir import IRModule

__all__ = ["attentions", "bert_base", "convolution", "dense", "mobilenet_v2", "resnet50", "workloads"]


def weight(*shape: int) -> relay.Constant:
    return relay.const(np.zeros(shape, np.float32))


def convolution(size: int, channels: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> relay.Expr:
    x = relay.var("x", (1, channels, size, size))
    w = weight(outputs, channels // groups, kernel, kernel)
    pad = (kernel // 2,) * 4
    return relay.nn.relu(relay.nn.conv2d(x, w, strides=(stride, stride), padding=pad, groups=groups))


def dense(rows: int, units: int, depth: int) -> relay.Expr:
    return relay.nn.relu(relay.nn.dense(relay.var("x", (rows, depth)), weight(units, depth)))


def resnet50() -> Iterator[relay.Expr]:
    yield convolution(224, 3, 64, 7, 2)
    for size, width in ((56, 64), (28, 128), (14, 256), (7, 512)):
        yield convolution(size, width, width, 3)
        yield convolution(size, width, 4 * width, 1)
        yield convolution(size, 4 * width, width, 1)
    yield dense(1, 1000, 2048)


def mobilenet_v2() -> Iterator[relay.Expr]:
    yield convolution(224, 3, 32, 3, 2)
    for size, width in ((112, 32), (56, 144), (28, 192), (14, 384), (7, 960)):
        yield convolution(size, width, width, 3, groups=width)
        yield convolution(size, width, width // 6 // 8 * 8 + 8, 1)
    yield dense(1, 1001, 1280)


def bert_base() -> Iterator[relay.Expr]:
    for units, depth in ((768, 768), (3072, 768), (768, 3072)):
        yield dense(128, units, depth)
    yield relay.nn.softmax(relay.var("x", (1, 12, 128, 128)))
    a, b = relay.var("a", (12, 128, 64)), relay.var("b", (12, 128, 64))
    yield relay.nn.batch_matmul(a, b)


def attention(length: int, keys: int, heads: int, depth: int) -> relay.Expr:
    """Attention between transposes of projections' results."""
    shapes = [(1, size, heads, depth) for size in (length, keys, keys)]
    operands = [relay.op.transpose(relay.var(n, shape), (0, 2, 1, 3)) for n, shape in zip("qkv", shapes, strict=True)]
    return relay.op.transpose(make_call("nn.attention", operands, None, scale=0.125), (0, 2, 1, 3))


def attentions() -> Iterator[relay.Expr]:
    """The attention kernels of bert_base, vit_b16, gpt2 and segformer_b0."""
    for length in (128, 197, 64):
        yield attention(length, length, 12, 64)
    for length, heads in ((16384, 1), (4096, 2), (1024, 5), (256, 8)):
        yield attention(length, 256, heads, 32)


def workloads(model: Iterator[relay.Expr], target: Target) -> Iterator[Workload]:
    for body in model:
        function = relay.Function(tuple(relay.analysis.free_vars(body)), body)
        for node in make_graph(relay.optimize(IRModule({"main": function}), target)["main"]).nodes:
            yield node.workload
