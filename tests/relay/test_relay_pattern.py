"""The pattern language: matching, and rewriting by rules."""

from __future__ import annotations

import pytest

from relayc import relay
from relayc.relay import op
from relayc.relay.op import add, nn
from relayc.relay.op.nn.norm import LogSoftmax, Softmax
from relayc.relay.pattern import (
    Found,
    PatternRule,
    is_constant,
    is_expr,
    is_op,
    is_product,
    is_tuple,
    is_tuple_get_item,
    is_var,
    rewrite,
    wildcard,
)
from relayc.te.ir import first_difference
from relayc.te.ir.decisions import Refused, recording
from relayc.te.tir import SizeVar


def x4(name: str = "x") -> relay.Var:
    return relay.var(name, (4,))


def test_calls_match_with_their_arguments_in_either_order():
    x, c = wildcard(), is_constant()
    pattern = is_op("add")(is_op("nn.relu")(x), c)
    a = x4()
    one = relay.const([1.0])
    for call in (add(nn.relu(a), one), add(one, nn.relu(a))):
        found = pattern.match(call)
        assert found is not None and found[x] is a and found[c] is one
    assert pattern.match(add(nn.relu(a), a)) is None
    assert pattern.match(nn.relu(a)) is None


def test_a_pattern_met_twice_is_one_expression():
    x = wildcard()
    pattern = is_op("add")(x, x)
    a, b = x4(), x4("b")
    assert pattern.match(add(a, a)) is not None
    assert pattern.match(add(a, b)) is None


def test_alternatives_and_options():
    pattern = (is_op("add")(wildcard(), is_constant()) | is_var("x")).optional(is_op("nn.relu"))
    x = x4()
    for e in (x, nn.relu(x), add(x, relay.const([1.0])), nn.relu(add(x, relay.const([1.0])))):
        assert pattern.match(e) is not None
    assert pattern.match(x4("y")) is None
    assert pattern.match(nn.relu(nn.relu(x))) is None


def test_conditions_on_types_and_tuples():
    x = x4()
    assert wildcard().has_dtype("float32").has_shape((4,)).has_type(x.ty).match(x) is not None
    assert wildcard().has_shape((5,)).match(x) is None
    assert is_op("nn.relu").has_attr({"no_such": 1}).match(nn.relu(x)) is None
    pair = relay.Tuple((x, nn.relu(x)))
    assert is_tuple([is_expr(x), is_op("nn.relu")]).match(pair) is not None
    assert is_tuple_get_item(wildcard(), 1).match(relay.TupleGetItem(pair, 1)) is not None
    assert is_tuple_get_item(wildcard(), 0).match(relay.TupleGetItem(pair, 1)) is None


def test_an_unknown_operator_in_a_pattern_is_rejected():
    with pytest.raises(relay.UnknownOperatorError, match="unknown operator"):
        is_op("no.such.op")


class ReluOfRelu(PatternRule):
    x = wildcard()
    pattern = is_op("nn.relu")(is_op("nn.relu")(x))

    def replace(self, call: relay.Call, found: Found) -> relay.Expr:
        return nn.relu(found[self.x])


def test_rules_apply_until_none_fits_and_take_no_stack():
    x = x4()
    y: relay.Expr = x
    for _ in range(10_000):
        y = nn.relu(y)
    after = rewrite([ReluOfRelu()], relay.Function((x,), y))
    z = x4()
    assert first_difference(after, relay.Function((z,), nn.relu(z))) is None


def test_the_quick_check_never_rejects_a_match():
    """`may_match` may accept an expression that does not match, but never rejects one that does."""
    x, y, relu = x4(), x4("y"), nn.relu
    one = relay.const(1.0)
    summed = add(one, relu(x))
    a, b = wildcard(), is_constant()
    patterns = [
        is_op("add")(is_op("nn.relu")(a), b), is_op("add")(a, a), is_op("add", "subtract")(a, wildcard()),
        is_op("nn.relu")(a).optional(lambda inner: is_op("add")(inner, b)), is_tuple([a, wildcard()]),
        is_tuple_get_item(a), is_op("add").where(lambda e: True), is_var("x"), wildcard(),
    ]  # fmt: skip
    pair = relay.Tuple((summed, y))
    for e in (x, one, summed, add(x, x), add(x, y), relu(x), pair):
        for pattern in patterns:
            assert pattern.may_match(e) or next(iter(pattern.attempt(e, {})), None) is None
    assert not patterns[0].may_match(add(x, y))


class Swish(PatternRule):
    """x * sigmoid(beta * x)"""

    x, beta = wildcard(), is_constant(lambda c: c.data.size == 1, "a constant number")
    pattern = is_op("multiply")(x, is_op("sigmoid")(is_op("multiply")(x, beta)))

    def replace(self, call: relay.Call, found: Found) -> relay.Expr | Refused:
        return Refused("it is only a test")


def lines_of(body: relay.Expr) -> list[tuple[str, str]]:
    function = relay.Function([x4()], body)
    with recording() as decisions:
        assert rewrite([Swish()], function) is function
    return [(d.subject, reason) for d in decisions for _, reason in d.refused]


def test_a_near_miss_says_where_the_match_ends():
    x = x4()
    half = relay.const([0.5, 0.5, 0.5, 0.5])
    near = relay.multiply(x, relay.sigmoid(relay.multiply(x, half)))
    assert lines_of(near) == [("Swish", "multiply of sigmoid of multiply: expected a constant number, found constant")]
    far = relay.multiply(x, relay.sigmoid(x))
    assert lines_of(far) == []


def test_a_rule_that_refuses_what_its_pattern_matched_says_why():
    x = x4()
    body = relay.multiply(x, relay.sigmoid(relay.multiply(x, relay.const([0.5]))))
    assert lines_of(body) == [("Swish", "it is only a test")]


def test_a_rule_that_fires_is_recorded_with_its_node():
    x = x4()
    with recording() as decisions:
        rewrite([ReluOfRelu()], relay.Function([x], nn.relu(nn.relu(x))))
    (fired,) = decisions
    assert (fired.subject, fired.choice) == ("ReluOfRelu", "fired") and "nn.relu" in fired.facts["node"]


def test_operators_of_patterns_are_typed_by_class():
    x = x4()
    pattern = is_op(Softmax)(wildcard())
    found = pattern.match(nn.softmax(x, axis=0))
    assert found is not None and found.op(pattern).axis == 0
    either = is_op(Softmax, LogSoftmax)
    assert either.match(nn.log_softmax(x)) is not None and either.match(nn.relu(x)) is None


def test_products_match_in_any_order_of_their_factors():
    x, y, two = x4(), x4("y"), relay.const([2.0])
    a, b = wildcard(), is_op("nn.relu")
    pattern = is_product(is_constant(), b, a)
    relu = nn.relu(y)
    for product in ((two * relu) * x, (x * two) * relu, x * (relu * two), relu * (x * two)):
        found = pattern.match(product)
        assert found is not None and found[a] is x and found[b] is relu
    for other in (x * relu, (x * y) * relu, (two * relu) + x):
        assert pattern.match(other) is None
    assert is_product(a, a, a).match((x * x) * x) is not None and is_product(a, a, a).match((x * y) * x) is None
    whole = is_product(is_constant(), a).match((x * y) * two)
    assert whole is not None and isinstance(whole[a], relay.Call)


class OtherSizes(PatternRule):
    x = wildcard()
    pattern = is_op("nn.relu")(x)

    def replace(self, call: relay.Call, found: Found) -> relay.Expr:
        n, m = found[self.x].shape
        return op.reshape(nn.relu(op.reshape(found[self.x], (-1,))), (m, n) if isinstance(n, int) else (n * m // n, n))


def test_a_result_whose_sizes_are_not_known_to_be_the_same_is_refused():
    x = relay.var("x", (SizeVar("n"), SizeVar("m")))
    function = relay.Function([x], nn.relu(x))
    with recording() as decisions:
        assert rewrite([OtherSizes()], function) is function
    assert "not known to be" in decisions[0].refused[0][1]
    fixed = relay.var("x", (3, 4))
    with pytest.raises(AssertionError, match="changed the type"):
        rewrite([OtherSizes()], relay.Function([fixed], nn.relu(fixed)))
