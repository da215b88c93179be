"""What `benchmarks.manifest` compiles: the kernels and the models of the benchmark programs, nothing of which is run.

A program is a list of cases, which are known by their places in it: a case of a model that is not in the zoo folder
keeps its place. Bytes and blocks of 4 bits come as ONNX models of one product or convolution.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnx.parser
from onnx import numpy_helper

from benchmarks import bandwidth, dynamic, transpositions
from benchmarks.convolutions import LAYERS, Layer, convolution
from benchmarks.kernels import SHAPES, product
from benchmarks.models import ZOO_MODELS, all_models, locate
from relayc import relay
from relayc.frontends.onnx import from_onnx
from relayc.te.ir import IRModule

__all__ = ["PROGRAMS", "Case"]

Model = IRModule | relay.Function
_HALF_SHAPES = ((1, 4096, 4096), (8, 3072, 768), *SHAPES)
_BYTE_SHAPES = ((1, 4096, 4096), (128, 768, 3072), (784, 512, 128))
_BYTE_LAYERS = tuple([LAYERS[i] for i in (0, 1, 3, 4, 13, 19)])
_HALF_MODELS = (("light_resnet50", "float16"), ("light_squeezenet", "bfloat16"), ("bert_base", "bfloat16"),
                ("gpt2", "float16"))  # fmt: skip
_ANY_BATCH = ("light_squeezenet", "light_densenet121")
_SYMBOL, _BLOCK = "n", 32
"""The name of a dynamic dimension; weights that share a scale."""


class Case(NamedTuple):
    """A model or kernel: a name for readers, how it is made, and options of the `PassContext`."""

    name: str
    make: Callable[[], Model]
    options: Mapping[str, Any] = {}


Program = Callable[[Path | None], Iterator[Case | None]]
"""The cases of a program, in an order that stays, from the zoo folder; None for one whose model is missing."""


def _memory_bound(program: Callable[[int], Iterator[bandwidth.Case]], megabytes: int, _: Path | None) -> Iterator[Case]:
    for case in program(megabytes * 1_000_000):
        yield Case(case.name, lambda case=case: case.function)


def _products(_: Path | None) -> Iterator[Case]:
    for shape in SHAPES:
        yield Case(_shape_text(shape), lambda shape=shape: product(*shape)[0])
    for dtype in ("float16", "bfloat16"):
        for shape in _HALF_SHAPES:
            yield Case(f"{_shape_text(shape)}, {dtype}", lambda shape=shape, dtype=dtype: product(*shape, dtype)[0])


def _shape_text(shape: tuple[int, ...]) -> str:
    return " x ".join([str(size) for size in shape])


def _convolutions(_: Path | None) -> Iterator[Case]:
    for layer in LAYERS:
        for winograd in ("off", "auto"):
            make = lambda layer=layer: convolution(layer)[0]  # noqa: E731
            yield Case(f"{layer}, winograd {winograd}", make, {"relay.winograd": winograd})


# -- bytes and blocks of 4 bits


def _quantised(_: Path | None) -> Iterator[Case]:
    for m, n, k in _BYTE_SHAPES:
        text = _shape_text((m, n, k))
        for kind in (np.uint8, np.int8):
            yield Case(f"QLinearMatMul {text}, {kind.__name__}", partial(_linear_product, m, n, k, kind))
        yield Case(f"MatMulInteger {text}", partial(_dynamic_product, m, n, k))
        yield Case(f"MatMulNBits {text}", partial(_blocked_product, m, n, k))
    for layer in _BYTE_LAYERS:
        yield Case(f"QLinearConv {layer}", partial(_linear_convolution, layer))


def _onnx(body: str, x: str, y: str, weights: Mapping[str, Any]) -> IRModule:
    """A model by its nodes in ONNX's text form, with input "x" and output "y" of the given types."""
    head = '<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>'
    model = onnx.parser.parse_model(f"{head} main ({x} x) => ({y} y) {{ {body} }}")
    model.graph.initializer.extend([numpy_helper.from_array(np.asarray(v), name) for name, v in weights.items()])
    return from_onnx(model)[0]


def _random_bytes(kind: Any, *shape: int) -> Any:
    limits = np.iinfo(kind)
    return np.random.default_rng(0).integers(limits.min, limits.max, shape, kind, endpoint=True)


def _linear_parameters(kind: Any, columns: int) -> dict[str, Any]:
    """Scales and zero points of data, of the weights' columns and of results."""
    return {
        "x_scale": np.float32(0.02), "x_zero": kind(3), "w_scale": np.linspace(0.01, 0.02, columns, dtype=np.float32),
        "w_zero": np.zeros(columns, np.int8), "y_scale": np.float32(0.05), "y_zero": kind(5),
    }  # fmt: skip


def _linear_product(m: int, n: int, k: int, kind: Any) -> IRModule:
    body = "y = QLinearMatMul(x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero)"
    weights = {"w": _random_bytes(np.int8, k, n), **_linear_parameters(kind, n)}
    return _onnx(body, f"{kind.__name__}[{m}, {k}]", f"{kind.__name__}[{m}, {n}]", weights)


def _dynamic_product(m: int, n: int, k: int) -> IRModule:
    """A product whose data are quantised by their own extrema."""
    body = """
        codes, x_scale, x_zero = DynamicQuantizeLinear(x)
        sums = MatMulInteger(codes, w, x_zero)
        floats = Cast<to = 1>(sums)
        scale = Mul(x_scale, w_scale)
        y = Mul(floats, scale)
    """
    weights = {"w": _random_bytes(np.int8, k, n), "w_scale": np.linspace(0.01, 0.02, n, dtype=np.float32)}
    return _onnx(body, f"float[{m}, {k}]", f"float[{m}, {n}]", weights)


def _blocked_product(m: int, n: int, k: int) -> IRModule:
    """A product by weights of 4 bits in blocks of 32, each with a scale."""
    body = f"y = com.microsoft.MatMulNBits <K = {k}, N = {n}, bits = 4, block_size = {_BLOCK}> (x, w, w_scale)"
    scales = np.random.default_rng(1).uniform(0.01, 0.02, n * k // _BLOCK).astype(np.float32)
    weights = {"w": _random_bytes(np.uint8, n, k // _BLOCK, _BLOCK // 2), "w_scale": scales}
    return _onnx(body, f"float[{m}, {k}]", f"float[{m}, {n}]", weights)


def _linear_convolution(layer: Layer) -> IRModule:
    pad = layer.kernel // 2
    attributes = f"pads = [{pad}, {pad}, {pad}, {pad}], strides = [{layer.stride}, {layer.stride}]"
    body = f"""
        y = QLinearConv <{attributes}, group = {layer.groups}> (
            x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero)
    """
    shape = (layer.outputs, layer.inputs // layer.groups, layer.kernel, layer.kernel)
    weights = {"w": _random_bytes(np.int8, *shape), **_linear_parameters(np.uint8, layer.outputs)}
    side = -(-layer.size // layer.stride)
    x = f"uint8[1, {layer.inputs}, {layer.size}, {layer.size}]"
    return _onnx(body, x, f"uint8[1, {layer.outputs}, {side}, {side}]", weights)


# -- models


def _models(zoo: Path | None) -> Iterator[Case | None]:
    for name in all_models():
        yield _model_case(name, zoo, {})


def _half_models(zoo: Path | None) -> Iterator[Case | None]:
    for name, dtype in _HALF_MODELS:
        yield _model_case(name, zoo, {"relay.ToMixedPrecision.dtype": dtype}, f", {dtype}")


def _model_case(name: str, zoo: Path | None, options: Mapping[str, Any], suffix: str = "") -> Case | None:
    return Case(name + suffix, partial(_imported, name, zoo), options) if _is_there(name, zoo) else None


def _is_there(name: str, zoo: Path | None) -> bool:
    return name not in ZOO_MODELS or (zoo is not None and (zoo / f"{name}.onnx").exists())


def _imported(name: str, zoo: Path | None, axis: int | None = None) -> IRModule:
    """A model of the list or of the zoo, for its own inputs; `axis`: for any size of theirs along that axis."""
    with tempfile.TemporaryDirectory() as scratch:
        found = locate(name, 1, zoo, Path(scratch))
        assert found is not None, name
        shapes = {key: _open_axis(x.shape, axis) for key, x in dict(np.load(found[1])).items()}
        return from_onnx(found[0], shape=shapes)[0]


def _open_axis(shape: tuple[int, ...], axis: int | None) -> tuple[int | str, ...]:
    return tuple([_SYMBOL if i == axis else n for i, n in enumerate(shape)])


def _dynamic_models(zoo: Path | None) -> Iterator[Case | None]:
    """Models with a dynamic batch, and those that `benchmarks.dynamic` makes symbolic."""
    for name in _ANY_BATCH:
        yield Case(f"{name}, batch", partial(_imported, name, None, 0))
    for case in dynamic.CASES:
        there = _is_there(case.model, zoo)
        yield Case(f"{case.model}, {case.name}", partial(_symbolic, case, zoo)) if there else None


def _symbolic(case: dynamic.Case, zoo: Path) -> IRModule:
    path = zoo / f"{case.model}.onnx"
    model, feeds = onnx.load(path), dict(np.load(path.with_suffix(".npz")))
    model, shapes = dynamic.with_symbols(model, case, {value.name: feeds[value.name] for value in model.graph.input})
    return from_onnx(model, shape=shapes)[0]


PROGRAMS: dict[str, Program] = {
    "models": _models,
    "models, mixed precision": _half_models,
    "models, dynamic shapes": _dynamic_models,
    "bandwidth, 128 MB": partial(_memory_bound, bandwidth.cases, 128),
    "bandwidth, 8 MB": partial(_memory_bound, bandwidth.cases, 8),
    "transpositions, 128 MB": partial(_memory_bound, transpositions.cases, 128),
    "kernels": _products,
    "convolutions": _convolutions,
    "quantised": _quantised,
}
"""Programs by name, those whose cases take longest first."""
