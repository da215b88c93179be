from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import os
import pickle
import subprocess
import sys
from collections import Counter
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from relayc import relay
from relayc.backend.runtime import (
    ArgumentError,
    ArtifactError,
    Module,
    ModuleError,
    load_model,
    load_param_dict,
    nd,
    safetensors,
    save_param_dict,
)
from relayc.backend.runtime.artifact import CompiledModel
from relayc.backend.runtime.container import Section, digest, sums
from relayc.backend.runtime.graph import Graph
from relayc.backend.runtime.graph_executor import GraphModule
from relayc.backend.runtime.module import register_module_loader

X = np.array([[1, 2, 3], [-1, 0, 1]], "float32")


class Blob(Module):
    """A module that saves arbitrary bytes."""

    type_key = "test.blob"

    def __init__(self, data: bytes) -> None:
        super().__init__()
        self.data = data

    def function_names(self):
        return []

    def _find(self, name):
        return None

    def save_to_bytes(self):
        return self.data


register_module_loader("test.blob", lambda data: Blob(bytes(data)), override=True)


@pytest.fixture
def saved(small, tmp_path):
    model = CompiledModel(small.graph(None), small.weights, small.Python())
    path = tmp_path / "small.relayc"
    model.save(path)
    return path


def _manifest(data):
    return json.loads(data[64 : 64 + int.from_bytes(data[12:16], "little")])


def _sections(data):
    """The alignments and contents of the sections of a file."""
    manifest, begin = _manifest(data), 64 + int.from_bytes(data[12:16], "little")
    found = []
    for section in manifest["sections"]:
        begin += -begin % section["align"]
        found.append((section["align"], data[begin : begin + section["size"]]))
        begin += section["size"]
    return found


def _rewrite(path, change, seal=True):
    """Change the manifest of a file and update all hashes, those of small sections included; the seals if `seal`."""
    data = path.read_bytes()
    manifest, parts = _manifest(data), _sections(data)
    change(manifest)
    if seal and isinstance(sections := manifest.get("sections"), list) and len(sections) == len(parts):
        made = digest({**manifest, "sections": sections[-1:]})
        parts = [*[(align, made + part[len(made) :]) for align, part in parts[:-1]], parts[-1]]
        for section, (align, part) in zip(sections[:-1], parts, strict=False):
            if isinstance(section, dict) and len(part) < 1 << 22:
                record = Section([part], align).record
                section.update({name: record[name] for name in ("sha256", "sums") if name in section})
    path.write_bytes(_file(data[:12], manifest, parts))


def _file(head, manifest, parts):
    """The bytes of a file with this head, manifest and sections."""
    text = json.dumps(manifest).encode()
    out = head + len(text).to_bytes(4, "little") + hashlib.sha256(text).digest() + bytes(16) + text
    for align, part in parts:
        out += bytes(-len(out) % align) + part
    return out


def test_a_model_survives_its_file(saved, small):
    model = load_model(saved)
    assert model.graph == Graph.from_json(small.graph(None))
    assert model.params["w"].tolist() == small.weights["w"].tolist()
    np.testing.assert_array_equal(GraphModule(model["default"]("cpu"))(X)[0].numpy(), small.expected(X))
    assert "2 nodes" in repr(model)


def test_compiled_code_survives_too(small, c_library, tmp_path):
    CompiledModel(small.graph(), small.weights, small.CLibrary(c_library)).save(tmp_path / "m")
    np.testing.assert_array_equal(
        GraphModule(load_model(tmp_path / "m")["default"]("cpu"))(X)[0].numpy(), small.expected(X)
    )


def test_weights_are_mapped_aligned_and_read_only(saved):
    model = load_model(saved)
    for name, values in model.params.items():
        assert not values.flags.writeable and not values.flags.owndata
        assert values.ctypes.data % 64 == 0, name
    placed = model.params_on(GraphModule(model["default"]("cpu")).device)
    assert placed["w"].handle == model.params["w"].ctypes.data, "used in place"


def test_weights_in_huge_pages_do_not_need_the_file(saved, small):
    model = load_model(saved, huge_pages=True)
    saved.write_bytes(b"")
    for name, values in model.params.items():
        assert not values.flags.writeable and values.ctypes.data % 64 == 0
        np.testing.assert_array_equal(values, small.weights[name])


def test_a_cut_off_file_is_noticed_in_huge_pages_too(saved):
    saved.write_bytes(saved.read_bytes()[:-1])
    with pytest.raises(ArtifactError, match="is cut off"):
        load_model(saved, huge_pages=True)


def test_equal_models_make_equal_bytes(saved, small):
    again = CompiledModel(small.graph(None), small.weights, small.Python())
    assert again.to_bytes() == saved.read_bytes() == load_model(saved).to_bytes()


def test_bytes_and_pickle(saved, small):
    model = load_model(saved)
    for again in (CompiledModel.from_bytes(model.to_bytes()), pickle.loads(pickle.dumps(model))):
        np.testing.assert_array_equal(GraphModule(again["default"]("cpu"))(X)[0].numpy(), small.expected(X))


def test_a_file_is_replaced_in_one_step(saved, small, tmp_path):
    before = saved.read_bytes()
    old = load_model(saved)
    unsavable = CompiledModel(small.graph(None), small.weights, small.Python())
    unsavable.module.save_to_bytes = lambda: Module.save_to_bytes(unsavable.module)
    with pytest.raises(ModuleError, match="can't be saved"):
        unsavable.save(saved)
    assert saved.read_bytes() == before and os.listdir(tmp_path) == [saved.name]
    CompiledModel(small.graph(None), {**small.weights, "b": np.zeros(4, "f4")}, small.Python()).save(saved)
    assert old.params["b"].tolist() == small.weights["b"].tolist(), "a loaded model keeps its own file"
    assert load_model(saved).params["b"].tolist() == [0] * 4


@pytest.mark.parametrize(
    "dtype",
    [
        "bool",
        "int8",
        "uint16",
        "int64",
        "float16",
        "bfloat16",
        "float64",
        "float8_e4m3fn",
        "float8_e4m3fnuz",
        "int4",
        "uint2",
        "float4_e2m1fn",
    ],
)
def test_weights_of_every_kind(small, tmp_path, dtype):
    kind = np.dtype(getattr(ml_dtypes, dtype, None) or dtype)
    weights = {**small.weights, "extra": np.array([[0, 1, 1], [1, 0, 1]]).astype(kind), "none": np.zeros((0, 3), kind)}
    CompiledModel(small.graph(None), weights, small.Python()).save(tmp_path / "m")
    found = load_model(tmp_path / "m").params
    assert list(found) == list(weights)
    for name, values in weights.items():
        assert found[name].dtype == values.dtype and found[name].shape == values.shape
        assert found[name].tobytes() == values.tobytes()


def test_strided_and_foreign_weights_are_stored_dense(small):
    weights = {"w": np.ascontiguousarray(small.weights["w"].T).T, "b": small.weights["b"].astype(">f4")}
    model = CompiledModel(small.graph(None), weights, small.Python())
    assert model.to_bytes() == CompiledModel(small.graph(None), small.weights, small.Python()).to_bytes()
    np.testing.assert_array_equal(GraphModule(model["default"]("cpu"))(X)[0].numpy(), small.expected(X))


def test_weights_move_to_aligned_memory_once(small):
    memory = np.zeros(4 * 12 + 64, np.uint8)
    start = -memory.ctypes.data % 64 + 4
    crooked = memory[start : start + 48].view("float32").reshape(3, 4)
    crooked[:] = small.weights["w"]
    model = CompiledModel(small.graph(None), {**small.weights, "w": crooked}, small.Python())
    first, second = GraphModule(model["default"]("cpu")), GraphModule(model["default"]("cpu"))
    placed = first._params["w"]
    assert placed.handle % 64 == 0 and placed is second._params["w"]
    assert model.params["w"].ctypes.data == placed.handle, "the old memory is let go"
    np.testing.assert_array_equal(first(X)[0].numpy(), small.expected(X))


def test_modules_keep_their_imports(small, tmp_path):
    modules = [Blob(bytes([i]) * 100) for i in range(4)]
    for user, used in ((0, 1), (0, 2), (1, 3), (2, 3)):
        modules[user].import_module(modules[used])
    graph = small.graph(None)
    CompiledModel(graph, small.weights, modules[0]).save(tmp_path / "m")
    root = load_model(tmp_path / "m").module
    assert [m.data[0] for m in root.imported_modules] == [1, 2]
    left, right = root.imported_modules
    assert left.imported_modules[0] is right.imported_modules[0] and left.imported_modules[0].data[0] == 3


def test_a_weight_that_does_not_fit_the_graph_is_rejected(small):
    with pytest.raises(ArgumentError, match="model 'small' has no weight 'b', which tensor 'b' names"):
        CompiledModel(small.graph(None), {"w": small.weights["w"]}, small.Python())
    with pytest.raises(
        ArgumentError, match=r"weight 'b'.*dtype float64; tensor 'b' expects shape \(4,\), dtype float32"
    ):
        CompiledModel(small.graph(None), {**small.weights, "b": np.zeros(4)}, small.Python())


def test_reserved_weight_names_are_rejected(small):
    for name in ("__metadata__", "__padding__.0"):
        with pytest.raises(ArgumentError, match="can't be stored under that name"):
            CompiledModel(small.graph(None), {**small.weights, name: np.zeros(4)}, small.Python()).to_bytes()


# -- files that are not what they should be


@settings(
    max_examples=300, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(at=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255))
def test_a_flipped_byte_anywhere_is_noticed(saved, at, flip):
    data = bytearray(saved.read_bytes())
    data[int(at * len(data))] ^= flip
    for verify in ("quick", "full"):
        with pytest.raises(ArtifactError):
            CompiledModel.from_bytes(bytes(data), verify)


def test_every_header_byte_is_checked(saved):
    for at in range(64):
        data = bytearray(saved.read_bytes())
        data[at] ^= 0x41
        with pytest.raises(ArtifactError):
            CompiledModel.from_bytes(bytes(data))


@settings(
    max_examples=100, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(keep=st.floats(0, 1, exclude_max=True))
def test_a_file_cut_off_anywhere_is_noticed(saved, keep):
    data = saved.read_bytes()
    path = saved.with_name("cut")
    path.write_bytes(data[: int(keep * len(data))])
    with pytest.raises(ArtifactError, match=r"has|is"):
        load_model(path)


def test_bytes_after_the_end_are_noticed(saved):
    with pytest.raises(ArtifactError, match="expected"):
        CompiledModel.from_bytes(saved.read_bytes() + b"\0")


@settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.binary(max_size=300))
def test_other_files_are_rejected_as_foreign(saved, data):
    for content in (data, saved.read_bytes()[:64] + data):
        path = saved.with_name("foreign")
        path.write_bytes(content)
        with pytest.raises(ArtifactError):
            load_model(path)


def test_messages_say_what_where_and_what_to_do(saved, tmp_path):
    (tmp_path / "m.onnx").write_bytes(b"\x08\x07" * 100)
    with pytest.raises(ArtifactError, match=r"m\.onnx starts with .*It is no model compiled by relayc"):
        load_model(tmp_path / "m.onnx")
    (tmp_path / "empty").write_bytes(b"")
    with pytest.raises(ArtifactError, match="empty has 0 bytes; a compiled model has at least 64"):
        load_model(tmp_path / "empty")
    data = saved.read_bytes()
    with pytest.raises(
        ArtifactError, match=r"has format version 9; this runtime reads versions 1 to 2. Compile the model again"
    ):
        CompiledModel.from_bytes(data[:8] + (9).to_bytes(4, "little") + data[12:])
    with pytest.raises(ArtifactError, match="manifest does not match its hash"):
        CompiledModel.from_bytes(data[:70] + b"?" + data[71:])
    with pytest.raises(ArtifactError, match=r"sections\[1\]: bytes 0 onward do not match their sums"):
        CompiledModel.from_bytes(data[:-1] + b"?")


@settings(max_examples=100, deadline=None, derandomize=True)
@given(data=st.data())
def test_sums_tell_what_was_moved(data):
    size = data.draw(st.integers(2, 3 * 4096))
    chunk = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    before = sums(memoryview(chunk.tobytes()))
    i, j = data.draw(st.integers(0, size - 1)), data.draw(st.integers(0, size - 1))
    same = chunk[i] == chunk[j]
    chunk[[i, j]] = chunk[[j, i]]
    assert (sums(memoryview(chunk.tobytes())) == before) == bool(same)
    assert sums(memoryview(chunk[:-1].tobytes())) != before


def test_code_verification_leaves_the_weights_out(small, tmp_path):
    weights = {**small.weights, "big": np.zeros(3 << 20, "float32")}
    CompiledModel(small.graph(None), weights, small.Python()).save(tmp_path / "m")
    data = bytearray((tmp_path / "m").read_bytes())
    data[-8] ^= 1
    (tmp_path / "m").write_bytes(data)
    for verify in ("quick", "full"):
        with pytest.raises(ArtifactError, match="bytes 12582912 onward"):
            load_model(tmp_path / "m", verify)
    assert load_model(tmp_path / "m", verify="code").params["big"].shape == (3 << 20,)
    with pytest.raises(ArgumentError, match="verify='none'; expected 'quick', 'full' or 'code'"):
        load_model(tmp_path / "m", verify="none")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 70), 1 << 70) | st.text(max_size=5) | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


def _places(value, path=()):
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from _places(inner, (*path, key))


@settings(
    max_examples=300, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_a_manifest_with_a_changed_value_is_rejected_or_valid(saved, small, data):
    """With a correct hash, fields of another type or out of bounds raise `ArtifactError` and nothing else."""
    path = data.draw(st.sampled_from(list(_places(_manifest(saved.read_bytes())))[1:]))
    value = data.draw(JSON)

    def change(manifest):
        inner = manifest
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = value

    copied = saved.with_name("changed")
    copied.write_bytes(saved.read_bytes())
    _rewrite(copied, change)
    try:
        model = load_model(copied)
    except ArtifactError as error:
        assert "changed" in str(error)
    else:
        Graph.from_json(model.graph.to_json())


def test_a_manifest_without_a_field_names_it(saved):
    def drop(manifest):
        del manifest["graph"]["tensors"][3]["dtype"]

    _rewrite(saved, drop)
    with pytest.raises(ArtifactError, match=r"manifest\.graph\.tensors\[3\] has no field 'dtype'\. The file"):
        load_model(saved)


GRAPH_FAULTS = [
    (lambda g: g.update(version=2), "graph has version 2; this runtime reads version 1"),
    (lambda g: g.update(extra=1), r"graph\.extra is 1; expected no such field"),
    (
        lambda g: g["tensors"][3].update(storage=["arena", 96]),
        r"tensors\[3\].storage .* 32 bytes inside an arena of 96",
    ),
    (lambda g: g["tensors"][3].update(storage=["arena", -64]), "inside an arena"),
    (lambda g: g["tensors"][3].update(storage=["heap", 0]), r"expected \[\"input\", i\]"),
    (lambda g: g["tensors"][3].update(shape=[2, -4]), "a size: an integer"),
    (lambda g: g["tensors"][3].update(shape=[1 << 40, 1 << 40]), "at most 281474976710656 bytes"),
    (lambda g: g["tensors"][3].update(dtype="float31"), "expected a dtype"),
    (lambda g: g["tensors"][4].update(storage=["output", 1]), "expected a position below 1"),
    (lambda g: g["tensors"][2].update(storage=["input", 0]), "24 bytes of its storage"),
    (lambda g: g["tensors"][3].update(storage=["output", 0], shape=[3]), "32 bytes of its storage"),
    (lambda g: g.update(outputs=[0]), "an output that is stored there"),
    (lambda g: g["nodes"][0].update(outputs=[1]), "no write to an input or a weight"),
    (lambda g: g["nodes"][0].update(inputs=[5]), "integers from 0 to 4"),
    (lambda g: g["nodes"][0].update(flops=True), r"nodes\[0\].flops is True; expected a size"),
    (lambda g: g["nodes"][0].update(bytes=["*", 2, "n"]), r"nodes\[0\].bytes.* expected a size"),
    (lambda g: g.update(arena_bytes=True), "a value of type int"),
    (lambda g: g["nodes"][0].update(ops="add"), "a value of type list"),
    (lambda g: g.update(inputs=[1]), r'a tensor stored as \["input", 0\]'),
    (lambda g: g.update(arena_bytes=-1), "an integer from 0"),
    (lambda g: g.update(entry=3), "a value of type str"),
    (lambda g: g.update(nodes=[3]), r"nodes\[0\] is 3; expected an object"),
]


@pytest.mark.parametrize(("fault", "text"), GRAPH_FAULTS, ids=[text for _, text in GRAPH_FAULTS])
def test_an_invalid_graph_is_rejected(small, fault, text):
    graph = copy.deepcopy(small.graph())
    fault(graph)
    with pytest.raises(ArtifactError, match=text):
        Graph.from_json(graph)


def test_an_unknown_kind_of_module_is_rejected(saved):
    _rewrite(saved, lambda manifest: manifest["modules"][0].update(kind="martian"))
    with pytest.raises(ArtifactError, match="no loader for modules of type 'martian'"):
        load_model(saved)


def test_errors_of_a_loader_are_not_hidden(saved):
    def refuse(_):
        raise ArtifactError("compiled for a CPU with avx512f, which this one has not; compile for target 'llvm'")

    register_module_loader("test.refusing", refuse, override=True)
    _rewrite(saved, lambda manifest: manifest["modules"][0].update(kind="test.refusing"))
    with pytest.raises(ArtifactError, match="a CPU with avx512f, which this one has not"):
        load_model(saved)


def _weights(entries, size):
    text = json.dumps(entries).encode()
    return memoryview(len(text).to_bytes(8, "little") + text + bytes(size))


@pytest.mark.parametrize(
    ("entries", "size", "text"),
    [
        ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}, 4, "8 bytes, as dtype and shape say"),
        ({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}, 8, "to start at 0"),
        ({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, 8, "size is 8; expected 4 bytes"),
        ({"a": {"dtype": "F31", "shape": [1], "data_offsets": [0, 4]}}, 4, "expected one of BOOL"),
        ({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 400]}}, 4, "integers from 0 to 4"),
        ({"a": {"dtype": "F32", "shape": [0, 1 << 61, 1 << 61], "data_offsets": [0, 0]}}, 0, "that numpy can hold"),
        ({"a": {"dtype": "F32", "shape": [1] * 100, "data_offsets": [0, 4]}}, 4, "that numpy can hold"),
        ([], 0, "expected an object"),
    ],
)
def test_weights_that_break_the_format_are_rejected(entries, size, text):
    with pytest.raises(ArtifactError, match=text):
        safetensors.read(_weights(entries, size), "weights")


def test_a_header_length_past_the_end_is_rejected():
    for data in (b"", b"\xff" * 8, (9).to_bytes(8, "little") + b"{}"):
        with pytest.raises(ArtifactError, match="header length"):
            safetensors.read(memoryview(data), "weights")


def test_other_writers_files_are_read():
    entries = {"__metadata__": {"format": "pt"}, "a": {"dtype": "BF16", "shape": [2, 1], "data_offsets": [0, 4]}}
    arrays, _ = safetensors.read(_weights(entries, 4), "weights")
    assert arrays["a"].dtype == ml_dtypes.bfloat16 and arrays["a"].shape == (2, 1)


def test_parameters_go_into_a_file_that_other_tools_read():
    params = {"a": np.arange(3, dtype="float32"), "b": nd.array(np.ones((2, 2), "int64"))}
    data = save_param_dict(params)
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    assert header["a"] == {"dtype": "F32", "shape": [3], "data_offsets": [0, 12]}
    found = load_param_dict(data)
    assert found["a"].tolist() == [0, 1, 2] and found["b"].tolist() == [[1, 1], [1, 1]]
    with pytest.raises(ArtifactError, match="parameters"):
        load_param_dict(data[:-1])
    with pytest.raises(ArgumentError, match="weight 'c' of dtype int4 can't be stored"):
        save_param_dict({"c": np.zeros(2, ml_dtypes.int4)})


def test_loading_needs_no_compiler(saved):
    program = (
        "import sys\n"
        "from relayc.backend.runtime import Module, PythonFunc, load_model, register_module_loader\n"
        "class M(Module):\n"
        "    type_key = 'test.python'\n"
        "    def function_names(self): return []\n"
        "    def _find(self, name): return PythonFunc(lambda *a: None, name)\n"
        "register_module_loader('test.python', lambda data: M())\n"
        "from relayc.backend.runtime import graph_executor\n"
        f"m = graph_executor.GraphModule(load_model({str(saved)!r})['default']('cpu'))\n"
        "m.run(x=[[0.0] * 3] * 2)\n"
        "heavy = {'onnx', 'networkx', 'te', 'topi', 'relay', 'frontends'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


_SMAPS = Path("/proc/self/smaps")
_RUN_AND_WAIT = """
import sys
from pathlib import Path
from relayc.backend.runtime import GraphModule, load_model

def own():
    lines = Path("/proc/self/smaps").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_Dirty:"))

before = own()
model = GraphModule(load_model(sys.argv[1])["default"]("cpu"))
model.run(x=[[1.0] * 2048] * 2)
assert abs(model.get_output(0).numpy() - 2048.0).max() < 0.5
print(own() - before, flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(not _SMAPS.exists(), reason="the system does not tell which pages are shared: no /proc/self/smaps")
def test_processes_that_run_an_artifact_share_its_weights(tmp_path):
    """The pages of the mapped file are shared, and neither process has private copies."""
    path, weights = tmp_path / "m.relayc", 2048 * 2048 * 4 >> 10
    x = relay.var("x", (2, 2048))
    relay.build(relay.Function((x,), relay.nn.dense(x, relay.const(np.ones((2048, 2048), np.float32))))).save(path)
    command = [sys.executable, "-c", _RUN_AND_WAIT, str(path)]
    with contextlib.ExitStack() as stack:
        pipes: dict[str, int] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        processes = [stack.enter_context(subprocess.Popen(command, text=True, **pipes)) for _ in range(2)]
        stack.callback(lambda: [process.stdin.close() for process in processes])
        assert max(int(process.stdout.readline()) for process in processes) < weights / 2
        for process in processes:
            mapped = _mapped(process.pid, path)
            assert mapped["Rss"] >= weights
            assert mapped["Private_Dirty"] == 0 and mapped["Private_Clean"] < weights / 100, mapped


def _mapped(pid, path):
    """KiB of a process's mappings of a file, by kind."""
    sums, inside = Counter(), False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        kind, *rest = line.split()
        if not kind.endswith(":"):
            inside = line.endswith(str(path))
        elif inside and rest[-1] == "kB":
            sums[kind[:-1]] += int(rest[0])
    return sums
