"""The graph IR: typed functional programs over operators, passes on them, and the build."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from relayc.relay import analysis as analysis, op as op, transform as transform
from relayc.relay.errors import (
    MalformedGraphError as MalformedGraphError,
    ParseError as ParseError,
    TypeInferenceError as TypeInferenceError,
    UnknownOperatorError as UnknownOperatorError,
)
from relayc.relay.expr import (
    Call as Call,
    Constant as Constant,
    Expr as Expr,
    Function as Function,
    GlobalVar as GlobalVar,
    If as If,
    Let as Let,
    Tuple as Tuple,
    TupleGetItem as TupleGetItem,
    Var as Var,
    const as const,
    var as var,
)
from relayc.relay.interpreter import create_executor as create_executor
from relayc.relay.lowering import bind_params_by_name as bind_params_by_name, build as build, optimize as optimize
from relayc.relay.op import *
from relayc.relay.op import nn as nn
from relayc.relay.parser import fromtext as fromtext, parse as parse
from relayc.relay.printer import astext as astext
from relayc.relay.sizes import unknown_size
from relayc.relay.type import (
    FuncType as FuncType,
    TensorType as TensorType,
    TupleType as TupleType,
    Type as Type,
    scalar_type as scalar_type,
)
from relayc.te.ir import IRModule as IRModule, Span as Span

Any = unknown_size
"""TVM's name for it"""

if TYPE_CHECKING:
    from relayc.relay.tuning import tune as tune


def __getattr__(name: str) -> object:
    """`tune`, imported on first use: a build does not need the tuner."""
    if name != "tune":
        raise AttributeError(f"module 'relayc.relay' has no attribute {name!r}")
    value = importlib.import_module("relayc.relay.tuning").tune
    globals()[name] = value
    return value
