"""The parser reads the printer's text, and reports the position of errors."""

from __future__ import annotations

import numpy as np
import pytest

from relayc import relay
from relayc.te import tir
from relayc.te.ir import first_difference


def round_trip(module: relay.IRModule) -> None:
    again = relay.parse(relay.astext(module))
    assert first_difference(module, again) is None
    assert relay.astext(again) == relay.astext(module)


def test_scopes_lets_functions_tuples_and_constants():
    n = tir.Var("n")
    x, flag = relay.var("x", (n, 3)), relay.var("flag", (), "bool")
    a = relay.op.add(x, relay.const([1.0, float("nan"), float("-inf")]))
    b = relay.nn.relu(a)
    p = relay.var("p", (n, 3))
    group = relay.Function((p,), relay.nn.relu(p), {"primitive": True, "name": 'a "b"'})
    chosen = relay.If(flag, relay.nn.relu(relay.nn.relu(a)), b)
    v, w = relay.var("v", (n, 3)), relay.var("v", (n, 3))
    named = relay.Let(v, group(chosen), relay.op.add(v, b))
    rng = np.random.default_rng(0)
    pair = relay.Tuple((named, relay.Constant(rng.standard_normal((3, 3)).astype("float16"))))
    body = relay.Let(w, relay.TupleGetItem(pair, 0), relay.Tuple((w, relay.TupleGetItem(pair, 1), relay.const(3))))
    round_trip(relay.IRModule({"main": relay.Function((x, flag), body)}))


def test_functions_that_call_each_other():
    x, flag = relay.var("x", (4,)), relay.var("flag", (), "bool")
    g = relay.GlobalVar("loop", relay.FuncType([x.ty, flag.ty], x.ty))
    loop = relay.Function((x, flag), relay.If(flag, relay.Call(g, (relay.nn.relu(x), flag)), x))
    y, h = relay.var("y", (4,)), relay.var("h", (), "bool")
    round_trip(relay.IRModule({"main": relay.Function((y, h), relay.Call(g, (y, h))), "loop": loop}))


def test_element_types_of_constants():
    fields = [relay.Constant(np.arange(12).reshape(3, 4).astype(relay.expr.numpy_dtype(d)))
              for d in ("float64", "bfloat16", "float8_e4m3fn", "int4", "uint8", "bool", "int64")]  # fmt: skip
    fields += [relay.const(2, "bfloat16"), relay.const([True, False]), relay.Constant(np.array(["a", "b"], object))]
    round_trip(relay.IRModule({"main": relay.Function((), relay.Tuple(tuple(fields)))}))


def test_a_deep_chain():
    x = relay.var("x", (4,))
    y: relay.Expr = x
    for _ in range(10_000):
        y = relay.nn.relu(y)
    module = relay.IRModule({"main": relay.Function((x,), y)})
    assert first_difference(relay.parse(str(module)), module) is None


def test_a_lone_function_becomes_main():
    module = relay.parse("fn (%x: Tensor[(4,), float32]) -> Tensor[(4,), float32] { %0 = nn.relu(%x); %0 }")
    assert relay.analysis.list_op_freqs(module) == {"nn.relu": 1}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def @main(%x: Tensor[(4,), float32]) -> bool {\n  %y\n}", r"line 2, column 3: %y is not defined here"),
        ("def @main(%x: Tensor[(4,), float32]) -> bool { %x }", r"declared to give bool but gives Tensor\[\(4,\)"),
        ("def @main(%x: Tensor[(4,), floot32]) -> bool { %x }", r"column 28: unknown dtype 'floot32'"),
        ("def @main() -> bool { meta[0] }", r"meta\[0\] is not in the metadata section"),
        ("def @main() -> bool { bool(1 }", r"expected '\)', found '}'|not closed"),
        ("def @main() -> bool { @f }", r"there is no function @f; defined are: main"),
        ("#[metadata]\n" + "[" * 100_000, "the metadata section is damaged"),
        ("define", r"line 1, column 1: expected 'def'"),
        ("def @main(%x: int32) -> int32 { %0 = nn.relu(%x, alpha=3); %0 }", r"nn\.relu: .*alpha"),
        ("def @main(%x: int32) -> int32 { nn.reluu(%x) }", r"column 33: unknown operator 'nn\.reluu'; close are"),
        ("def @main(%x: int32) -> int32 { " + "nn.relu(" * 5000 + "%x" + ")" * 5000 + " }", "nested in more than"),
        ("def @main(%x: int32) -> int32 { " + "%a = { " * 5000 + "%x" + " }; %a" * 5000 + " }", "nested in more than"),
    ],
)
def test_wrong_text_is_rejected_with_its_position(text: str, message: str):
    with pytest.raises(relay.ParseError, match=message):
        relay.parse(text)


def test_operators_may_be_nested():
    signature = "fn (%x: Tensor[(4,), float32]) -> Tensor[(4,), float32]"
    nested = signature + "{ nn.relu(add(nn.softmax(%x, axis=0), float32(1))) }"
    named = signature + """{
        %0 = nn.softmax(%x, axis=0);
        %1 = add(%0, float32(1));
        %2 = nn.relu(%1);
        %2
    }"""
    assert first_difference(relay.parse(nested), relay.parse(named)) is None


def test_an_ill_typed_text_is_rejected():
    with pytest.raises(relay.TypeInferenceError, match="do not broadcast"):
        relay.parse("fn (%x: Tensor[(4,), float32], %y: Tensor[(3,), float32]) -> bool { %0 = add(%x, %y); %0 }")
