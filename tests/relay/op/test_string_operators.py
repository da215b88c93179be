"""Operators on strings: encoded as integers in compiled code, run by the executor, and compared with the references."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from relayc import relay
from relayc.backend.runtime import ArgumentError, device, graph_executor
from relayc.backend.runtime.artifact import CompiledModel
from relayc.backend.runtime.errors import SizeMismatchError
from relayc.relay import op
from relayc.relay.expr import Constant, Expr, Function, Tuple
from relayc.relay.interpreter import evaluate
from relayc.relay.op import list_op_names, strings
from relayc.relay.op.host import OnHost
from relayc.relay.op.strings import Format, Normalize, Parse, Split, Tokenize
from relayc.relay.transform import EncodeStrings
from relayc.relay.type import TensorType
from relayc.te.errors import CompileError
from relayc.te.ir import IRModule, post_order
from relayc.te.tir import SizeVar

N = SizeVar("n")
X, Y = relay.var("x", (N,), "string"), relay.var("y", (N,), "string")
NUMBERS = relay.var("numbers", (N,), "float64")
NAMES = ("ox", "", "hen", "ox")


def result(*shape: Any) -> TensorType:
    return TensorType([SizeVar(f"#result{d}") if isinstance(d, str) else d for d in shape], "string")


def text(*values: str) -> Constant:
    return Constant(np.array(values, object))


CASES: dict[str, Expr] = {
    "concat": strings.concat(X, Y),
    "concat with a constant": strings.concat(text("a "), X),
    "full_match": strings.full_match(X, "[a-z]*"),
    "index": strings.index(X, NAMES),
    "index of new strings": strings.index(strings.concat(X, text("n")), NAMES),
    "rank": strings.rank(X),
    "split": Split(delimiter=" ", result=result(N, "a"))(X),
    "split at white space": Split(most=1, result=result(N, "b"))(X),
    "normalize": Normalize(case="UPPER", stop_words=("ox", "HEN"), result=result("c"))(X),
    "tokenize": Tokenize(token="[a-z]+", least=2, mark=True, fill="#", result=result(N, "d"))(X),
    "cut at separators": Tokenize(separators=(" ", "e"), fill="-", result=result(N, "e"))(X),
    "characters": Tokenize(separators=("",), result=result(N, "f"))(X),
    "parse": op.add(Parse(dtype="float64")(Format(digits=17)(NUMBERS)), NUMBERS),
    "format": Format(digits=3)(NUMBERS),
    "equal": op.equal(X, Y),
    "not_equal": op.not_equal(X, text("ox")),
    "moved": op.reverse(op.concatenate([op.where(op.equal(X, text("ox")), Y, text("?")), text("end")], axis=0), axis=0),
    "picked": op.take(text(*NAMES), strings.index(X, NAMES[:3]), axis=0),
    "a constant": op.take(text("one", "two"), relay.const(np.array([1, 1, 0])), axis=0),
}


def compiled(body: Expr) -> tuple[graph_executor.GraphModule, list[relay.Var]]:
    free = [v for v in (X, Y, NUMBERS) if v in list(post_order(body))]
    lib = relay.build(Function(tuple(free), body))
    again = CompiledModel.from_bytes(lib.to_bytes())
    return graph_executor.GraphModule(again["default"](device("cpu", 0))), free


WORDS = [["ox", "a hen", "hen", "ox  e"], [""], ["één", "ox", "ox", "Ab é ee ab", "n"], []]


@pytest.mark.parametrize("name", CASES)
def test_the_executor_agrees_with_the_reference(name):
    body = CASES[name]
    module, free = compiled(body)
    for words in WORDS:
        if not words and "#" in str(body.ty):
            continue  # the reference cannot infer a width from an empty tensor
        values = {"x": np.array(words, object), "y": np.array(words[::-1], object),
                  "numbers": np.linspace(-1, 1e20, len(words))}  # fmt: skip
        inputs = [values[v.name] for v in free]
        found, expected = module(*inputs), evaluate(Function(tuple(free), body), inputs)
        for a, b in zip(found, expected if isinstance(expected, tuple) else (expected,), strict=True):
            assert a.shape == b.shape and a.numpy().tolist() == b.tolist()
            assert a.dtype == ("string" if b.dtype == object else b.dtype)


def test_every_operator_on_strings_has_a_case():
    calls = [call for body in CASES.values() for call in post_order(body) if isinstance(call, relay.Call)]
    tested = {call.operator.name for call in calls}
    assert {name for name in list_op_names() if name.startswith("strings.")} - {"strings.on_host"} <= tested


def test_look_ups_and_data_movement_need_no_executor_step():
    for name in ("index", "equal", "moved", "picked"):
        body = CASES[name]
        free = [v for v in (X, Y) if v in list(post_order(body))]
        report = relay.build(Function(tuple(free), body)).build_report
        assert not [line for line in report.on_host if line.endswith("(strings)")], name


def test_encoded_functions_have_no_strings():
    body = Tuple((CASES["moved"], CASES["concat"], strings.index(X, NAMES)))
    module = EncodeStrings()(IRModule({"main": Function((X, Y), body)}))
    main = module["main"]
    assert all("string" not in str(e.ty) for e in post_order(main.body))
    assert main.attrs["texts"][0] == "" and set(NAMES) < set(main.attrs["texts"])
    assert (main.attrs["text_inputs"], main.attrs["text_outputs"]) == ((0, 1), (0, 1))
    kinds = [e.op for e in post_order(main.body) if isinstance(e, relay.Call)]
    assert sum(isinstance(kind, OnHost) for kind in kinds) == 1
    again = EncodeStrings()(module)
    assert again["main"] is main


def test_arithmetic_of_strings_is_rejected():
    with pytest.raises(CompileError, match="element type must be a float or int or uint; got string"):
        op.add(X, Y)
    with pytest.raises(CompileError, match=r"argsort.*computes with numbers, not with strings"):
        relay.build(Function((X,), op.argsort(X)))
    with pytest.raises(CompileError, match=r"\(C1\) input 0 must be strings"):
        strings.index(NUMBERS, NAMES)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.text(max_size=3), max_size=12), st.lists(st.text(max_size=3), max_size=12))
def test_runs_are_independent(first, second):
    module, _ = _ENCODER
    for words in (first, second, first):
        x = np.array(words, object)
        concatenated, place = module(x, x)
        assert concatenated.numpy().tolist() == [w + w for w in words]
        assert place.numpy().tolist() == [NAMES.index(w + w) if w + w in NAMES else 4 for w in words]
    assert len(module._inputs.strings.table) <= len(set(NAMES)) + 2 * len(set(first)) + 1


_ENCODER = compiled(Tuple((strings.concat(X, Y), strings.index(strings.concat(X, Y), NAMES))))


def test_strings_that_nothing_reads():
    x, y = relay.Var("x", relay.TensorType((2,), "string")), relay.Var("y", relay.TensorType((2,), "float32"))
    lib = relay.build(relay.Function((x, y), relay.nn.relu(y)), "llvm")
    model = graph_executor.GraphModule(lib["default"](device("cpu", 0)))
    assert model.get_input_info()[1] == {"x": "string", "y": "float32"}
    model.set_input(x=np.array(["a", "b"], object), y=np.array([-1, 2], np.float32))
    model.run()
    np.testing.assert_array_equal(model.get_output(0).numpy(), [0, 2])


def test_an_output_keeps_its_strings():
    module, _ = _ENCODER
    (before, _) = module(["a"], ["b"])
    module(["c"], ["d"])
    assert before.numpy().tolist() == ["ab"] and np.asarray(before).tolist() == ["ab"]
    assert repr(before) == "<StringArray [1]: ['ab']>" and len(before) == 1 and before.ndim == 1


def test_strings_that_are_no_numbers():
    module, _ = compiled(Parse(dtype="int64")(X))
    assert module([" -7 ", "+12"])[0].numpy().tolist() == [-7, 12]
    for wrong in ("1.5", "", "0x1", "1_0", "9" * 30):
        with pytest.raises(ArgumentError, match=r"strings\.parse"):
            module([wrong])


def test_inputs_that_are_no_strings():
    module, _ = _ENCODER
    for wrong, message in (
        ([None], "None is no string"),
        ([1.5], "1.5 is no string"),
        (np.array([1]), "int64 are no strings"),
        ([[1, 2], ["a", "b"]], "1 is no string"),
        ([["a"] * 1000, "b"], "is no string"),
        ([["a"]], r"^input 'x' of model 'default': got shape \(1, 1\), dtype string; expected shape \(n,\)"),
        (np.array([b"\xff"], object), "can't decode"),
    ):
        with pytest.raises(ArgumentError, match=message) as caught:
            module.set_input("x", wrong)
        assert len(str(caught.value)) < 200
        assert isinstance(caught.value, SizeMismatchError) == ("got shape" in message)
    with pytest.raises(ArgumentError, match="is of strings; use set_input"):
        module.set_input_zero_copy("x", np.zeros(1, np.int64))
    with pytest.raises(ArgumentError, match="is of strings, which has no buffer"):
        module.get_input("x")
    module.set_input(x=np.array([b"a"], object), y=np.array(["b"]))
    module.run()
    with pytest.raises(ArgumentError, match="is of strings, no out="):
        module.get_output(0, out=np.zeros(1, np.int64))
    assert module.get_output(0).numpy().tolist() == ["ab"]
    assert module.get_input_info()[1] == {"x": "string", "y": "string"} and "x: string[n]" in repr(module)


def test_variants_for_certain_sizes_have_tables_of_their_own():
    body = Tuple((strings.concat(X, Y), op.take(text("p", "q"), strings.index(X, ("p",)), axis=0)))
    lib = relay.build(Function((X, Y), body), specialize={"n": [2]})
    module = graph_executor.GraphModule(CompiledModel.from_bytes(lib.to_bytes())["default"](device("cpu", 0)))
    for words in (["p", "r"], ["p"], ["s", "p"]):
        both, named = module(words, words)
        assert both.numpy().tolist() == [w + w for w in words]
        assert named.numpy().tolist() == ["p" if w == "p" else "q" for w in words]
