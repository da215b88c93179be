"""Normalisations: several stages, one kernel. Statistics are kept in float32 for low-precision floats.

Stages: "<name>_mean", "<name>_variance" (mean of the squared difference from the mean: two passes, no cancellation),
"<name>_scale" (1 / sqrt(variance + epsilon), one for each row), and the anchor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from relayc import te
from relayc.te import Tensor
from relayc.te.tir import Dim, PrimExpr
from relayc.topi.moments import Moments
from relayc.topi.nn.pad import pad_spatial
from relayc.topi.tag import BROADCAST, ELEMWISE
from relayc.topi.utils import accumulator_type, num_elements

__all__ = [
    "batch_norm", "group_norm", "group_norm_by_moments", "instance_norm", "l2_normalize", "layer_norm",
    "layer_norm_by_moments", "lrn", "rms_norm", "standardize", "standardize_by_moments",
]  # fmt: skip

_LARGEST = {"float32": 3.4028234663852886e38, "float64": 1.7976931348623157e308}

_ROUNDING = {"float32": 2.0**-24, "float64": 2.0**-53}
"""Half a unit in the last place of 1, by type."""

IndexOf = Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]]


def _mean_of(
    x: Tensor,
    rows: Sequence[Dim],
    reduced: Sequence[Dim],
    element: Callable[..., PrimExpr],
    name: str,
    trailing: bool = True,
) -> Tensor:
    """The mean of ``element(row, taps)`` over the index space `reduced`, for each row.

    `trailing`: the reduced elements of a row are contiguous.
    """
    ks = [te.reduce_axis((0, d), name=f"k{n}") for n, d in enumerate(reduced)]
    wide = accumulator_type(x.dtype)
    total = te.compute(
        tuple(rows),
        lambda *i: te.sum(element(i, ks), axis=ks),
        name=f"{name}_sum",
        tag=f"{name}_sum",
        attrs={"reduces_trailing_axes": trailing},
    )
    count = te.cast(wide, num_elements(reduced))
    return te.compute(tuple(rows), lambda *i: total(*i) / count, name=name, tag=ELEMWISE)


def _inverse_deviation(variance: Tensor, epsilon: float, name: str, margin: float = 0) -> Tensor:
    """1 / (sqrt(variance + epsilon) + margin)"""

    def body(*i: Any) -> PrimExpr:
        squared = variance(*i) + te.const(epsilon, variance.dtype)
        return 1 / (te.sqrt(squared) + te.const(margin, variance.dtype)) if margin else te.rsqrt(squared)

    return te.compute(variance.shape, body, name=f"{name}_scale", tag=ELEMWISE)


def _standardized(
    x: Tensor, rows: Sequence[Dim], reduced: Sequence[Dim], source: IndexOf, epsilon: float, name: str, trailing: bool
) -> tuple[Tensor, Tensor]:
    """Mean and 1 / standard deviation of each row; ``source(row, taps)`` is an element's index in x."""
    wide = accumulator_type(x.dtype)

    def distance_squared(i: Sequence[Any], ks: Sequence[Any]) -> PrimExpr:
        distance = te.cast(wide, x(*source(i, ks))) - mean(*i)
        return distance * distance

    mean = _mean_of(x, rows, reduced, lambda i, ks: te.cast(wide, x(*source(i, ks))), f"{name}_mean", trailing)
    variance = _mean_of(x, rows, reduced, distance_squared, f"{name}_variance", trailing)
    return mean, _inverse_deviation(variance, epsilon, name)


def layer_norm(x: Tensor, gamma: Tensor, beta: Tensor | None, axis: int, epsilon: float) -> Tensor:
    """(x - mean) / sqrt(variance + epsilon) * gamma + beta over dimensions `axis` and later ones.

    gamma and beta have the shape of those dimensions.
    """
    rows, reduced = x.shape[:axis], x.shape[axis:]
    mean, scale = _standardized(x, rows, reduced, lambda i, ks: (*i, *ks), epsilon, "layer_norm", trailing=True)
    attrs = {"axes": tuple(range(axis, x.ndim)), "epsilon": epsilon, "shifted": beta is not None}
    return _standardized_rows(x, gamma, beta, axis, mean, scale, attrs)


def _standardized_rows(
    x: Tensor,
    gamma: Tensor,
    beta: Tensor | None,
    axis: int,
    mean: Tensor,
    scale: Tensor,
    attrs: Mapping[str, Any] | None = None,
) -> Tensor:
    """The anchor of a layer normalisation, from row statistics."""
    wide = mean.dtype

    def body(*i: Any) -> PrimExpr:
        row, column = i[:axis], i[axis:]
        value = (te.cast(wide, x(*i)) - mean(*row)) * scale(*row) * te.cast(wide, gamma(*column))
        return te.cast(x.dtype, value if beta is None else value + te.cast(wide, beta(*column)))

    return te.compute(x.shape, body, name="layer_norm", tag="layer_norm", attrs=attrs)


def rms_norm(x: Tensor, gamma: Tensor, axis: int, epsilon: float) -> Tensor:
    """x / sqrt(mean of squares + epsilon) * gamma over dimensions `axis` and later ones."""
    wide = accumulator_type(x.dtype)

    def square(i: Sequence[Any], ks: Sequence[Any]) -> PrimExpr:
        value = te.cast(wide, x(*i, *ks))
        return value * value

    squares = _mean_of(x, x.shape[:axis], x.shape[axis:], square, "rms_norm_variance")
    scale = _inverse_deviation(squares, epsilon, "rms_norm")

    def body(*i: Any) -> PrimExpr:
        return te.cast(x.dtype, te.cast(wide, x(*i)) * scale(*i[:axis]) * te.cast(wide, gamma(*i[axis:])))

    return te.compute(x.shape, body, name="rms_norm", tag="rms_norm", attrs={"axes": tuple(range(axis, x.ndim))})


def instance_norm(x: Tensor, gamma: Tensor, beta: Tensor, axis: int, epsilon: float) -> Tensor:
    """Each (batch, channel) standardised over the other dimensions, then * gamma + beta of the channel."""
    others = [a for a in range(x.ndim) if a not in (0, axis)]
    rows, reduced = (x.shape[0], x.shape[axis]), [x.shape[a] for a in others]

    def source(i: Sequence[Any], ks: Sequence[Any]) -> Sequence[Any]:
        at = {0: i[0], axis: i[1], **dict(zip(others, ks, strict=True))}
        return [at[a] for a in range(x.ndim)]

    mean, scale = _standardized(x, rows, reduced, source, epsilon, "instance_norm", axis == 1)
    wide = mean.dtype

    def body(*i: Any) -> PrimExpr:
        row, c = (i[0], i[axis]), i[axis]
        value = (te.cast(wide, x(*i)) - mean(*row)) * scale(*row)
        return te.cast(x.dtype, value * te.cast(wide, gamma(c)) + te.cast(wide, beta(c)))

    attrs = {"axis": axis, "epsilon": epsilon}
    return te.compute(x.shape, body, name="instance_norm", tag="instance_norm", attrs=attrs)


def group_norm(x: Tensor, gamma: Tensor, beta: Tensor, num_groups: int, axis: int, epsilon: float) -> Tensor:
    """Each (batch, group of channels) standardised over its channels and the other dimensions, then * gamma + beta."""
    others = [a for a in range(x.ndim) if a not in (0, axis)]
    size = x.shape[axis] // num_groups
    rows, reduced = (x.shape[0], num_groups), [size, *[x.shape[a] for a in others]]

    def source(i: Sequence[Any], ks: Sequence[Any]) -> Sequence[Any]:
        at = {0: i[0], axis: i[1] * size + ks[0], **dict(zip(others, ks[1:], strict=True))}
        return [at[a] for a in range(x.ndim)]

    mean, scale = _standardized(x, rows, reduced, source, epsilon, "group_norm", axis == 1)
    wide = mean.dtype

    def body(*i: Any) -> PrimExpr:
        row, c = (i[0], i[axis] // size), i[axis]
        value = (te.cast(wide, x(*i)) - mean(*row)) * scale(*row)
        return te.cast(x.dtype, value * te.cast(wide, gamma(c)) + te.cast(wide, beta(c)))

    attrs = {"axis": axis, "group_size": size, "epsilon": epsilon}
    return te.compute(x.shape, body, name="group_norm", tag="group_norm", attrs=attrs)


def group_norm_by_moments(
    moments: Moments, gamma: Tensor, beta: Tensor, axis: int, group_size: int, epsilon: float, pixels: int = 1
) -> Tensor:
    """`group_norm` from the moments of each channel: its elements times a factor of the channel, plus a shift.

    `axis` holds the channels of `pixels` pixels, concatenated. Stages besides those of `Moments`: "<name>_group" of
    groups, "<name>" of channels.
    """
    x, wide = moments.x, moments.wide
    batch, columns = x.shape[0], x.shape[axis]
    channels = columns // pixels if pixels > 1 else columns
    elements = num_elements([*[d for a, d in enumerate(x.shape) if a not in (0, axis)], pixels * group_size])
    count = te.cast(wide, elements)

    def of_groups(sums: Tensor, name: str) -> Tensor:
        j, k = te.reduce_axis((0, pixels), name="j"), te.reduce_axis((0, group_size), name="k")
        return te.compute(
            (batch, channels // group_size),
            lambda b, g: te.sum(sums(b, j * channels + g * group_size + k), axis=[j, k]),
            name=f"{name}_group",
            attrs={"reduces_last_axis": True},
        )

    def of_columns(name: str, value: Callable[[PrimExpr, PrimExpr, PrimExpr], PrimExpr]) -> Tensor:
        """``value(image, column, channel)``"""
        return te.compute(
            (batch, columns), lambda b, c: value(b, c, c % channels if pixels > 1 else c), name=name, tag=ELEMWISE
        )

    sums = of_groups(moments.sum(), "group_norm_mean")
    mean = of_columns("group_norm_mean", lambda b, _, c: sums(b, c // group_size) / count)
    squares = of_groups(moments.squared_distances(mean), "group_norm_scale")

    def scale(b: PrimExpr, c: PrimExpr) -> PrimExpr:
        variance = squares(b, c // group_size) / count
        return te.rsqrt(variance + te.const(epsilon, wide)) * te.cast(wide, gamma(c))

    factor = of_columns("group_norm_scale", lambda b, _, c: scale(b, c))
    shift = of_columns("group_norm_shift", lambda b, at, c: te.cast(wide, beta(c)) - mean(b, at) * factor(b, at))

    def body(*i: Any) -> PrimExpr:
        at = (i[0], i[axis])
        return te.cast(x.dtype, te.cast(wide, x(*i)) * factor(*at) + shift(*at))

    return te.compute(x.shape, body, name="group_norm", tag="group_norm")


def layer_norm_by_moments(
    moments: Moments, gamma: Tensor, beta: Tensor | None, axis: int, epsilon: float
) -> Tensor:
    """`layer_norm` over dimensions `axis` and later ones, from their moments."""
    x, wide = moments.x, moments.wide
    count = te.cast(wide, num_elements(x.shape[axis:]))
    sums, rows = moments.sum(), x.shape[:axis]
    mean = te.compute(rows, lambda *i: sums(*i) / count, name="layer_norm_mean", tag=ELEMWISE)
    squares = moments.squared_distances(mean)
    variance = te.compute(rows, lambda *i: squares(*i) / count, name="layer_norm_variance", tag=ELEMWISE)
    return _standardized_rows(x, gamma, beta, axis, mean, _inverse_deviation(variance, epsilon, "layer_norm"))


def batch_norm(
    x: Tensor, gamma: Tensor, beta: Tensor, mean: Tensor, variance: Tensor, axis: int, epsilon: float
) -> Tensor:
    """(x - mean) / sqrt(variance + epsilon) * gamma + beta with precomputed statistics, all per channel (`axis`)."""
    wide = accumulator_type(x.dtype)

    def body(*i: Any) -> PrimExpr:
        c = i[axis]
        scale = te.rsqrt(te.cast(wide, variance(c)) + te.const(epsilon, wide)) * te.cast(wide, gamma(c))
        return te.cast(x.dtype, (te.cast(wide, x(*i)) - te.cast(wide, mean(c))) * scale + te.cast(wide, beta(c)))

    return te.compute(x.shape, body, name="batch_norm", tag=BROADCAST)


def l2_normalize(x: Tensor, axes: Sequence[int], epsilon: float) -> Tensor:
    """x / sqrt(max(sum of squares over `axes`, epsilon)); stages "l2_sum", "l2_scale" and the anchor."""
    wide = accumulator_type(x.dtype)
    kept = [a for a in range(x.ndim) if a not in axes]
    ks = [te.reduce_axis((0, x.shape[a]), name=f"k{a}") for a in axes]
    rows = tuple([x.shape[a] for a in kept])
    trailing = [*kept, *axes] == list(range(x.ndim))

    def square(*i: Any) -> PrimExpr:
        at = {**dict(zip(kept, i, strict=True)), **dict(zip(axes, ks, strict=True))}
        value = te.cast(wide, x(*[at[a] for a in range(x.ndim)]))
        return te.sum(value * value, axis=ks)

    total = te.compute(rows, square, name="l2_sum", tag="l2_sum", attrs={"reduces_trailing_axes": trailing})
    scale = te.compute(
        rows,
        lambda *i: te.rsqrt(te.maximum(total(*i), te.const(epsilon, wide))),
        name="l2_scale",
        tag=ELEMWISE,
    )

    def body(*i: Any) -> PrimExpr:
        return te.cast(x.dtype, te.cast(wide, x(*i)) * scale(*[i[a] for a in kept]))

    return te.compute(x.shape, body, name="l2_normalize", tag="l2_normalize", attrs={"axes": tuple(axes)})


def standardize(x: Tensor, axes: Sequence[int], epsilon: float, margin: float, *, centred: bool) -> Tensor:
    """(x - mean) / (sqrt(variance + epsilon) + margin) over dimensions `axes`, in ascending order.

    Without `centred` the mean is taken to be 0.
    """
    kept = [a for a in range(x.ndim) if a not in axes]
    rows, reduced, wide = [x.shape[a] for a in kept], [x.shape[a] for a in axes], accumulator_type(x.dtype)
    trailing = [*kept, *axes] == list(range(x.ndim))

    def source(i: Sequence[Any], ks: Sequence[Any]) -> Sequence[Any]:
        at = {**dict(zip(kept, i, strict=True)), **dict(zip(axes, ks, strict=True))}
        return [at[a] for a in range(x.ndim)]

    def distance(i: Sequence[Any], at: Sequence[Any]) -> PrimExpr:
        value = te.cast(wide, x(*at))
        return value - mean(*i) if mean is not None else value

    def squared(i: Sequence[Any], ks: Sequence[Any]) -> PrimExpr:
        value = distance(i, source(i, ks))
        return value * value

    def element(i: Sequence[Any], ks: Sequence[Any]) -> PrimExpr:
        return te.cast(wide, x(*source(i, ks)))

    mean = _mean_of(x, rows, reduced, element, "standardize_mean", trailing) if centred else None
    variance = _mean_of(x, rows, reduced, squared, "standardize_variance", trailing)
    scale = _inverse_deviation(variance, epsilon, "standardize", margin)

    def body(*i: Any) -> PrimExpr:
        row = [i[a] for a in kept]
        return te.cast(x.dtype, distance(row, i) * scale(*row))

    attrs = {"axes": tuple(axes), "epsilon": epsilon, "margin": margin, "centred": centred}
    return te.compute(x.shape, body, name="standardize", tag="standardize", attrs=attrs)


def standardize_by_moments(moments: Moments, epsilon: float, margin: float) -> Tensor:
    """`standardize` over the dimensions of `moments`, from these.

    A deviation below the rounding error of the mean is unknown: dividing by it would magnify the error.
    """
    x, wide, axes = moments.x, moments.wide, list(moments.sizes)
    kept = [a for a in range(x.ndim) if a not in axes]
    count = te.cast(wide, num_elements([x.shape[a] for a in axes]))
    sums, rounding = moments.sum(), te.const(_ROUNDING[wide], wide)
    mean = te.compute(sums.shape, lambda *i: sums(*i) / count, name="standardize_mean", tag=ELEMWISE)
    squares = moments.squared_distances(mean)

    def known(*i: Any) -> PrimExpr:
        least = mean(*i) * rounding
        return te.maximum(squares(*i) / count, least * least)

    variance = te.compute(sums.shape, known, name="standardize_variance", tag=ELEMWISE)
    scale = _inverse_deviation(variance, epsilon, "standardize", margin)

    def body(*i: Any) -> PrimExpr:
        row = [i[a] for a in kept]
        return te.cast(x.dtype, (te.cast(wide, x(*i)) - mean(*row)) * scale(*row))

    return te.compute(x.shape, body, name="standardize", tag="standardize")


def lrn(x: Tensor, size: int, axis: int, alpha: float, beta: float, bias: float) -> Tensor:
    """x / (bias + alpha / size * sum of squares over `size` neighbours along `axis`) ^ beta

    The window of channel c is [c - floor((size - 1) / 2), c + ceil((size - 1) / 2)].
    """
    before, after = (size - 1) // 2, size // 2
    channels = x.shape[axis]
    if isinstance(channels, int):  # the window has at most all channels
        before, after = min(before, max(channels - 1, 0)), min(after, max(channels - 1, 0))
    wide = accumulator_type(x.dtype)
    bordered = pad_spatial(x, (axis,), (before,), (after,), 0)
    k = te.reduce_axis((0, before + 1 + after), name="k")

    def square(*i: Any) -> PrimExpr:
        value = te.cast(wide, bordered(*i[:axis], i[axis] + k, *i[axis + 1 :]))
        return te.sum(value * value, axis=k)

    total = te.compute(x.shape, square, name="lrn_sum", tag="lrn_sum")

    def body(*i: Any) -> PrimExpr:
        base = te.const(bias, wide) + te.const(alpha / size, wide) * total(*i)
        return te.cast(x.dtype, te.cast(wide, x(*i)) * _inverse_power(base, beta, bias > 0 and alpha >= 0))

    return te.compute(x.shape, body, name="lrn", tag="lrn", attrs={"axis": axis})


def _inverse_power(base: PrimExpr, exponent: float, positive: bool) -> PrimExpr:
    """base ^ -exponent, by square roots for some exponents. `positive`: base is known to be."""
    if exponent == 1:
        return 1 / base
    if exponent == 0.5:
        return te.rsqrt(base)
    if exponent == 0.75 and positive:
        root = te.fast_rsqrt(te.minimum(te.const(_LARGEST[base.dtype], base.dtype), base))  # a step from 0 fails
        return root * te.sqrt(root)
    if exponent == 0.75:
        return 1 / (te.sqrt(base) * te.sqrt(te.sqrt(base)))
    return te.power(base, te.const(-exponent, base.dtype))
