"""The graph IR: typed functional programs over operators, passes on them, and the build."""

from relay import analysis, op, transform
from relay.build import bind_params_by_name, build, optimize
from relay.errors import MalformedGraphError, ParseError, TypeInferenceError, UnknownOperatorError
from relay.expr import Call, Constant, Expr, Function, GlobalVar, If, Let, Tuple, TupleGetItem, Var, const, var
from relay.interpreter import create_executor
from relay.op import nn
from relay.parser import fromtext, parse
from relay.printer import astext
from relay.type import FuncType, TensorType, TupleType, Type, scalar_type
from te.ir import IRModule, Span

__all__ = [
    "Call",
    "Constant",
    "Expr",
    "FuncType",
    "Function",
    "GlobalVar",
    "IRModule",
    "If",
    "Let",
    "MalformedGraphError",
    "ParseError",
    "Span",
    "TensorType",
    "Tuple",
    "TupleGetItem",
    "TupleType",
    "Type",
    "TypeInferenceError",
    "UnknownOperatorError",
    "Var",
    "analysis",
    "astext",
    "bind_params_by_name",
    "build",
    "const",
    "create_executor",
    "fromtext",
    "nn",
    "op",
    "optimize",
    "parse",
    "scalar_type",
    "transform",
    "var",
]
