"""Queries on the operations of a group."""

from __future__ import annotations

from relayc import te
from relayc.te.ir import post_order
from relayc.te.tir import ProducerLoad
from relayc.topi.groups import inlined
from relayc.topi.tag import INJECTIVE


def test_formulas_that_fork_and_join_are_inlined_without_copies():
    """An element read in two places is one expression: at its own index, and in a transposition."""
    a = te.placeholder((4, 4), name="a")
    b = a
    for _ in range(24):
        b = te.compute((4, 4), lambda i, j, b=b: b[i, j] * b[i, j] + b[j, i], tag=INJECTIVE)
    nodes = list(post_order(inlined(b.op.body[0])))
    loads = [n for n in nodes if isinstance(n, ProducerLoad)]
    assert {load.producer for load in loads} == {a} and len(loads) < 10
    assert len(nodes) < 24 * 12


def test_an_operation_to_keep_is_read():
    a = te.placeholder((4,), name="a")
    b = te.compute((4,), lambda i: a[i] + 1.0, tag=INJECTIVE)
    c = te.compute((4,), lambda i: b[3 - i] * 2.0, tag=INJECTIVE)
    (load,) = [n for n in post_order(inlined(c.op.body[0], keep=b.op)) if isinstance(n, ProducerLoad)]
    assert load.producer is b
    (load,) = [n for n in post_order(inlined(c.op.body[0])) if isinstance(n, ProducerLoad)]
    assert load.producer is a
