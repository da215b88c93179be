"""The application, called in process: requests and responses of the protocol, and requests that are none."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

httpx = pytest.importorskip("httpx", reason="pip install httpx")
pytest.importorskip("starlette", reason="pip install 'relayc[serve]'")

import relayc  # noqa: E402
from relayc import relay  # noqa: E402
from relayc.runtime import load_model  # noqa: E402
from relayc.server import (  # noqa: E402
    CompiledRunner,
    Limits,
    Repository,
    ServerError,
    Stop,
    TensorSpec,
    create_app,
    find_models,
)
from relayc.te.ir import IRModule  # noqa: E402
from relayc.te.tir import SizeVar  # noqa: E402
from tests.server.requests_of import binary_body, json_body, output_of  # noqa: E402

X = np.arange(16, dtype="float32").reshape(2, 8) / 16
DENSE = "/v2/models/dense/infer"
DATATYPES = ["BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64"]


class EchoRunner:
    """Gives its inputs back, of every datatype that a request can pass."""

    platform = "test"
    batch_obstacle = None
    inputs: Sequence[TensorSpec] = tuple(TensorSpec(d, d, (-1, 2)) for d in [*DATATYPES, "BF16", "BYTES"])
    outputs: Sequence[TensorSpec] = inputs

    def infer(self, inputs: Mapping[str, np.ndarray], outputs: Sequence[str], stop: Stop) -> list[np.ndarray]:
        return [inputs[name] for name in outputs]


class Client:
    """Sends requests to the application."""

    def __init__(self, repository: Repository, limits: Limits | None = None) -> None:
        self._app = create_app(repository, limits)

    def __call__(self, method: str, path: str, **arguments: Any) -> Any:
        async def send() -> Any:
            transport = httpx.ASGITransport(self._app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                return await client.request(method, path, **arguments)

        return asyncio.run(send())


@pytest.fixture(scope="module")
def client(models: Path) -> Any:
    repository = Repository()
    for file in find_models([str(models)]):
        repository.add(file.name, CompiledRunner(load_model(file.path), num_threads=1), file.version)
    repository.add("echo", EchoRunner())
    yield Client(repository, Limits(request_bytes=100_000))
    repository.close(10)


def test_metadata(client):
    assert client("GET", "/v2").json()["name"] == "relayc"
    assert client("GET", "/v2/health/live").json() == {"live": True}
    assert client("GET", "/v2/models/fixed").json() == {
        "name": "fixed", "versions": ["1"], "platform": "relayc",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [2, 8]}],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [2, 4]}],
    }  # fmt: skip
    assert client("GET", "/v2/models/dense/versions/1").json()["inputs"][0]["shape"] == [-1, 8]
    assert client("GET", "/v2/models/dense/versions/2/ready").json() == {"name": "dense", "ready": True}
    assert {"name": "dense", "version": "2", "state": "READY", "reason": ""} in client(
        "POST", "/v2/repository/index"
    ).json()
    assert 'relayc_queue_length{model="dense",version="1"} 0.0' in client("GET", "/metrics").text


def test_values_as_json_and_as_bytes_in_all_combinations(client, expected):
    for body in ({"json": json_body(X)}, binary_body(X), {"json": json_body(X, outputs=[{"name": "y"}])}):
        np.testing.assert_array_equal(output_of(client("POST", DENSE, **body)), expected(X))
    mixed = json_body(X, outputs=[{"name": "y", "parameters": {"binary_data": True}}], id="seven")
    response = client("POST", DENSE, json=mixed)
    np.testing.assert_array_equal(output_of(response), expected(X))
    fields = json.loads(response.content[: int(response.headers["inference-header-content-length"])])
    assert (fields["id"], fields["model_name"], fields["model_version"]) == ("seven", "dense", "2")
    nested = json_body(X)
    nested["inputs"][0]["data"] = X.tolist()
    np.testing.assert_array_equal(output_of(client("POST", DENSE, json=nested)), expected(X))


def test_the_version_in_the_path_is_used(client):
    first, second = (output_of(client("POST", f"/v2/models/dense/versions/{v}/infer", json=json_body(X))) for v in "12")
    assert (first != second).any()
    np.testing.assert_array_equal(output_of(client("POST", DENSE, json=json_body(X))), second)


def test_a_body_that_is_the_input(client, expected):
    response = client("POST", DENSE, content=X.tobytes(), headers={"Inference-Header-Content-Length": "0"})
    np.testing.assert_array_equal(output_of(response), expected(X))


@pytest.mark.parametrize(("name", "compress"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_compressed_bodies(client, expected, name, compress):
    body = binary_body(X)
    headers = {**body["headers"], "content-encoding": name}
    response = client("POST", DENSE, content=compress(body["content"]), headers=headers)
    np.testing.assert_array_equal(output_of(response), expected(X))
    bomb = client("POST", DENSE, content=compress(bytes(10_000_000)), headers={"content-encoding": name})
    assert bomb.status_code == 413


def every_datatype() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    values: dict[str, np.ndarray] = {"BOOL": np.array([[True, False]])}
    for datatype in DATATYPES[1:9]:
        info = np.iinfo(datatype.lower())
        values[datatype] = np.array([[info.min, info.max]], datatype.lower())
    for datatype, dtype in (("FP16", "float16"), ("FP32", "float32"), ("FP64", "float64"), ("BF16", "bfloat16")):
        values[datatype] = rng.standard_normal((1, 2)).astype(relayc.backend.runtime.dtype.to_numpy(dtype))
    values["BYTES"] = np.array([["", "häß\0\N{SNOWMAN}"]], object)
    return values


@pytest.mark.parametrize("is_binary", [False, True])
def test_every_datatype_comes_back(client, is_binary):
    items, tail = [], b""
    for datatype, values in every_datatype().items():
        item = {"name": datatype, "shape": [1, 2], "datatype": datatype}
        if is_binary:
            texts = [text.encode() for text in values.reshape(-1)] if datatype == "BYTES" else []
            data = b"".join(len(t).to_bytes(4, "little") + t for t in texts) or values.tobytes()
            item["parameters"], tail = {"binary_data_size": len(data)}, tail + data
        else:
            item["data"] = values.tolist()
        items.append(item)
    header = json.dumps({"inputs": items, "parameters": {"binary_data_output": is_binary}}).encode()
    response = client("POST", "/v2/models/echo/infer", content=header + tail,
                      headers={"Inference-Header-Content-Length": str(len(header))})  # fmt: skip
    assert response.status_code == 200, response.text
    if is_binary:
        assert response.content.endswith(tail)
    else:
        for output, item in zip(response.json()["outputs"], items, strict=True):
            assert [output["data"], output["datatype"]] == item["data"] + [item["datatype"]]


def test_floats_that_are_no_numbers(client):
    items = [{"name": d, "shape": [0, 2], "datatype": d, "data": []} for d in [*DATATYPES, "BF16", "BYTES"]]
    items[10] |= {"shape": [1, 2], "data": [float("nan"), float("-inf")]}
    response = client("POST", "/v2/models/echo/infer", content=json.dumps({"inputs": items}))
    assert '"FP32","datatype":"FP32","shape":[1,2],"data":[NaN,-Infinity]' in response.text


def item(**fields: Any) -> dict[str, Any]:
    return {"inputs": [{"name": "x", "shape": [1, 8], "datatype": "FP32", "data": [0] * 8, **fields}]}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "the body is no JSON"),
        (b"\xff\xfe", "the body is no JSON"),
        (b"[]", "the body is of the JSON type list; expected an object"),
        (b"[" * 50_000, "nested too deeply|the body is no JSON"),  # Python 3.14 reads as far as the end
        (b"9" * 5000, "the body is no JSON"),
        ({}, "'inputs' is None; expected a list of objects"),
        ({"inputs": [1]}, "expected a list of objects"),
        ({"inputs": []}, r"inputs are missing: x \(FP32 \[-1, 8\]\)"),
        ({"inputs": [{}]}, "the model has no input None; its inputs are x"),
        ({"inputs": item()["inputs"] * 2}, "input 'x' occurs twice"),
        (item(name="z"), "the model has no input 'z'; its inputs are x"),
        (item(datatype="FP64"), "input 'x': got datatype 'FP64'; expected 'FP32'"),
        (item(shape=[8]), r"got shape \[8\]; expected \[-1, 8\] \(-1: any size\)"),
        (item(shape=[1, 7]), r"got shape \[1, 7\]; expected \[-1, 8\]"),
        (item(shape=[-1, 8]), "expected a list of sizes"),
        (item(shape=[True, 8]), "expected a list of sizes"),
        (item(shape="8"), "got shape '8'; expected a list of sizes"),
        (item(shape=[1 << 60, 8]), "expected a list of sizes"),
        (item(shape=[1 << 44, 8]), "got shape"),
        (item(data=None), "'data' is missing or null; expected a list of FP32 values"),
        (item(data={}), "'data' is of type object"),
        (item(data=[0] * 7), r"'data' has shape \[7\]; expected \[1, 8\], or flat"),
        (item(data=[[0] * 4] * 2), r"'data' has shape \[2, 4\]; expected \[1, 8\]"),
        (item(data=[[0], [0, 1]]), "'data'"),
        (item(data=["1"] * 8), "values of type string; expected FP32"),
        (item(data=[None] * 8), "values of type null"),
        (item(data=[True] * 8), "values of type boolean"),
        (item(data=[1e300] * 8), "out of range of FP32"),
        (item(data=[10**400] * 8), "out of range of FP32"),
        (item(parameters=[]), "'parameters' of input 'x' is"),
        (item(parameters={"binary_data_size": 32}), "binary_data_size is 32; expected at most the 0 bytes"),
        (item(parameters={"shared_memory_region": "r"}), "'shared_memory_region' of input 'x' is not supported"),
        ({**item(), "id": 3}, "'id' is 3; expected a string"),
        ({**item(), "parameters": {"timeout": "1"}}, "expected microseconds"),
        ({**item(), "parameters": {"sequence_id": 7}}, "'sequence_id' of the request is not supported"),
        ({**item(), "outputs": [{"name": "z"}]}, "the model has no output 'z'; its outputs are y"),
        ({**item(), "outputs": [{"name": "y", "parameters": {"binary_data": 1}}]}, "expected true or false"),
        ({**item(), "outputs": [{"name": "y"}, {"name": "y"}]}, "output 'y' occurs twice"),
    ],
)  # fmt: skip
def test_wrong_requests_say_what_was_expected(client, body, message):
    content = body if isinstance(body, bytes) else json.dumps(body)
    response = client("POST", DENSE, content=content)
    assert response.status_code == 400
    assert httpx.codes.is_error(response.status_code) and list(response.json()) == ["error"]
    with pytest.raises(ServerError, match=message):
        raise ServerError(response.json()["error"])


@pytest.mark.parametrize("length", ["-1", "x", "1e3", "99999999999", "9" * 5000, "²"])
def test_wrong_lengths_of_the_header(client, length):
    headers = [(b"Inference-Header-Content-Length", length.encode())]
    response = client("POST", DENSE, content=b"{}", headers=headers)
    assert response.status_code == 400 and "expected a number of at most" in response.json()["error"]


def test_wrong_bytes(client):
    short = binary_body(X)
    short["content"] = short["content"][:-1]
    assert "binary_data_size is 64" in client("POST", DENSE, **short).json()["error"]
    long = binary_body(X)
    long["content"] += b"1"
    assert "65 bytes behind the JSON; the inputs account for 64" in client("POST", DENSE, **long).json()["error"]
    odd = client("POST", DENSE, content=b"123", headers={"Inference-Header-Content-Length": "0"})
    assert "got 3 bytes; shape [0, 8] of FP32 has 0" in odd.json()["error"]


@pytest.mark.parametrize("data", [b"\1\0\0", b"\5\0\0\0abc", b"\1\0\0\0a", b"\1\0\0\0a\1\0\0\0bc", b"\xff\xff\xff\xff",
                                  b"\1\0\0\0\xff\0\0\0\0"])  # fmt: skip
def test_wrong_strings(client, data):
    items = [{"name": d, "shape": [0, 2], "datatype": d, "data": []} for d in [*DATATYPES, "BF16"]]
    items.append({"name": "BYTES", "shape": [1, 2], "datatype": "BYTES", "parameters": {"binary_data_size": len(data)}})
    header = json.dumps({"inputs": items}).encode()
    response = client("POST", "/v2/models/echo/infer", content=header + data,
                      headers={"Inference-Header-Content-Length": str(len(header))})  # fmt: skip
    assert response.status_code == 400 and "string" in response.json()["error"]


@pytest.mark.parametrize(
    ("method", "path", "status", "message"),
    [
        ("GET", "/v2/models/none", 404, "there is no model 'none'; the server has dense, echo, fixed"),
        ("POST", "/v2/models/none/infer", 404, "there is no model 'none'"),
        ("GET", "/v2/models/dense/versions/3", 404, "model 'dense' has no version '3'; it has 1, 2"),
        ("GET", "/v2/models/dense/versions/²", 404, "has no version"),
        ("GET", "/v2/models/dense/infer", 405, "Method Not Allowed"),
        ("GET", "/v2/models/..%2f..%2fetc/ready", 404, ""),
        ("GET", "/", 404, "endpoints are those of the Open Inference Protocol"),
    ],
)
def test_wrong_paths(client, method, path, status, message):
    response = client(method, path)
    assert response.status_code == status and message in response.json()["error"]


def test_damaged_requests_are_client_errors(client):
    """Bytes of a valid request are changed, removed and repeated."""
    rng = random.Random(0)
    whole = binary_body(X)
    statuses: set[int] = set()
    for _ in range(400):
        content = bytearray(whole["content"])
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(content))
            match rng.randrange(4):
                case 0:
                    content[at] = rng.randrange(256)
                case 1:
                    del content[at : at + rng.randint(1, 9)]
                case 2:
                    content[at:at] = content[at : at + rng.randint(1, 9)]
                case _:
                    content[at:at] = rng.choice([b"[", b"]", b"{", b"null", b"-1", b"1e999", b'"', b"\\ud800", b"NaN"])
        headers = {} if rng.random() < 0.3 else whole["headers"]
        response = client("POST", DENSE, content=bytes(content), headers=headers)
        assert response.status_code in (200, 400), response.text
        statuses.add(response.status_code)
    assert statuses == {200, 400}


def test_sizes_that_contradict_each_other_are_the_clients_fault():
    size = SizeVar("n")
    a, b = relay.var("a", (size, 2)), relay.var("b", (size, 2))
    lib = relay.build(IRModule({"main": relay.Function((a, b), relay.op.add(a, b))}), target="llvm")
    repository = Repository()
    repository.add("sum", CompiledRunner(lib))
    body = json_body(np.zeros((2, 2)), "a")
    body["inputs"] += json_body(np.zeros((3, 2)), "b")["inputs"]
    response = Client(repository)("POST", "/v2/models/sum/infer", json=body)
    assert response.status_code == 400 and "input 'b' of model 'default'" in response.json()["error"]
    repository.close(10)


def test_strings_reach_a_model():
    node = helper.make_node("StringConcat", ["a", "b"], ["c"])
    tensors = [helper.make_tensor_value_info(name, TensorProto.STRING, ["n"]) for name in "abc"]
    graph = helper.make_graph([node], "texts", tensors[:2], tensors[2:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    repository = Repository()
    repository.add("texts", CompiledRunner(relayc.compile_onnx(model)))
    inputs = [{"name": n, "shape": [1], "datatype": "BYTES", "data": [t]} for n, t in (("a", "sm"), ("b", "örgås"))]
    response = Client(repository)("POST", "/v2/models/texts/infer", json={"inputs": inputs})
    assert response.json()["outputs"] == [{"name": "c", "datatype": "BYTES", "shape": [1], "data": ["smörgås"]}]
    inputs[0]["data"] = ["\ud800"]
    wrong = Client(repository)("POST", "/v2/models/texts/infer", content=json.dumps({"inputs": inputs}))
    assert wrong.status_code == 400
    repository.close(10)


def test_faults_of_the_server_show_no_traceback(caplog):
    class Broken(EchoRunner):
        inputs = outputs = (TensorSpec("x", "FP32", (-1, 8)),)

        def infer(self, inputs: Any, outputs: Any, stop: Any) -> list[np.ndarray]:
            raise KeyError("secret")

    repository = Repository()
    repository.add("broken", Broken())
    response = Client(repository)("POST", "/v2/models/broken/infer", json=json_body(X))
    assert response.status_code == 500
    assert response.json() == {"error": "model 'broken' failed: KeyError, see the server's log"}
    assert "secret" in caplog.text
    repository.close(10)


def test_models_that_can_not_be_served(models, tmp_path):
    with pytest.raises(ServerError, match=r"missing.relayc is no file; expected a model, NAME=FILE, or a folder"):
        find_models([str(tmp_path / "missing.relayc")])
    with pytest.raises(ServerError, match=r"no model in .*expected NAME/VERSION/model.relayc"):
        find_models([str(tmp_path)])
    (tmp_path / "net/3").mkdir(parents=True)
    with pytest.raises(ServerError, match=r"net/3; expected model.relayc or model.onnx"):
        find_models([str(tmp_path)])
    with pytest.raises(ServerError, match=r"'a b', the name of .*expected letters"):
        find_models([f"a b={models}/dense/1/model.relayc"])
    repository = Repository()
    repository.add("echo", EchoRunner())
    with pytest.raises(ServerError, match="two models 'echo' of version 1"):
        repository.add("echo", EchoRunner())
    repository.close(10)
