"""The text form of graphs."""

from __future__ import annotations

import numpy as np

from relayc import relay
from relayc.te import tir


def example() -> relay.IRModule:
    n = tir.Var("n")
    x, flag = relay.var("x", (n, 3)), relay.var("flag", (), "bool")
    a = relay.op.add(x, relay.const([1.0, 2.0, 3.0]))
    b = relay.nn.relu(a)
    p = relay.var("p", (n, 3))
    group = relay.Function((p,), relay.nn.relu(p), {"primitive": True})
    chosen = relay.If(flag, relay.nn.relu(relay.nn.relu(a)), b)
    v = relay.var("v", (n, 3))
    named = relay.Let(v, group(chosen), relay.op.add(v, b))
    big = relay.const(np.zeros((3, 3), "float32"))
    pair = relay.Tuple((named, big))
    return relay.IRModule({"main": relay.Function((x, flag), relay.Tuple((relay.TupleGetItem(pair, 0), b)))})


EXPECTED = """\
def @main(%x: Tensor[(n, 3), float32], %flag: bool) -> (Tensor[(n, 3), float32], Tensor[(n, 3), float32]) {
  %1 = fn (%p: Tensor[(n, 3), float32]) -> Tensor[(n, 3), float32] [primitive=True] {
    %0 = nn.relu(%p);
    %0
  };
  %2 = add(%x, float32([1.0, 2.0, 3.0]));
  %3 = nn.relu(%2);
  %6 = if (%flag) {
    %4 = nn.relu(%2);
    %5 = nn.relu(%4);
    %5
  } else {
    %3
  };
  %7 = %1(%6);
  %9 = {
    let %v = %7;
    %8 = add(%v, %3);
    %8
  };
  %10 = (%9, meta[0]);
  %11 = (%10.0, %3);
  %11
}
"""


def test_text_with_scopes_lets_functions_and_constants():
    assert relay.astext(example(), show_meta_data=False, annotate=lambda e: "") == EXPECTED


def test_types_are_the_default_comments():
    x = relay.var("x", (4,))
    assert "%0 = nn.relu(%x) /* ty=Tensor[(4,), float32] */;" in str(relay.Function((x,), relay.nn.relu(x)))


def test_names_are_legal_and_distinct():
    x, y = relay.var("input.1", (4,)), relay.var("input:1", (4,))
    assert str(relay.Function((x, y), relay.op.add(x, y))).startswith("fn (%input_1: Tensor[(4,), float32], %input_1_1")


def test_a_deep_chain_prints():
    x = relay.var("x", (4,))
    y: relay.Expr = x
    for _ in range(10_000):
        y = relay.nn.relu(y)
    assert "%9999 = nn.relu(%9998)" in str(relay.Function((x,), y))
