"""In-place KV caches: a decoder with caches compared with one that gets all positions."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from relayc import relay
from relayc.backend.runtime import (
    ArgumentError,
    ArtifactError,
    Device,
    device,
    graph_executor,
    kv_cache as kept_caches,
    load_model,
)
from relayc.backend.runtime.graph import Graph
from relayc.relay import Function, IRModule, op, var
from relayc.relay.expr import Expr, Tuple, Var
from relayc.relay.op import nn
from relayc.relay.transform import find_kv_caches
from relayc.te.errors import CompileError
from relayc.te.ir import PassContext, post_order
from relayc.te.tir import Dim, SizeVar

HEADS, SIZE = 2, 4
CACHES = {"past.key": "key", "past.value": "value"}
rng = np.random.default_rng(0)


def decoder(length: Dim | None = None, batch: Dim = 1, reads: bool = False) -> IRModule:
    """Attention of x (batch, new, HEADS * SIZE) over the past and itself; outputs: the result, keys and values."""
    past = SizeVar("past") if length is None else length
    x = var("x", (batch, SizeVar("new"), HEADS * SIZE))
    inputs = [var(f"past.{name}", (batch, HEADS, past, SIZE)) for name in ("key", "value")]
    query = op.transpose(op.reshape(x, (batch, -1, HEADS, SIZE)), (0, 2, 1, 3))
    added = [op.tanh(query), op.sin(query)]
    whole = [op.concatenate([p, new], axis=2) for p, new in zip(inputs, added, strict=True)]
    result: Expr = nn.attention(query, *whole, scale=0.5)
    result = op.add(result, op.sum(inputs[0], axis=(2,), keepdims=True)) if reads else result
    main = Function((*inputs, x), Tuple((result, *whole)))
    return IRModule({"main": main}, {"output_names": ["y", "key", "value"]})


CPU = device("cpu", 0)


def executor(batch: Dim = 1, where: Device = CPU) -> graph_executor.GraphModule:
    target = "llvm -num-cores=1" if where == CPU else "cuda"
    lib = relay.build(decoder(batch=batch), target, caches=CACHES)
    return graph_executor.GraphModule(lib["default"](where))


def expected(seen: np.ndarray, new: int) -> np.ndarray:
    """The result for the last `new` of the positions `seen`."""
    query = seen.reshape(len(seen), -1, HEADS, SIZE).swapaxes(1, 2)
    key, value = np.tanh(query), np.sin(query)
    scores = np.exp(query[:, :, -new:] @ key.swapaxes(2, 3) * 0.5)
    return scores / scores.sum(-1, keepdims=True) @ value


def positions(count: int, batch: int = 1) -> np.ndarray:
    return rng.standard_normal((batch, count, HEADS * SIZE)).astype("float32")


def test_runs_append_to_the_cache(where):
    module, seen = executor(where=where), np.zeros((1, 0, HEADS * SIZE), "float32")
    assert module.get_input_info()[0] == {"x": (1, "new", HEADS * SIZE)} and module.get_num_inputs() == 1
    assert list(module.get_output_info()[0]) == ["y"]
    for new in (5, 1, 1, 3, 40, 1):
        x = positions(new)
        seen = np.concatenate([seen, x], axis=1)
        module.run(x=x)
        assert module.cache_length == seen.shape[1]
        np.testing.assert_allclose(module.get_output("y").numpy(), expected(seen, new), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_products_on_gpus_read_the_caches_in_place(precision):
    """No kernel copies the rows that are filled."""
    pytest.importorskip("cuda.bindings.nvrtc")
    options = {} if precision == "float32" else {"relay.ToMixedPrecision.dtype": precision}
    with PassContext(config=options):
        lib = relay.build(decoder(), "cuda -arch=sm_90", caches=CACHES)
    readers = [node.ops for node in lib.graph.nodes if "cache.filled" in node.ops]
    assert readers and all({"nn.attention", "nn.batch_matmul"} & {*ops} for ops in readers)


def test_arrays_are_read_in_place_beside_the_caches():
    module, seen = executor(2), np.zeros((2, 0, HEADS * SIZE), "float32")
    calls = (
        lambda x: module.infer_in_place({"x": x})[0],
        lambda x: module.infer({"x": x.tolist()})[0],
        lambda x: (module.run(x=x), module.get_output("y").numpy())[1],
        lambda x: module.infer_in_place({"x": x}, ["y"])[0],
    )
    for step, new in enumerate((5, 1, 1, 3, 1, 1, 40, 40, 1, 1, 1, 1)):
        if step == 6:
            module.truncate_caches(4)
            module.reorder_caches([1, 0])
            seen = seen[::-1, :4]
        x = positions(new, 2)
        seen = np.concatenate([seen, x], axis=1)
        np.testing.assert_allclose(calls[step % 4](x), expected(seen, new), rtol=1e-5, atol=1e-6)
        assert module.cache_length == seen.shape[1]


@pytest.mark.parametrize("wrong", [positions(1)[0], positions(1).astype("float64"), positions(4)[:, ::2], [[[0.0]]]])
def test_arrays_that_are_not_read_in_place_leave_the_caches(wrong):
    module = executor()
    module.infer({"x": positions(3)})
    assert module.infer_in_place({"x": wrong}) is None
    assert module.cache_length == 3


def test_pairs_are_found():
    assert find_kv_caches(decoder()) == CACHES
    assert find_kv_caches(decoder(length=7)) == {}
    assert find_kv_caches(decoder(reads=True)) == {"past.value": "value"}


def appending(*added: Expr) -> IRModule:
    """The sums of caches [rows, 3], to each of which rows of x are appended; x is the only other input."""
    x = added[0] if isinstance(added[0], Var) else next(e for e in post_order(Tuple(added)) if isinstance(e, Var))
    pasts = [var(f"past{i}", (SizeVar("past"), 3)) for i in range(len(added))]
    wholes = [op.concatenate([past, rows], axis=0) for past, rows in zip(pasts, added, strict=True)]
    sums = [op.sum(whole, axis=(0,)) for whole in wholes]
    names = [f"{kind}{i}" for kind in ("y", "whole") for i in range(len(added))]
    return IRModule({"main": Function((x, *pasts), Tuple((*sums, *wholes)))}, {"output_names": names})


def test_runs_append_a_constant_number_of_rows():
    module = appending(var("x", (1, 3)))
    caches = find_kv_caches(module)
    assert caches == {"past0": "whole0"}
    run = graph_executor.GraphModule(relay.build(module, "llvm -num-cores=1", caches=caches)["default"](CPU))
    x = np.ones((1, 3), "float32")
    assert [run(x)[0].numpy()[0] for _ in range(3)] == [1, 2, 3]


def test_caches_get_as_many_rows():
    x = var("x", (SizeVar("new"), 3))
    assert find_kv_caches(appending(x, op.strided_slice(x, (0,), (2,)), op.tanh(x))) == {
        "past0": "whole0", "past1": "whole1", "past2": "whole2",
    }  # fmt: skip
    few = op.reshape(op.sum(x, axis=(0,), keepdims=True), (1, 3))
    assert find_kv_caches(appending(few, x)) == {"past1": "whole1"}
    assert find_kv_caches(appending(few, op.concatenate([few, few], axis=0))) == {"past0": "whole0"}


def test_rows_that_values_count_are_not_kept():
    x = var("x", (SizeVar("new"), 3))
    positive = op.strided_slice(x, (0,), (SizeVar("counted"),), axes=(0,))
    module = appending(positive)
    assert find_kv_caches(module) == {}
    with pytest.raises(CompileError, match="as many rows appended as sizes of inputs tell"):
        relay.build(module, caches={"past0": "whole0"})


def test_all_caches_have_one_length():
    """torch's exporter gives each cache a size variable of its own."""
    x = var("x", (SizeVar("new"), 3))
    pasts = [var(name, (SizeVar(f"rows_{name}"), 3)) for name in ("a", "b")]
    wholes = [op.concatenate([past, x], axis=0) for past in pasts]
    sums = op.add(op.sum(wholes[0], axis=(0,)), op.sum(op.tanh(wholes[1]), axis=(0,)))
    module = IRModule({"main": Function((x, *pasts), Tuple((sums, *wholes)))}, {"output_names": ["y", "c", "d"]})
    lib = relay.build(module, "llvm -num-cores=1", caches={"a": "c", "b": "d"})
    assert {cache.length for cache in lib.graph.caches} == {"rows_a"} and "rows_b" not in lib.graph.sizes
    run, seen = graph_executor.GraphModule(lib["default"](device("cpu", 0))), rng.random((4, 3), np.float32)
    run(seen[:3])
    np.testing.assert_allclose(run(seen[3:])[0].numpy(), (seen + np.tanh(seen)).sum(0), rtol=1e-5)


def test_truncation_removes_positions(where):
    module, seen = executor(where=where), positions(4)
    module.run(x=seen)
    module.run(x=positions(3))
    module.truncate_caches(4)
    x = positions(2)
    (y,) = module(x=x)
    np.testing.assert_allclose(y.numpy(), expected(np.concatenate([seen, x], axis=1), 2), rtol=1e-5, atol=1e-6)
    with pytest.raises(ArgumentError, match="caches of 6 rows can't be truncated to 7"):
        module.truncate_caches(7)
    module.truncate_caches()
    module.run(x=x)
    np.testing.assert_allclose(module.get_output(0).numpy(), expected(x, 2), rtol=1e-5, atol=1e-6)


def test_measuring_leaves_caches_as_they_are(where):
    module = executor(where=where)
    module.run(x=positions(3))
    module.benchmark(repeat=2, number=2, x=positions(1))
    module.benchmark(repeat=2, number=2, end_to_end=True, x=positions(1))
    assert len(module.profile(x=positions(1)))
    assert module.cache_length == 3
    assert module.clone().cache_length == 0


def test_buffers_are_rarely_reallocated(monkeypatch):
    made: list[tuple[int, ...]] = []
    make = kept_caches.zeros

    def counting(shape, *args):
        made.append(shape)
        return make(shape, *args)

    monkeypatch.setattr(kept_caches, "zeros", counting)
    module = executor()
    for _ in range(200):
        module.run(x=positions(1))
    assert len(made) < 2 * 16


def test_the_artifact_knows_its_caches(tmp_path):
    relay.build(decoder(), "llvm -num-cores=1", caches=CACHES).save(tmp_path / "model.relayc")
    model = load_model(tmp_path / "model.relayc")
    assert model.graph == Graph.from_json(model.graph.to_json())
    module, x = graph_executor.GraphModule(model["default"](device("cpu", 0))), positions(3)
    module.run(x=x[:, :2])
    module.run(x=x[:, 2:])
    np.testing.assert_allclose(module.get_output(0).numpy(), expected(x, 1), rtol=1e-5, atol=1e-6)
    record = model.graph.to_json()
    for broken in ({"input": 9}, {"axis": 9}, {"axis": 0}, {"length": "nothing"}):
        with pytest.raises(ArtifactError, match="caches"):
            Graph.from_json({**record, "caches": [{**record["caches"][0], **broken}]})


def test_batches_keep_their_number(where):
    module, x = executor(SizeVar("batch"), where), positions(4, batch=3)
    module.run(x=x[:, :3])
    module.run(x=x[:, 3:])
    np.testing.assert_allclose(module.get_output(0).numpy(), expected(x, 1), rtol=1e-5, atol=1e-6)
    with pytest.raises(ArgumentError, match=r"has 4 rows in a shape \(3, .* truncate_caches\(\) forgets them"):
        module.run(x=positions(1, batch=2))
    module.truncate_caches()
    module.run(x=positions(1, batch=2))


def test_entries_of_a_batch_are_reordered(where):
    module, x = executor(SizeVar("batch"), where), positions(3, batch=2)
    module.run(x=x)
    module.reorder_caches([1, 1, 0])
    seen = np.concatenate([x[[1, 1, 0]], positions(1, batch=3)], axis=1)
    (y,) = module(x=seen[:, 3:])
    np.testing.assert_allclose(y.numpy(), expected(seen, 1), rtol=1e-5, atol=1e-6)
    for entries in ([3], [-1], [[0]]):
        with pytest.raises(ArgumentError, match="can't be reordered by"):
            module.reorder_caches(entries)


def test_caches_are_saved_and_set(where):
    """A prefix is computed once, for several executors; a pickled executor goes on where it was."""
    module, seen = executor(where=where), positions(4)
    module.run(x=seen)
    prefix = module.cache_values()
    assert {name: value.shape for name, value in prefix.items()} == dict.fromkeys(CACHES, (1, HEADS, 4, SIZE))
    revived = pickle.loads(pickle.dumps(module))
    assert revived.cache_length == 4
    for other in (module.clone(), revived, module):
        other.set_caches(prefix)
        assert other.cache_length == 4
        x = positions(2)
        (y,) = other(x=x)
        np.testing.assert_allclose(y.numpy(), expected(np.concatenate([seen, x], axis=1), 2), rtol=1e-5, atol=1e-6)
    module.set_caches({})
    assert module.cache_length == 0 and not module.clone().cache_values()
    for broken, text in (
        ({"past.key": prefix["past.key"]}, "keeps the caches past.key, past.value; got past.key"),
        ({**prefix, "past.key": prefix["past.key"].astype("float64")}, r"float64; expected float32 in \(1, 2, past"),
        ({**prefix, "past.key": prefix["past.key"][:, :1]}, r"got shape \(1, 1, 4, 4\)"),
        ({**prefix, "past.key": prefix["past.key"][:, :, :3]}, r"caches of \[3, 4\] rows"),
    ):
        with pytest.raises(ArgumentError, match=text):
            module.set_caches(broken)


def test_reserved_caches_are_not_moved(monkeypatch):
    made: list[tuple[int, ...]] = []
    make = kept_caches.zeros
    monkeypatch.setattr(kept_caches, "zeros", lambda shape, *rest: made.append(shape) or make(shape, *rest))
    module = executor()
    module.reserve_caches(64)
    for _ in range(64):
        module.run(x=positions(1))
    assert made == [(1, HEADS, 64, SIZE)] * 2
    module.run(x=positions(1))
    assert module.cache_length == 65 and len(made) == 4
    with pytest.raises(ArgumentError, match="can't have room for -1 rows"):
        module.reserve_caches(-1)


def test_caches_are_no_inputs():
    module = executor()
    for use in (lambda: module.set_input("past.key", 0), lambda: module.get_input("past.value")):
        with pytest.raises(ArgumentError, match="is a cache, which the executor keeps"):
            use()


@pytest.mark.parametrize(
    ("module", "caches", "options", "text"),
    [
        (decoder(), {"past": "key"}, {}, "caches name past, no inputs; the inputs are: past.key"),
        (decoder(), {"past.key": "keys"}, {}, "caches name the output 'keys'; the outputs are: y, key, value"),
        (decoder(), {"past.key": "y"}, {}, "expected the input with one tensor appended"),
        (decoder(), {"past.key": "value"}, {}, "expected the input, of symbolic length, with rows appended"),
        (decoder(length=7), CACHES, {}, "of symbolic length"),
        (decoder(reads=True), CACHES, {}, "caches past.key are read before anything is appended"),
        (decoder(), CACHES, {"specialize": {"new": [1]}}, "not specialized as well"),
    ],
)
def test_invalid_caches_are_rejected(module: IRModule, caches: dict[str, str], options: dict[str, object], text: str):
    with pytest.raises(CompileError, match=text):
        relay.build(module, caches=caches, **options)
