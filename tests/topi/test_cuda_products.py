"""Matrix products on GPUs: dense layers, matrix multiplications and convolutions, against numpy, at odd sizes too."""

from __future__ import annotations

import numpy as np
import pytest

from relayc import backend, te, topi
from relayc.backend.cuda.build import prepare, verify
from relayc.backend.cuda.disassemble import instruction_counts
from relayc.backend.runtime.errors import ModuleError
from relayc.backend.target import Target
from relayc.te.ir import collect
from relayc.te.tir import AttrStmt
from relayc.te.tir.values import numpy_dtype
from relayc.topi.registry import schedule_for

RNG = np.random.default_rng(3)
TARGET = "cuda -arch=sm_90"


def placeholder(name, *shape, dtype="float32"):
    return te.placeholder(shape, dtype, name)


def run(device, inputs, out):
    """Run the group of `out`, a bias and a relu on random arrays; returns (arrays, result without the epilogue)."""
    last = te.compute(out.shape, lambda *i: te.max(out(*i) + 1.0, te.const(-1e9)), name="last", tag="elemwise")
    return execute(device, inputs, last)


def random(tensor):
    if str(tensor.dtype) == "int8":
        return RNG.integers(-128, 128, tensor.shape, dtype="int8")
    return RNG.standard_normal(tensor.shape).astype(numpy_dtype(tensor.dtype))


def execute(device, inputs, *outs, options=""):
    target = Target(TARGET + options)
    library = backend.build(te.lower(schedule_for(list(outs), target), [*inputs, *outs]), target=target)
    arrays = [random(t) for t in inputs]
    on_device = [backend.nd.array(a, device) for a in arrays]
    results = [backend.nd.empty(t.shape, str(t.dtype), device) for t in outs]
    library(*on_device, *results)
    return arrays, *[r.numpy() for r in results]


@pytest.mark.parametrize(("m", "n", "k"), [(8, 8, 8), (9, 33, 7), (1, 3, 2), (64, 128, 64), (100, 70, 129)])
def test_dense(cuda_device, m, n, k):
    x, w = placeholder("x", m, k), placeholder("w", n, k)
    (a, b), result = execute(cuda_device, [x, w], topi.nn.dense(x, w))
    np.testing.assert_allclose(result, a @ b.T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("dims", [(3, 9, 20, 33), (2, 64, 32, 40)])
def test_batch_matmul(cuda_device, dims, transpose_a, transpose_b):
    b, m, n, k = dims
    x = placeholder("x", b, *((k, m) if transpose_a else (m, k)))
    y = placeholder("y", b, *((n, k) if transpose_b else (k, n)))
    out = topi.nn.batch_matmul(x, y, transpose_a, transpose_b)
    (p, q), result = run(cuda_device, [x, y], out)
    expected = (p.swapaxes(1, 2) if transpose_a else p) @ (q.swapaxes(1, 2) if transpose_b else q)
    np.testing.assert_allclose(result, expected + 1, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("a_batch", "b_batch"), [((), (2, 3)), ((2, 3), ()), ((2, 1), (1, 3)), ((2, 3), (3,))])
def test_batches_broadcast(cuda_device, a_batch, b_batch):
    x, y = placeholder("x", *a_batch, 5, 34), placeholder("y", *b_batch, 34, 12)
    (p, q), result = run(cuda_device, [x, y], topi.nn.batch_matmul(x, y))
    np.testing.assert_allclose(result, p @ q + 1, rtol=1e-4, atol=1e-4)


def windows(x, kernel, strides, padding, dilation):
    """(N, spatial out..., C, kernel...) of x (N, spatial..., C)."""
    rank = len(kernel)
    pads = [(0, 0), *zip(padding[:rank], padding[rank:], strict=True), (0, 0)]
    padded = np.pad(x, pads)
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    view = np.lib.stride_tricks.sliding_window_view(padded, spans, axis=range(1, rank + 1))
    view = view[(slice(None), *[slice(None, None, s) for s in strides])]
    return view[(..., *[slice(None, None, d) for d in dilation])]


def convolution(x, w, strides, padding, dilation, groups):
    """x (N, spatial..., C), w (O, I, kernel...): (N, spatial..., O)."""
    view = windows(x, w.shape[2:], strides, padding, dilation)
    rank = w.ndim - 2
    parts = []
    for g in range(groups):
        per_group, outputs = w.shape[1], w.shape[0] // groups
        inside = view[(*[slice(None)] * (rank + 1), slice(g * per_group, (g + 1) * per_group))]
        weight = w[g * outputs : (g + 1) * outputs]
        parts.append(np.tensordot(inside, weight, axes=(range(rank + 1, inside.ndim), range(1, w.ndim))))
    return np.concatenate(parts, axis=-1)


CONVOLUTIONS = [
    ((1, 9, 10, 8), (12, 8, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1),
    ((2, 7, 7, 5), (7, 5, 3, 2), (2, 1), (1, 0, 2, 1), (1, 2), 1),
    ((1, 12, 12, 3), (16, 3, 7, 7), (2, 2), (3, 3, 3, 3), (1, 1), 1),
    ((2, 6, 6, 16), (24, 16, 1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 1),
    ((1, 6, 5, 12), (18, 4, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 3),
    ((1, 20, 10), (6, 10, 5), (2,), (2, 2), (1,), 1),
    ((1, 4, 5, 6, 4), (8, 4, 2, 3, 3), (1, 1, 1), (0, 1, 1, 1, 1, 1), (1, 1, 1), 1),
]


@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize("case", CONVOLUTIONS, ids=lambda c: "x".join(map(str, c[1])))
def test_convolution(cuda_device, case, channels_last):
    shape, kernel, strides, padding, dilation, groups = case
    spatial = "DHW"[-len(strides) :]
    data_layout = f"N{spatial}C" if channels_last else f"NC{spatial}"
    kernel_layout = f"{spatial}IO" if channels_last else f"OI{spatial}"
    x = placeholder("x", *(shape if channels_last else (shape[0], shape[-1], *shape[1:-1])))
    w = placeholder("w", *((*kernel[2:], kernel[1], kernel[0]) if channels_last else kernel))
    out = topi.nn.conv(x, w, strides, padding, dilation, groups, data_layout, kernel_layout)
    (a, b), result = run(cuda_device, [x, w], out)
    a = a if channels_last else np.moveaxis(a, 1, -1)
    b = np.moveaxis(b, (-1, -2), (0, 1)) if channels_last else b
    result = result if channels_last else np.moveaxis(result, 1, -1)
    np.testing.assert_allclose(result, convolution(a, b, strides, padding, dilation, groups) + 1, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("transposes", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("dims", [(2, 40, 72, 104), (1, 9, 33, 97), (1, 8, 24, 16)])
def test_tensor_cores(cuda_device, dims, transposes, dtype):
    b, m, n, k = dims
    x = placeholder("x", b, *((k, m) if transposes[0] == "t" else (m, k)), dtype=dtype)
    y = placeholder("y", b, *((n, k) if transposes[1] == "t" else (k, n)), dtype=dtype)
    out = topi.nn.batch_matmul(x, y, transposes[0] == "t", transposes[1] == "t", out_dtype="float32")
    (p, q), result = run(cuda_device, [x, y], out)
    p, q = p.astype("float32"), q.astype("float32")
    expected = (p.swapaxes(1, 2) if transposes[0] == "t" else p) @ (q.swapaxes(1, 2) if transposes[1] == "t" else q)
    np.testing.assert_allclose(result, expected + 1, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("transpose_b", [True, False])
@pytest.mark.parametrize("dims", [(40, 72, 128), (5, 9, 48)])
def test_byte_products(cuda_device, dims, transpose_b):
    m, n, k = dims
    x, w = placeholder("x", m, k, dtype="int8"), placeholder("w", *((n, k) if transpose_b else (k, n)), dtype="int8")
    out = topi.nn.batch_matmul(x, w, transpose_b=transpose_b, out_dtype="int32")
    (a, b), result = execute(cuda_device, [x, w], out)
    np.testing.assert_array_equal(result, a.astype("int32") @ (b.T if transpose_b else b).astype("int32"))


@pytest.mark.parametrize("transpose_b", [True, False])
@pytest.mark.parametrize("dims", [(40, 72, 128), (5, 9, 47)])
def test_tf32_is_an_option(cuda_device, dims, transpose_b):
    m, n, k = dims
    x, w = placeholder("x", m, k), placeholder("w", *((n, k) if transpose_b else (k, n)))
    out = topi.nn.batch_matmul(x, w, transpose_b=transpose_b)
    assert "mma" not in str(te.lower(schedule_for([out], Target(TARGET)), [x, w, out]))
    assert "rc_mma_tfloat32" in str(te.lower(schedule_for([out], Target(TARGET + " -tf32")), [x, w, out]))
    (a, b), result = execute(cuda_device, [x, w], out, options=" -tf32")
    np.testing.assert_allclose(result, a @ (b.T if transpose_b else b), rtol=1e-2, atol=5e-2)


@pytest.mark.parametrize("case", [CONVOLUTIONS[i] for i in (0, 3, 4)], ids=lambda c: "x".join(map(str, c[1])))
def test_convolution_on_tensor_cores(cuda_device, case):
    shape, kernel, strides, padding, dilation, groups = case
    x = placeholder("x", *shape, dtype="float16")
    w = placeholder("w", *kernel[2:], kernel[1], kernel[0], dtype="float16")
    out = topi.nn.conv(x, w, strides, padding, dilation, groups, "NHWC", "HWIO", out_dtype="float32")
    (a, b), result = run(cuda_device, [x, w], out)
    a, b = a.astype("f"), np.moveaxis(b, (-1, -2), (0, 1)).astype("f")
    expected = convolution(a, b, strides, padding, dilation, groups)
    np.testing.assert_allclose(result, expected + 1, rtol=1e-4, atol=1e-2)


def test_an_epilogue_is_fused_in_dimensions_of_one_element_too(cuda_device):
    x, w, b = placeholder("x", 1, 40), placeholder("w", 30, 40), placeholder("b", 30)
    out = topi.add(topi.nn.dense(x, w), b)
    func = te.lower(schedule_for([out], Target(TARGET)), [x, w, b, out])["main"]
    blocks = [a for a in collect(func.body, AttrStmt) if getattr(a.subject, "thread_tag", "") == "blockIdx.x"]
    assert len(blocks) == 1, "one kernel"
    (p, q, r), result = execute(cuda_device, [x, w, b], out)
    np.testing.assert_allclose(result, p @ q.T + r, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("epilogue", [False, True])
@pytest.mark.parametrize("case", [("float32", 3, 40, 700), ("float16", 20, 24, 1024), ("float16", 1, 9, 513)])
def test_split_k(cuda_device, case, epilogue):
    dtype, m, n, k = case
    x, w = placeholder("x", m, k, dtype=dtype), placeholder("w", n, k, dtype=dtype)
    out = topi.nn.dense(x, w, out_dtype="float32")
    (a, b), result = (run if epilogue else execute)(cuda_device, [x, w], out)
    expected = a.astype("float32") @ b.T.astype("float32") + epilogue
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-3)


def test_split_k_of_a_deep_convolution(cuda_device):
    x, w = placeholder("x", 1, 4, 4, 96), placeholder("w", 3, 3, 96, 16)
    out = topi.nn.conv(x, w, (1, 1), (1, 1, 1, 1), (1, 1), 1, "NHWC", "HWIO")
    assert "partials" in str(te.lower(schedule_for([out], Target(TARGET)), [x, w, out]))
    (a, b), result = run(cuda_device, [x, w], out)
    expected = convolution(a, np.moveaxis(b, (-1, -2), (0, 1)), (1, 1), (1, 1, 1, 1), (1, 1), 1)
    np.testing.assert_allclose(result, expected + 1, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(("channels", "groups"), [(8, 4), (16, 2), (64, 2)])
def test_groups_of_any_size(cuda_device, channels, groups):
    x, w = placeholder("x", 1, 6, 5, channels), placeholder("w", 3, 3, channels // groups, channels)
    out = topi.nn.conv(x, w, (1, 1), (1, 1, 1, 1), (1, 1), groups, "NHWC", "HWIO")
    (a, b), result = run(cuda_device, [x, w], out)
    expected = convolution(a, np.moveaxis(b, (-1, -2), (0, 1)), (1, 1), (1, 1, 1, 1), (1, 1), groups)
    np.testing.assert_allclose(result, expected + 1, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("channels_last", [True, False])
def test_transposed_convolution(cuda_device, channels_last):
    shape, kernel = (1, 5, 6, 20), (20, 12, 3, 3)
    x = placeholder("x", *(shape if channels_last else (1, 20, 5, 6)))
    w = placeholder("w", *kernel)
    layout = "NHWC" if channels_last else "NCHW"
    out = topi.nn.conv_transpose(x, w, (2, 2), (1, 1, 1, 1), (1, 1), (1, 1), 1, layout, "IOHW")
    (a, b), result = run(cuda_device, [x, w], out)
    a = a if channels_last else np.moveaxis(a, 1, -1)
    spread = np.zeros((1, 10, 12, 20), "float32")
    spread[:, ::2, ::2] = a
    flipped = np.ascontiguousarray(b[:, :, ::-1, ::-1].swapaxes(0, 1))
    expected = convolution(spread, flipped, (1, 1), (1, 1, 1, 1), (1, 1), 1)
    result = result if channels_last else np.moveaxis(result, 1, -1)
    np.testing.assert_allclose(result, expected + 1, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_dynamic_sizes(cuda_device, dtype):
    rows, target = te.size_var("rows"), Target(TARGET)
    x, w = te.placeholder((rows, 40), dtype, "x"), placeholder("w", 36, 40, dtype=dtype)
    image, kernel = te.placeholder((rows, 6, 6, 8), dtype, "image"), placeholder("kernel", 3, 3, 8, 12, dtype=dtype)
    dense = topi.nn.dense(x, w, out_dtype="float32")
    conv = topi.nn.conv(image, kernel, (1, 1), (1, 1, 1, 1), (1, 1), 1, "NHWC", "HWIO", out_dtype="float32")
    products = backend.build(te.lower(schedule_for([dense], target), [x, w, dense]), target=target)
    images = backend.build(te.lower(schedule_for([conv], target), [image, kernel, conv]), target=target)
    b, c = random(w), random(kernel)
    for n in (1, 7, 65):
        a = RNG.standard_normal((n, 40)).astype(dtype)
        result = backend.nd.empty((n, 36), "float32", cuda_device)
        products(backend.nd.array(a, cuda_device), backend.nd.array(b, cuda_device), result)
        np.testing.assert_allclose(result.numpy(), a.astype("f") @ b.T.astype("f"), rtol=1e-4, atol=1e-3)
        a = RNG.standard_normal((n, 6, 6, 8)).astype(dtype)
        result = backend.nd.empty((n, 6, 6, 12), "float32", cuda_device)
        images(backend.nd.array(a, cuda_device), backend.nd.array(c, cuda_device), result)
        weights = np.moveaxis(c, (-1, -2), (0, 1)).astype("f")
        expected = convolution(a.astype("f"), weights, (1, 1), (1, 1, 1, 1), (1, 1), 1)
        np.testing.assert_allclose(result.numpy(), expected, rtol=1e-4, atol=1e-3)


def instructions(inputs, out):
    """Instruction counts of the kernel of a product, and the compiler's report of it."""
    target = Target(TARGET)
    library = backend.build(te.lower(schedule_for([out], target), [*inputs, out]), target=target).imported_modules[0]
    (report,) = library.report.values()
    try:
        (counts,) = instruction_counts(library.get_source("sass")).values()
    except ModuleError as missing:
        pytest.skip(str(missing))
    return counts, report


@pytest.mark.parametrize(
    ("dtype", "multiply", "read", "ratio"), [("float32", "FFMA", "LDS.128", 16), ("float16", "HMMA", "LDSM", 3)]
)
def test_machine_code_multiplies_more_than_it_loads(dtype, multiply, read, ratio):
    """A step of the product of large matrices: operands are copied asynchronously, nothing is spilled."""
    x, w = placeholder("x", 4096, 4096, dtype=dtype), placeholder("w", 4096, 4096, dtype=dtype)
    counts, report = instructions([x, w], topi.nn.dense(x, w))
    assert report["spill_stores"] == report["spill_loads"] == report["stack"] == 0

    def count(name):
        return sum(n for instruction, n in counts.items() if instruction.startswith(name))

    assert count("LDL") == count("STL") == count("LDG.") == 0 and count("LDGSTS") > 0
    assert count(multiply) >= ratio * count(read) > 0


def test_an_epilogue_on_sums_of_tensor_cores_is_a_loop():
    """Unrolled for each of a thread's 128 accumulators it was 7,800 instructions, and spilled."""
    x, w = placeholder("x", 1024, 768, dtype="float16"), placeholder("w", 3072, 768, dtype="float16")
    counts, report = instructions([x, w], topi.nn.gelu(topi.nn.dense(x, w), approximate=False))
    assert report["threads"] == 256 and report["spill_stores"] == report["stack"] == 0
    assert sum(counts.values()) < 2000


def test_more_rows_than_the_grid_limit():
    x, w = placeholder("x", 3_000_000, 16), placeholder("w", 3, 16)
    out = topi.nn.dense(x, w)
    target = Target(TARGET)
    (device,) = prepare(te.lower(schedule_for([out], target), [x, w, out]), target)
    assert verify([device], target) == []


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_elementwise_producers_are_fused_into_the_copy(cuda_device, dtype):
    x, w = placeholder("x", 20, 48, dtype=dtype), placeholder("w", 24, 48, dtype=dtype)
    bent = te.compute(x.shape, lambda i, j: te.max(x(i, j), te.const(0, dtype)), name="bent", tag="elemwise")
    (a, b), result = run(cuda_device, [x, w], topi.nn.dense(bent, w, out_dtype="float32"))
    expected = np.maximum(a, 0).astype("f") @ b.T.astype("f") + 1
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-3)


def test_outputs_that_can_not_be_fused_are_separate_kernels(cuda_device):
    x, w = placeholder("x", 6, 40), placeholder("w", 8, 40)
    product = topi.nn.dense(x, w)
    transposed = te.compute((8, 6), lambda i, j: product(j, i) * 2.0, name="transposed", tag="injective")
    (a, b), both, alone = execute(cuda_device, [x, w], transposed, product)
    np.testing.assert_allclose(alone, a @ b.T, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(both, 2 * (a @ b.T).T, rtol=1e-4, atol=1e-4)
