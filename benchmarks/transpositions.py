"""Transposes and layout changes of real models against copies of as many bytes, interleaved in the same run.

    python -m benchmarks.transpositions [--threads 1] [--megabytes 128] [--only "uint8"] [--rounds 5]

Types of one to eight bytes; matrices whose rows are whole pages, odd, or whole cache lines; NCHW to NHWC and back;
attention heads; batches of small matrices; windows, blocks and groups; fused elementwise operators. The method is that
of `benchmarks.bandwidth`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from benchmarks.bandwidth import Case, run_program
from relayc import relay
from relayc.relay.expr import Expr, Var
from relayc.te.dtype import dtype as as_dtype

_CHANNELS = (3, 32, 64, 80, 96, 128, 255)
_SQUARES = ((64, 64), (49, 49), (128, 64), (49, 32))


def cases(nbytes: int) -> Iterator[Case]:
    """Every case, reading and writing about `nbytes`."""

    def case(
        name: str, kind: str, build: Callable[[Expr], Expr], count: Callable[[int], Sequence[int]], share: float = 0.5
    ) -> Case:
        """`count` gives the input's shape for its number of elements, which take `share` of the bytes."""
        x = Var("x", relay.TensorType(tuple(count(int(nbytes * share) // as_dtype(kind).nbytes)), kind))
        return Case(f"{name}, {kind}", relay.Function((x,), build(x)))

    def transposed(name: str, kind: str, axes: Sequence[int], count: Callable[[int], Sequence[int]]) -> Case:
        return case(name, kind, lambda x: relay.transpose(x, tuple(axes)), count)

    for kind in ("int8", "bool", "float16", "bfloat16", "float32", "int64"):
        yield transposed("rows of 2500", kind, (1, 0), lambda n: (n // 2500 // 64 * 64, 2500))
        yield transposed("rows of 2501, odd number of rows", kind, (1, 0), lambda n: (n // 2501 // 64 * 64 + 1, 2501))
        yield transposed(
            "rows of 4096, multiple of 1024 rows", kind, (1, 0), lambda n: (n // 4096 // 1024 * 1024, 4096)
        )
    for kind in ("uint8", "float16", "float32"):
        for c in _CHANNELS:
            yield transposed(f"NCHW to NHWC, {c} channels", kind, (0, 2, 3, 1), lambda n, c=c: (1, c, *_sides(n // c)))
            yield transposed(f"NHWC to NCHW, {c} channels", kind, (0, 3, 1, 2), lambda n, c=c: (1, *_sides(n // c), c))
        yield transposed(
            "NCHW to NHWC, 128 x 64 x 64", kind, (0, 2, 3, 1), lambda n: (n // (128 * 64 * 64), 128, 64, 64)
        )
        for b, h, d in ((4, 12, 64), (1, 6, 80)):
            yield transposed(f"{h} heads of {d}", kind, (0, 2, 1, 3), lambda n, s=(b, h, d): _heads(n, *s))
            yield transposed(f"{h} heads of {d}, transposed", kind, (0, 2, 3, 1), lambda n, s=(b, h, d): _heads(n, *s))
        for r, c in _SQUARES:
            yield transposed(f"matrices of {r} x {c}", kind, (0, 2, 1), lambda n, r=r, c=c: (n // r // c, r, c))
        yield transposed("(N, 197, 768)", kind, (0, 2, 1), lambda n: (n // 197 // 768, 197, 768))
        yield transposed("(N, 577, 1024)", kind, (0, 2, 1), lambda n: (n // 577 // 1024, 577, 1024))
        yield transposed("512 channels of 13 x 13", kind, (0, 2, 3, 1), lambda n: (n // 512 // 169, 512, 13, 13))
        yield case("depth to space", kind, _depth_to_space, lambda n: (1, 64, *_sides(n // 64)))
        yield case("pixel shuffle", kind, _pixel_shuffle, lambda n: (1, 64, *_sides(n // 64)))
        yield case("space to depth", kind, _space_to_depth, lambda n: (1, 64, *_sides(n // 64)))
        yield case("patch merging", kind, _patch_merging, lambda n: (n // 28 // 28 // 192, 28, 28, 192))
        yield case("channel shuffle", kind, _channel_shuffle, lambda n: (1, 64, *_sides(n // 64)))
        yield case("channel shuffle, NHWC", kind, _last_shuffle, lambda n: (1, *_sides(n // 64), 64))
        yield case("window partition 7 x 7", kind, _window_partition, lambda n: (n // 56 // 56 // 96, 56, 56, 96))
        yield case("window reverse 7 x 7", kind, _window_reverse, lambda n: (n // 56 // 56 // 96 * 64, 49, 96))
        yield case("query, key, value split", kind, _split_heads, lambda n: (n // 49 // 288, 49, 3, 3, 32))
        yield case("patches", kind, _patches, lambda n: (n // 3 // 224 // 224, 3, 224, 224))
        yield case("patches of 2 x 2 to NCHW", kind, _planes_of_patches, lambda n: (n // 65536, 1024, 64))
        yield case("NCHW to patches of 2 x 2", kind, _patches_of_planes, lambda n: (n // 16384, 4, 64, 64))
    yield case("image to NCHW, normalised", "uint8", _scaled, lambda n: (1, *_sides(n // 3), 3), 0.2)
    yield case("518 x 518 to NCHW, normalised", "uint8", _scaled, lambda n: (n // 3 // 518 // 518, 518, 518, 3), 0.2)
    yield case("NCHW to image, scaled", "uint8", _unscaled, lambda n: (1, 3, *_sides(n // 3)), 0.2)
    yield case("cast to float32", "uint8", lambda x: relay.cast(relay.transpose(x), "float32"), _matrix, 0.2)
    yield case("cast to float16", "float32", lambda x: relay.cast(relay.transpose(x), "float16"), _matrix, 2 / 3)
    yield case("relu before", "float32", lambda x: relay.transpose(relay.nn.relu(x)), _matrix)
    yield case("gelu after", "float32", lambda x: relay.nn.gelu(relay.transpose(x)), _matrix)
    yield case("channel bias, to NHWC", "float32", _biased, lambda n: (1, 64, *_sides(n // 64)))
    yield case("channel bias, to NCHW", "float32", _biased_first, lambda n: (1, *_sides(n // 64), 64))
    yield case("quantisation, to NCHW", "float32", _quantised, lambda n: (1, *_sides(n // 64), 64), 0.8)


def _sides(area: int) -> tuple[int, int]:
    """The sides of an image: multiples of 8, not both a power of two."""
    side = max(int(area**0.5) // 8 * 8, 8)
    return side, side - 8 if side & (side - 1) == 0 and side > 8 else side


def _matrix(elements: int) -> tuple[int, int]:
    return elements // 2500 // 64 * 64, 2500


def _heads(elements: int, batch: int, heads: int, depth: int) -> tuple[int, ...]:
    return batch, elements // batch // heads // depth, heads, depth


def _shape(x: Expr) -> tuple[int, ...]:
    return x.ty.shape  # type: ignore[union-attr]


def _depth_to_space(x: Expr) -> Expr:
    n, c, h, w = _shape(x)
    blocks = relay.transpose(relay.reshape(x, (n, 2, 2, c // 4, h, w)), (0, 3, 4, 1, 5, 2))
    return relay.reshape(blocks, (n, c // 4, 2 * h, 2 * w))


def _pixel_shuffle(x: Expr) -> Expr:
    n, c, h, w = _shape(x)
    blocks = relay.transpose(relay.reshape(x, (n, c // 4, 2, 2, h, w)), (0, 1, 4, 2, 5, 3))
    return relay.reshape(blocks, (n, c // 4, 2 * h, 2 * w))


def _space_to_depth(x: Expr) -> Expr:
    n, c, h, w = _shape(x)
    blocks = relay.transpose(relay.reshape(x, (n, c, h // 2, 2, w // 2, 2)), (0, 3, 5, 1, 2, 4))
    return relay.reshape(blocks, (n, 4 * c, h // 2, w // 2))


def _patch_merging(x: Expr) -> Expr:
    shape, firsts = _shape(x), ((0, 0), (1, 0), (0, 1), (1, 1))
    parts = [relay.strided_slice(x, (0, *first, 0), shape, (1, 2, 2, 1)) for first in firsts]
    return relay.concatenate(parts, axis=3)


def _channel_shuffle(x: Expr) -> Expr:
    n, c, h, w = _shape(x)
    return relay.reshape(relay.transpose(relay.reshape(x, (n, 4, c // 4, h, w)), (0, 2, 1, 3, 4)), (n, c, h, w))


def _last_shuffle(x: Expr) -> Expr:
    n, h, w, c = _shape(x)
    return relay.reshape(relay.transpose(relay.reshape(x, (n, h, w, 4, c // 4)), (0, 1, 2, 4, 3)), (n, h, w, c))


def _window_partition(x: Expr) -> Expr:
    n, h, w, c = _shape(x)
    parts = relay.transpose(relay.reshape(x, (n, h // 7, 7, w // 7, 7, c)), (0, 1, 3, 2, 4, 5))
    return relay.reshape(parts, (-1, 49, c))


def _window_reverse(x: Expr) -> Expr:
    n, _, c = _shape(x)
    parts = relay.transpose(relay.reshape(x, (n // 64, 8, 8, 7, 7, c)), (0, 1, 3, 2, 4, 5))
    return relay.reshape(parts, (n // 64, 56, 56, c))


def _split_heads(x: Expr) -> Expr:
    return relay.transpose(x, (2, 0, 3, 1, 4))


def _patches(x: Expr) -> Expr:
    n, c, h, w = _shape(x)
    parts = relay.transpose(relay.reshape(x, (n, c, h // 16, 16, w // 16, 16)), (0, 2, 4, 3, 5, 1))
    return relay.reshape(parts, (n, h * w // 256, 256 * c))


def _planes_of_patches(x: Expr) -> Expr:
    """Latents of 16 channels, channels last within each patch, to NCHW."""
    n, _, _ = _shape(x)
    parts = relay.transpose(relay.reshape(x, (n, 32, 32, 2, 2, 16)), (0, 5, 1, 3, 2, 4))
    return relay.reshape(parts, (n, 16, 64, 64))


def _patches_of_planes(x: Expr) -> Expr:
    n, c, h, w = _shape(x)
    parts = relay.transpose(relay.reshape(x, (n, c, h // 2, 2, w // 2, 2)), (0, 2, 4, 3, 5, 1))
    return relay.reshape(parts, (n, h * w // 4, 4 * c))


def _scaled(x: Expr) -> Expr:
    planes = relay.cast(relay.transpose(x, (0, 3, 1, 2)), "float32")
    return relay.divide(relay.subtract(planes, _per_channel(3, 116.0)), _per_channel(3, 58.0))


def _unscaled(x: Expr) -> Expr:
    return relay.multiply(relay.cast(relay.transpose(x, (0, 2, 3, 1)), "float32"), relay.const(np.float32(1 / 255)))


def _biased(x: Expr) -> Expr:
    return relay.nn.relu(relay.transpose(relay.add(x, _per_channel(64, 0.5)), (0, 2, 3, 1)))


def _biased_first(x: Expr) -> Expr:
    bias = relay.const(np.linspace(0, 1, 64, dtype=np.float32))
    return relay.transpose(relay.nn.relu(relay.add(x, bias)), (0, 3, 1, 2))


def _quantised(x: Expr) -> Expr:
    values = relay.clip(relay.round(relay.multiply(x, relay.const(np.float32(20)))), -128, 127)
    return relay.transpose(relay.cast(values, "int8"), (0, 3, 1, 2))


def _per_channel(channels: int, first: float) -> Expr:
    return relay.const((first + np.arange(channels, dtype=np.float32)).reshape(channels, 1, 1))


if __name__ == "__main__":
    run_program("transpositions", cases, __doc__ or "", "128", 5)
