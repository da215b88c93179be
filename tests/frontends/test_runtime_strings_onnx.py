"""String inputs, from ONNX to results: compiled once, for all values and sizes.

Oracles: onnxruntime if it is installed, and Python.
"""

from __future__ import annotations

import json
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from typer.testing import CliRunner

from relayc.backend.runtime import device, graph_executor, load_model
from relayc.cli.main import app
from relayc.frontends.onnx import OnnxImportError, from_onnx
from relayc.frontends.onnx.backend import RelayBackend
from relayc.frontends.onnx.verify import verify

STRING, FLOAT, INT64, BOOL = TensorProto.STRING, TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
ML, MICROSOFT = "ai.onnx.ml", "com.microsoft"
node = helper.make_node


def value(name: str, kind: int, shape: Any = None) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def sequence(name: str, kind: int = STRING, shape: Any = None) -> Any:
    return helper.make_tensor_sequence_value_info(name, kind, shape)


def model_of(nodes: list[Any], inputs: list[Any], outputs: list[Any], weights: Any = None) -> ModelProto:
    passed = [numpy_helper.from_array(np.asarray(x), name) for name, x in (weights or {}).items()]
    imports = [helper.make_opsetid("", 20), helper.make_opsetid(ML, 3), helper.make_opsetid(MICROSOFT, 1)]
    graph = helper.make_graph(nodes, "strings", inputs, outputs, passed)
    return helper.make_model(graph, opset_imports=imports, ir_version=9)


def strings(*values: Any) -> Any:
    return np.array(values, object)


def plain(x: Any) -> Any:
    if isinstance(x, list | tuple):
        return [plain(item) for item in x]
    return x if x is None or isinstance(x, dict) else np.asarray(x).tolist()


def check(model: ModelProto, *runs: dict[str, Any], expected: Any = None, peer: bool = True) -> RelayBackend:
    """The model, compiled once, agrees on each of `runs` with onnxruntime (if `peer`) and with `expected`."""
    prepared = RelayBackend.prepare(model)
    session: Any = None
    if peer:
        try:
            ort = import_module("onnxruntime")
            session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        except ImportError:
            session = None
    for number, inputs in enumerate(runs):
        found = plain(list(prepared.run(inputs)))
        if session is not None:
            assert found == plain(session.run(None, inputs))
        if expected is not None:
            assert found == plain(expected[number])
    assert prepared._general is not None and not prepared._specialised
    return prepared


def test_columns_of_names_are_compiled_once():
    nodes = [
        node("OneHotEncoder", ["city"], ["hot"], domain=ML, cats_strings=["Berlin", "Zürich"], zeros=1),
        node("LabelEncoder", ["city"], ["number"], domain=ML, keys_strings=["Zürich", "Rome"], values_int64s=[5, 7]),
        node("LabelEncoder", ["city"], ["renamed"], domain=ML, keys_strings=["Rome"], values_strings=["Roma"]),
        node("CategoryMapper", ["city"], ["mapped"], domain=ML, cats_strings=["Rome"], cats_int64s=[3]),
        node("Concat", ["city", "renamed"], ["both"], axis=1),
        node("Equal", ["city", "rome"], ["is_rome"]),
        node("Where", ["is_rome", "yes", "city"], ["chosen"]),
    ]
    results = {"hot": FLOAT, "number": INT64, "renamed": STRING, "mapped": INT64, "both": STRING, "chosen": STRING}
    outputs = [value(name, kind) for name, kind in results.items()]
    weights = {"rome": strings("Rome"), "yes": strings("yes")}
    model = model_of(nodes, [value("city", STRING, ["rows", 1])], outputs, weights)
    cities = [strings(["Rome"]), strings(["Zürich"], ["Oslo"], ["Berlin"], [""]), np.empty((0, 1), object)]
    check(model, *[{"city": c} for c in cities[:2]])
    module = RelayBackend.prepare(model)
    assert [np.shape(x) for x in module.run([cities[2]])] == [(0, 1, 2), (0, 1), (0, 1), (0, 1), (0, 2), (0, 1)]


def test_text_classification():
    """StringNormalizer, Tokenizer, TfIdfVectorizer with a dynamic number of tokens."""
    pool = ["film", "good", "bad", "not", "good", "good", "film"]
    nodes = [
        node("StringNormalizer", ["text"], ["lower"], case_change_action="LOWER", locale="C"),
        node("Tokenizer", ["lower"], ["tokens"], domain=MICROSOFT, mark=0, mincharnum=2, pad_value="#",
             tokenexp="[a-zA-Z0-9_]+"),
        node("TfIdfVectorizer", ["tokens"], ["counts"], mode="TFIDF", min_gram_length=1, max_gram_length=2,
             max_skip_count=1, ngram_counts=[0, 3], ngram_indexes=[0, 1, 2, 3, 4], pool_strings=pool,
             weights=[1.0, 0.5, 2.0, 1.5, 3.0]),
        node("ArgMax", ["counts"], ["best"], axis=1, keepdims=0),
        node("ArrayFeatureExtractor", ["names", "best"], ["name"], domain=ML),
    ]  # fmt: skip
    weights = {"names": strings("film", "good", "bad", "not good", "good film")}
    outputs = [value("tokens", STRING), value("counts", FLOAT), value("name", STRING)]
    model = model_of(nodes, [value("text", STRING, ["rows"])], outputs, weights)
    reviews = [["Good film!"], ["bad, BAD film", "not so good a film; good film", ""], ["x"]]
    check(model, *[{"text": strings(*r)} for r in reviews])


def test_characters_and_separators():
    nodes = [
        node("Tokenizer", ["x"], ["words"], domain=MICROSOFT, mark=1, mincharnum=1, pad_value="",
             separators=[" ", "[;.]"]),
        node("Tokenizer", ["x"], ["characters"], domain=MICROSOFT, mark=0, mincharnum=1, pad_value="#",
             separators=[""]),
        node("RegexFullMatch", ["x"], ["plain"], pattern="[a-z ]*"),
    ]  # fmt: skip
    outputs = [value("words", STRING), value("characters", STRING), value("plain", BOOL)]
    model = model_of(nodes, [value("x", STRING, ["n", "m"])], outputs)
    check(model, {"x": strings(["a b;c", "é"], ["", "plain text"])}, {"x": strings(["..."])})


def test_conversions_from_and_to_strings():
    nodes = [node("Cast", ["x"], ["s"], to=STRING), node("Cast", ["s"], ["y"], to=FLOAT),
             node("Cast", ["i"], ["t"], to=STRING), node("CastLike", ["t", "i"], ["j"]),
             node("StringConcat", ["s", "t"], ["both"])]  # fmt: skip
    outputs = [value("both", STRING), value("y", FLOAT), value("j", INT64)]
    model = model_of(nodes, [value("x", FLOAT, ["n"]), value("i", INT64, ["n"])], outputs)
    x, i = np.array([0.1, -2.5e-7, 3e20, 16777217, np.inf], np.float32), np.array([0, -1, 2**62, 7, 8])
    check(model, {"x": x, "i": i}, {"x": x[:2], "i": i[:2]})
    with pytest.raises(OnnxImportError, match="no number"):
        from_onnx(model_of([node("Cast", ["s"], ["y"], to=INT64)], [], [value("y", INT64)], {"s": strings("1.5")}))


def test_unique_strings():
    nodes = [node("Unique", ["x"], ["a", "first", "inverse", "count"]), node("Unique", ["x"], ["b"], sorted=0)]
    outputs = [value("a", STRING), *[value(n, INT64) for n in ("first", "inverse", "count")], value("b", STRING)]
    model = model_of(nodes, [value("x", STRING, ["n"])], outputs)
    check(model, {"x": strings("b", "ä", "", "b", "a", "B")}, {"x": strings("z")})


def test_sequences_of_strings():
    """Split by computed sizes, appended to, indexed, concatenated."""
    nodes = [
        node("SplitToSequence", ["x", "sizes"], ["parts"], axis=0),
        node("SequenceInsert", ["parts", "y", "at"], ["more"]),
        node("SequenceAt", ["more", "at"], ["second"]),
        node("ConcatFromSequence", ["more"], ["joined"], axis=0),
        node("SequenceLength", ["more"], ["count"]),
    ]
    inputs = [value("x", STRING, ["n"]), value("sizes", INT64, ["parts"]), value("y", STRING, ["m"]),
              value("at", INT64, [])]  # fmt: skip
    outputs = [sequence("more"), value("second", STRING), value("joined", STRING), value("count", INT64)]
    model = model_of(nodes, inputs, outputs)
    at, y = np.array(1), strings("new", "")
    first = {"x": strings("a", "b", "c"), "sizes": np.array([1, 2]), "y": y, "at": at}
    second = {"x": strings("a", "b"), "sizes": np.array([0, 1, 1]), "y": strings("z"), "at": np.array(-1)}
    expected = [
        [[["a"], ["new", ""], ["b", "c"]], ["new", ""], ["a", "new", "", "b", "c"], 3],
        [[[], ["a"], ["z"], ["b"]], ["b"], ["a", "z", "b"], 4],
    ]
    check(model, first, second, expected=expected, peer=False)  # onnxruntime has no sequences of strings in its kernels


def test_a_sequence_of_strings_as_input():
    nodes = [node("SequenceAt", ["xs", "zero"], ["x"]), node("StringConcat", ["x", "end"], ["y"])]
    model = model_of(nodes, [sequence("xs", shape=["n"])], [value("y", STRING), sequence("xs")][:1],
                     {"zero": np.array(0), "end": strings("!")})  # fmt: skip
    runs = [{"xs": [strings("a", "b"), strings("c")]}, {"xs": [strings("c")]}]
    check(model, *runs, expected=[[["a!", "b!"]], [["c!"]]], peer=False)


def test_loops_carry_strings_and_sequences_of_strings():
    body = helper.make_graph(
        [
            node("Identity", ["go"], ["on"]),
            node("StringConcat", ["s", "dot"], ["longer"]),
            node("SequenceInsert", ["seen", "longer"], ["more"]),
            node("Concat", ["all", "longer"], ["every"], axis=0),
        ],
        "body",
        [value("i", INT64, []), value("go", BOOL, []), value("s", STRING, [1]), sequence("seen"), value("all", STRING)],
        [value("on", BOOL, []), value("longer", STRING), sequence("more"), value("every", STRING),
         value("longer", STRING)],
        [numpy_helper.from_array(strings("."), "dot")],
    )  # fmt: skip
    nodes = [node("SequenceEmpty", [], ["empty"], dtype=STRING),
             node("Loop", ["trips", "", "s", "empty", "s"], ["last", "seen", "all", "rows"], body=body)]  # fmt: skip
    outputs = [value("last", STRING), sequence("seen"), value("all", STRING), value("rows", STRING)]
    model = model_of(nodes, [value("trips", INT64, []), value("s", STRING, [1])], outputs)

    def expected(s: str, trips: int) -> list[Any]:
        rows = [[s + "." * (k + 1)] for k in range(trips)]
        return [rows[-1], rows, [s, *[row[0] for row in rows]], rows]

    runs = [{"trips": np.array(n), "s": strings(s)} for s, n in (("a", 3), ("", 1), ("zz", 40))]
    check(model, *runs, expected=[expected("a", 3), expected("", 1), expected("zz", 40)], peer=False)


def test_branches_and_optional_strings():
    def branch(name: str, nodes: list[Any], weights: Any) -> Any:
        passed = [numpy_helper.from_array(x, n) for n, x in weights.items()]
        return helper.make_graph(nodes, name, [], [value(f"{name}_y", STRING)], passed)

    greet = [node("OptionalGetElement", ["name"], ["given"]), node("StringConcat", ["hello", "given"], ["with_y"])]
    has = branch("with", greet, {"hello": strings("hello ")})
    without = branch("without", [node("Identity", ["nobody"], ["without_y"])], {"nobody": strings("who is there?")})
    nodes = [node("OptionalHasElement", ["name"], ["has"]),
             node("If", ["has"], ["y"], then_branch=has, else_branch=without)]  # fmt: skip
    held = helper.make_optional_type_proto(helper.make_tensor_type_proto(STRING, ["n"]))
    model = model_of(nodes, [helper.make_value_info("name", held)], [value("y", STRING)])
    runs = [{"name": strings("you", "all")}, {"name": None}, {"name": strings("me")}]
    check(model, *runs, expected=[[["hello you", "hello all"]], [["who is there?"]], [["hello me"]]], peer=False)


def pipeline() -> ModelProto:
    """A column of names and one of numbers, a classifier with named classes, and maps from them to scores."""
    nodes = [
        node("OneHotEncoder", ["city"], ["hot"], domain=ML, cats_strings=["Berlin", "Rome"], zeros=1),
        node("Squeeze", ["hot", "one"], ["flat"]),
        node("Concat", ["age", "flat"], ["row"], axis=1),
        node("LinearClassifier", ["row"], ["class", "scores"], domain=ML, classlabels_strings=["no", "yes"],
             coefficients=[-0.02, 1.0, -1.0, 0.02, -1.0, 1.0], intercepts=[0.5, -0.5], post_transform="SOFTMAX"),
        node("ZipMap", ["scores"], ["chances"], domain=ML, classlabels_strings=["no", "yes"]),
    ]  # fmt: skip
    chances = helper.make_map_type_proto(STRING, helper.make_tensor_type_proto(FLOAT, None))
    maps = helper.make_value_info("chances", helper.make_sequence_type_proto(chances))
    outputs = [value("class", STRING, ["rows"]), maps]
    inputs = [value("city", STRING, ["rows", 1]), value("age", FLOAT, ["rows", 1])]
    return model_of(nodes, inputs, outputs, {"one": np.array([1])})


def test_the_command_line_takes_and_gives_strings(tmp_path):
    (tmp_path / "model.onnx").write_bytes(pipeline().SerializeToString())
    rows = {"city": [["Rome"], ["Berlin"]], "age": [[30], [40.5]]}
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    np.savez(tmp_path / "rows.npz", city=np.array(rows["city"]), age=np.array(rows["age"], np.float32))

    def relayc(*arguments: Any) -> str:
        result = CliRunner().invoke(app, [str(a) for a in arguments])
        assert result.exit_code == 0, result.output
        return result.output

    artifact = tmp_path / "model.relayc"
    assert "input 'city' (strings, as numbers)" in relayc("compile", tmp_path / "model.onnx", "-o", artifact)
    for passed in ("rows.json", "rows.npz"):
        printed = relayc("run", artifact, "--input", tmp_path / passed, "-o", tmp_path / "y.npz", "--print-top", 2)
        assert "class: string[2]" in printed and "the first of class: 'yes', 'no'" in printed
        with np.load(tmp_path / "y.npz", allow_pickle=False) as saved:
            assert saved["class"].tolist() == ["yes", "no"] and saved["chances[yes]"].shape == (2,)
    assert "agree" in relayc("verify", tmp_path / "model.onnx", "--against", "reference", "--shape", "rows=3")
    relayc("bench", artifact, "--shape", "rows=3", "-n", 2)
    (tmp_path / "rows.json").write_text(json.dumps({"city": [[1]], "age": [[1]]}))
    result = CliRunner().invoke(app, ["run", str(artifact), "--input", str(tmp_path / "rows.json")])
    assert result.exit_code == 2 and "'city' can't be read as string" in result.output
    module = graph_executor.GraphModule(load_model(artifact)["default"](device("cpu", 0)))
    label, chances = module(rows["city"], np.array(rows["age"], np.float32))
    assert label.numpy().tolist() == ["yes", "no"] and [max(c, key=c.get) for c in chances] == ["yes", "no"]


@pytest.mark.parametrize("against", ["reference", "onnxruntime"])
def test_strings_are_verified(against):
    if against == "onnxruntime":
        pytest.importorskip("onnxruntime")
    inputs = {"city": strings(["Rome"], ["Oslo"]), "age": np.array([[3], [60]], np.float32)}
    report = verify(pipeline(), inputs, against=against)
    assert report.agrees and {c.tensor for c in report.tensors} >= {"hot", "class", "scores", "chances[0]"}


def test_more_rows_of_strings_than_a_normalizer_takes():
    nodes = [node("StringNormalizer", ["x"], ["y"])]
    with pytest.raises(OnnxImportError, match=r"2 rows of strings[\s\S]*\[C\] or \[1, C\]"):
        from_onnx(model_of(nodes, [value("x", STRING, [2, 3])], [value("y", STRING)]))
