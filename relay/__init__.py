"""The graph IR: typed functional programs over operators, passes on them, and the build."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from relayc.relay import analysis, op, transform
from relayc.relay.errors import MalformedGraphError, ParseError, TypeInferenceError, UnknownOperatorError
from relayc.relay.expr import Call, Constant, Expr, Function, GlobalVar, If, Let, Tuple, TupleGetItem, Var, const, var
from relayc.relay.interpreter import create_executor
from relayc.relay.lowering import bind_params_by_name, build, optimize
from relayc.relay.op import (
    abs,
    acos,
    acosh,
    add,
    all,
    any,
    arange,
    argmax,
    argmin,
    argsort,
    asin,
    asinh,
    atan,
    atanh,
    bitwise_and,
    bitwise_not,
    bitwise_or,
    bitwise_xor,
    broadcast_to,
    cast,
    ceil,
    clip,
    concatenate,
    copy,
    cos,
    cosh,
    cumprod,
    cumsum,
    divide,
    equal,
    erf,
    exp,
    expand_dims,
    floor,
    floor_divide,
    floor_mod,
    full,
    full_like,
    gather,
    gather_nd,
    greater,
    greater_equal,
    isfinite,
    isinf,
    isnan,
    layout_transform,
    left_shift,
    less,
    less_equal,
    log,
    log1p,
    log2,
    log10,
    log_sum_exp,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
    max,
    maximum,
    mean,
    min,
    minimum,
    multiply,
    negative,
    nn,
    not_equal,
    one_hot,
    ones,
    ones_like,
    power,
    prod,
    reinterpret,
    repeat,
    reshape,
    reverse,
    reverse_sequence,
    right_shift,
    roll,
    round,
    rsqrt,
    scatter_elements,
    scatter_nd,
    searchsorted,
    sigmoid,
    sign,
    sin,
    sinh,
    sort,
    split,
    sqrt,
    squeeze,
    stack,
    strided_slice,
    subtract,
    sum,
    take,
    tan,
    tanh,
    tile,
    topk,
    transpose,
    trilu,
    trunc,
    trunc_divide,
    trunc_mod,
    variance,
    where,
    zeros,
    zeros_like,
)
from relayc.relay.parser import fromtext, parse
from relayc.relay.printer import astext
from relayc.relay.type import FuncType, TensorType, TupleType, Type, scalar_type
from relayc.te.ir import IRModule, Span

if TYPE_CHECKING:
    from relayc.relay.tuning import tune

__all__ = [
    "Call", "Constant", "Expr", "FuncType", "Function", "GlobalVar", "IRModule", "If", "Let", "MalformedGraphError",
    "ParseError", "Span", "TensorType", "Tuple", "TupleGetItem", "TupleType", "Type", "TypeInferenceError",
    "UnknownOperatorError", "Var", "abs", "acos", "acosh", "add", "all", "analysis", "any", "arange", "argmax",
    "argmin", "argsort", "asin", "asinh", "astext", "atan", "atanh", "bind_params_by_name", "bitwise_and",
    "bitwise_not", "bitwise_or", "bitwise_xor", "broadcast_to", "build", "cast", "ceil", "clip", "concatenate",
    "const", "copy", "cos", "cosh", "create_executor", "cumprod", "cumsum", "divide", "equal", "erf", "exp",
    "expand_dims", "floor", "floor_divide", "floor_mod", "fromtext", "full", "full_like", "gather", "gather_nd",
    "greater", "greater_equal", "isfinite", "isinf", "isnan", "layout_transform", "left_shift", "less", "less_equal",
    "log", "log1p", "log2", "log10", "log_sum_exp", "logical_and", "logical_not", "logical_or", "logical_xor", "max",
    "maximum", "mean", "min", "minimum", "multiply", "negative", "nn", "not_equal", "one_hot", "ones", "ones_like",
    "op", "optimize", "parse", "power", "prod", "reinterpret", "repeat", "reshape", "reverse", "reverse_sequence",
    "right_shift", "roll", "round", "rsqrt", "scalar_type", "scatter_elements", "scatter_nd", "searchsorted", "sigmoid",
    "sign", "sin", "sinh", "sort", "split", "sqrt", "squeeze", "stack", "strided_slice", "subtract", "sum", "take",
    "tan", "tanh", "tile", "topk", "transform", "transpose", "trilu", "trunc", "trunc_divide", "trunc_mod", "tune",
    "var", "variance", "where", "zeros", "zeros_like",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """`tune`, imported on first use: a build does not need the tuner."""
    if name != "tune":
        raise AttributeError(f"module 'relayc.relay' has no attribute {name!r}")
    value = importlib.import_module("relayc.relay.tuning").tune
    globals()[name] = value
    return value
