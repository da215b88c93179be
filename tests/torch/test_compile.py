"""`torch.compile(backend="relayc")`: results, sizes, changes of parameters, aliases, and falling back to eager mode."""

from __future__ import annotations

import copy
import logging
import pickle
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from relayc.backend.runtime.log import warn_once

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install 'relayc[torch]'")
pytest.importorskip("onnxscript", reason="needs torch's exporter: pip install 'relayc[torch]'")

COMPILED = "compiled a graph"


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    """Nothing compiled before, and the same weights in each test."""

    torch._dynamo.reset()
    warn_once.cache_clear()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


@pytest.fixture(name="log")
def log_of_the_backend(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "relayc.torch")
    return caplog


def messages(log: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in log.records if record.name == "relayc.torch"]


def compilations(log: pytest.LogCaptureFixture) -> int:
    return sum(message.startswith(COMPILED) for message in messages(log))


def compiled(module: Any, **options: Any) -> Any:
    return torch.compile(module.eval() if hasattr(module, "eval") else module, backend="relayc", **options)


def check(function: Any, reference: Any, *args: Any) -> Any:
    """Call both and compare: values within 1e-5 of the largest, types, shapes and strides exactly."""
    with torch.no_grad():
        expected, actual = reference(*args), function(*args)
    leaves = torch.utils._pytree.tree_leaves
    for a, b in zip(leaves(actual), leaves(expected), strict=True):
        if not isinstance(b, torch.Tensor):
            assert a == b
            continue
        assert (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())
        scale = max(1.0, b.abs().max().item()) if b.numel() and b.is_floating_point() else 1.0
        torch.testing.assert_close(a, b, atol=1e-5 * scale, rtol=1e-5)
    return actual


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        return torch.nn.functional.gelu(self.linear(x))


def test_the_backend_is_found_by_its_name():
    assert "relayc" in torch._dynamo.list_backends()


def test_a_dynamic_graph_is_compiled_once_for_twenty_sizes(log):
    model = Layer()
    run = compiled(model, dynamic=True)
    for batch in range(2, 22):
        check(run, model, torch.randn(batch, 5, 8))
    assert compilations(log) == 1


def test_sizes_that_change_are_compiled_twice_by_default(log):
    model = Layer()
    run = compiled(model)
    for batch in range(2, 12):
        check(run, model, torch.randn(batch, 8))
    assert compilations(log) == 2


def test_empty_strided_and_misaligned_inputs():
    model = Layer()
    run = compiled(model, dynamic=True)
    for x in (torch.randn(4, 8), torch.randn(8, 4).t(), torch.randn(41)[1:].view(5, 8), torch.randn(0, 8),
              torch.randn(1, 8), torch.randn(4, 16)[:, ::2], torch.randn(1, 8).expand(4, 8)):  # fmt: skip
        check(run, model, x)


def test_outputs_belong_to_the_caller():
    run = compiled(Layer())
    x = torch.randn(4, 8)
    with torch.no_grad():
        first = run(x)
        kept = first.clone()
        run(x + 1)
        assert torch.equal(first, kept)
        first.zero_()
        torch.testing.assert_close(run(x), kept)


def test_results_that_are_views_inputs_none_and_sizes():
    class Many(Layer):
        def forward(self, x: Any, n: int) -> Any:
            y = self.linear(x)
            return y, y.transpose(0, 1), y[0], x, None, x.shape[0], n + 1, x.view(-1), {"a": y.relu().t()}

    model = Many()
    for dynamic in (False, True):
        run = compiled(model, dynamic=dynamic)
        for size in (3, 4):
            x = torch.randn(size, 8)
            y, moved, row, same, *_ = check(run, model, x, size)
            assert same is x
            y.zero_()
            assert not moved.any() and not row.any(), "views of one result share its memory, as eager mode's do"


def test_channels_last_results_keep_their_strides():
    model = torch.nn.Conv2d(3, 4, 3).eval().to(memory_format=torch.channels_last)
    image = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)
    assert not check(compiled(model), model, image).is_contiguous()


def test_a_mutated_buffer_and_a_mutated_input():
    class Counting(Layer):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(8))

        def forward(self, x: Any) -> Any:
            self.count += 1
            x.add_(self.count)
            return self.linear(x)

    ours, theirs = Counting().eval(), Counting().eval()
    ours.load_state_dict(theirs.state_dict())
    run = compiled(ours)
    for _ in range(3):
        x = torch.randn(2, 8)
        y = x.clone()
        with torch.no_grad():
            torch.testing.assert_close(run(x), theirs(y))
        assert torch.equal(x, y) and torch.equal(ours.count, theirs.count)


def test_parameters_that_change_are_seen(log):
    model = Layer()
    run, x = compiled(model), torch.randn(3, 8)
    check(run, model, x)
    with torch.no_grad():
        model.linear.weight.mul_(2)
    check(run, model, x)
    model.load_state_dict(Layer().state_dict())
    check(run, model, x)
    counts = []
    for _ in range(3):
        with torch.no_grad():
            model.linear.weight.mul_(2)
            model.linear.bias.add_(1)
        check(run, model, x)
        counts.append(compilations(log))
    assert len(set(counts)) == 1, "what has changed twice is an argument, and no reason to compile"
    model.linear.weight = torch.nn.Parameter(torch.randn(8, 8))
    check(run, model, x)


def test_unknown_operators_run_as_eager_mode_does(log):
    class Factors(Layer):
        def forward(self, x: Any) -> Any:
            q, r = torch.linalg.qr(super().forward(x))
            return (q @ r).tanh() * 2, q.abs().sum()

    model = Factors()
    run = compiled(model)
    for _ in range(2):
        check(run, model, torch.randn(8, 8))
    warnings = [message for message in messages(log) if "aten.linalg_qr" in message]
    assert len(warnings) == 1 and compilations(log) == 2, messages(log)


def test_parts_between_unknown_operators_have_symbolic_sizes(log):
    """A part may use a size before the tensor that has it: its inputs come in the order of their first use."""

    def run(x: Any, y: Any) -> Any:
        q, r = torch.linalg.qr(x)
        ones = torch.full((y.shape[0],), 2.0) * 3
        return (q @ r).tanh() + ones[:, None], torch.cat([ones, y.exp()])

    fast = compiled(run, dynamic=True)
    for count in (5, 7, 9):
        check(fast, run, torch.randn(count, 4), torch.randn(count))
    assert not [message for message in messages(log) if "eager" in message and "qr" not in message], messages(log)


def test_graphs_without_tensor_operators_are_not_compiled(log):
    def sizes(x: Any) -> Any:
        return x.shape[0] * 2 + 1, x

    run = compiled(sizes, dynamic=True)
    for count in (3, 4):
        check(run, sizes, torch.ones(count))
    assert not messages(log)


def test_a_graph_that_computes_nothing_has_no_unsupported_operators():
    from relayc.torch.partition import unsupported_operators

    assert unsupported_operators(torch.fx.symbolic_trace(lambda x: (x, 3))) == {}


def test_graph_breaks():
    class Breaking(Layer):
        def forward(self, x: Any) -> Any:
            y = super().forward(x)
            torch._dynamo.graph_break()
            return self.linear(y) if y.sum().item() > 0 else y

    model = Breaking()
    run = compiled(model)
    for sign in (1, -1):
        check(run, model, sign * torch.ones(2, 8))


def test_gradients_are_eager_modes(log):
    model = Layer().train()
    run = torch.compile(model, backend="relayc")
    x = torch.randn(3, 8, requires_grad=True)
    run(x).square().sum().backward()
    ours = [x.grad.clone(), model.linear.weight.grad.clone()]
    x.grad = None
    model.zero_grad()
    model(x).square().sum().backward()
    torch.testing.assert_close(ours, [x.grad, model.linear.weight.grad])
    assert compilations(log) == 0 and "gradients" in messages(log)[0]
    with torch.inference_mode():
        torch.testing.assert_close(run(x), model(x), atol=1e-5, rtol=1e-5)
    assert compilations(log) == 1


def test_a_module_made_in_inference_mode():
    with torch.inference_mode():
        model = Layer().eval()
        run, x = compiled(model), torch.randn(3, 8)
        for _ in range(2):
            torch.testing.assert_close(run(x), model(x), atol=1e-5, rtol=1e-5)
            model.linear.weight.mul_(2)  # torch counts no changes of such a tensor


@pytest.mark.parametrize(("name", "tolerance"), [("float16", 2e-3), ("bfloat16", 2e-2), ("float64", 1e-9)])
def test_element_types(name, tolerance):
    dtype = getattr(torch, name)
    model, x = Layer().eval().to(dtype), torch.randn(3, 8).to(dtype)
    with torch.no_grad():
        result = compiled(model)(x)
        torch.testing.assert_close(result, model(x), atol=tolerance, rtol=tolerance)


def test_integers_and_bools():
    def count(i: Any, mask: Any) -> Any:
        return (i * 2).clamp(max=5), mask & (i > 1), (i // 2).to(torch.int32).sum()

    i = torch.arange(6)
    check(compiled(count), count, i, i % 2 == 0)


def test_options():
    model, x = Layer(), torch.randn(3, 8)
    run = compiled(model, options={"threads": 1, "precision": "bfloat16", "opt_level": 2})
    with torch.no_grad():
        error = (run(x) - model(x)).abs().max().item()
    assert 1e-6 < error < 5e-2, "sums are float32, and values bfloat16"


@pytest.mark.parametrize(
    ("options", "expected"),
    [({"thread": 1}, "unknown are 'thread'; known are threads, precision, opt_level"),
     ({"threads": 0}, "threads is 0; expected a positive integer"),
     ({"precision": "int8"}, "precision is 'int8'; expected one of float32, float16, bfloat16"),
     ({"opt_level": 5}, "opt_level is 5; expected an integer from 0 to 4")],
)  # fmt: skip
def test_wrong_options_are_errors(options, expected):
    with torch.no_grad(), pytest.raises(Exception, match=expected):
        compiled(Layer(), options=options)(torch.randn(3, 8))


def test_a_mode_is_an_error():
    with torch.no_grad(), pytest.raises(Exception, match="has no modes"):
        compiled(Layer(), mode="max-autotune")(torch.randn(3, 8))


def test_several_threads():
    model = Layer()
    run = compiled(model, dynamic=True)
    check(run, model, torch.randn(2, 8))
    failed: list[BaseException] = []

    def work(size: int) -> None:
        try:
            for _ in range(10):
                check(run, model, torch.randn(size, 8))
        except BaseException as error:  # noqa: BLE001 - for the assertion in the main thread
            failed.append(error)

    threads = [threading.Thread(target=work, args=(size,)) for size in range(2, 6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_copies_and_pickles_of_a_compiled_module():
    model, x = Layer(), torch.randn(3, 8)
    run = compiled(model)
    check(run, model, x)
    check(copy.deepcopy(run), model, x)
    check(pickle.loads(pickle.dumps(run)), model, x)


def test_a_transformer_of_torchs_own_layers(log):
    """In evaluation without gradients these are one fused operator."""
    model = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    mask = torch.nn.Transformer.generate_square_subsequent_mask(5)
    for arguments in ((), (mask,), (None, torch.arange(5) > torch.tensor([[2], [4], [3]]))):
        check(compiled(model), model, torch.randn(3, 5, 16), *arguments)
    assert compilations(log) == 3, messages(log)


class GroupedAttention(torch.nn.Module):
    """Four heads of queries, two of keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.queries, self.keys = torch.nn.Linear(16, 16), torch.nn.Linear(16, 8)

    def forward(self, x: Any) -> Any:
        q, k = self.queries(x).unflatten(-1, (4, 4)).transpose(1, 2), self.keys(x).unflatten(-1, (2, 4)).transpose(1, 2)
        return torch.nn.functional.scaled_dot_product_attention(q, k, k, is_causal=True, enable_gqa=True)


def test_heads_of_queries_that_share_keys(log):
    module = GroupedAttention()
    function = compiled(module, dynamic=True)
    for batch, length in ((2, 5), (3, 9)):
        check(function, module, torch.randn(batch, length, 16))
    assert compilations(log) == 1 and len(messages(log)) == 1, messages(log)


def test_a_graph_that_reads_numpy_constants():
    table = torch.from_numpy(np.arange(8, dtype="float32"))

    def add(x: Any) -> Any:
        return x + table + torch.tensor([1.0, 2.0] * 4)

    check(compiled(add), add, torch.randn(3, 8))
