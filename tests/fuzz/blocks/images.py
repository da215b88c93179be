"""Blocks of networks of images."""

from __future__ import annotations

import math

from tests.fuzz.blocks.net import Image, Net, Tokens, block
from tests.fuzz.blocks.sequences import attend

__all__: list[str] = []


def convolved(
    net: Net, x: Image, channels: int, kernel: int, *, stride: int = 1, dilation: int = 1, groups: int = 1
) -> Image:
    """A convolution that keeps the size where its stride is 1."""
    weight = net.weight(channels, x.channels // groups, kernel, kernel)
    border = dilation * (kernel - 1) // 2
    how = (
        {"auto_pad": net.choice(("SAME_UPPER", "SAME_LOWER"))}
        if dilation == 1 and net.chance(0.15)
        else {"pads": [border] * 4}
    )
    bias = [net.bias(channels)] if net.chance(0.8) else []
    name = net.op("Conv", x.name, weight, *bias, group=groups, strides=[stride] * 2, dilations=[dilation] * 2,
                  kernel_shape=[kernel] * 2, **how)  # fmt: skip
    return Image(name, channels)


def normed(net: Net, x: Image) -> Image:
    """A normalisation of channels or of groups of them."""
    c = x.channels
    kind = net.choice(("batch", "instance", "group", "layer", "response"))
    if kind == "batch":
        parts = [net.bias(c), net.bias(c), net.bias(c), net.constant(net.numbers.uniform(0.5, 2, c), "float32")]
        return Image(net.op("BatchNormalization", x.name, *parts), c)
    if kind == "instance":
        return Image(net.op("InstanceNormalization", x.name, net.bias(c), net.bias(c)), c)
    if kind == "group":
        groups = net.choice([g for g in (1, 2, 4, 8) if c % g == 0])
        flat = net.op("Reshape", x.name, net.ints(0, groups, -1))
        same = net.op("InstanceNormalization", flat, net.constant([1.0] * groups, "float32"),
                      net.constant([0.0] * groups, "float32"))  # fmt: skip
        back = net.op("Reshape", same, net.op("Shape", x.name))
        return Image(net.op("Add", net.op("Mul", back, net.bias(c, 1, 1)), net.bias(c, 1, 1)), c)
    if kind == "layer":
        last = net.layer_norm(net.transpose(x.name, 0, 2, 3, 1), c)
        return Image(net.transpose(last, 0, 3, 1, 2), c)
    size = net.op("ReduceL2", x.name, net.ints(2, 3))
    share = net.op("Div", size, net.op("Add", net.op("ReduceMean", size, net.ints(1)), net.number(1e-3)))
    return Image(net.op("Add", net.op("Mul", net.op("Mul", x.name, share), net.bias(c, 1, 1)), x.name), c)


@block(Image)
def convolution(net: Net, x: Image) -> Image:
    """One layer of any kind."""
    kind = net.choice(("plain", "plain", "point", "depthwise", "groups", "dilated"))
    kernel, stride = net.choice((3, 3, 5, 7)), net.choice((1, 1, 2))
    channels = net.channels()
    if kind == "point":
        y = convolved(net, x, channels, 1)
    elif kind == "depthwise":
        y = convolved(net, x, x.channels, kernel, stride=stride, groups=x.channels)
    elif kind == "groups":
        y = convolved(
            net, x, x.channels, 3, stride=stride, groups=net.choice([g for g in (1, 2, 3, 4) if x.channels % g == 0])
        )
    elif kind == "dilated":
        y = convolved(net, x, channels, 3, dilation=net.choice((2, 3)))
    else:
        y = convolved(net, x, channels, kernel, stride=stride)
    if net.chance(0.5):
        y = normed(net, y)
    return Image(net.activation(y.name), y.channels)


@block(Image)
def residual(net: Net, x: Image) -> Image:
    """An inverted bottleneck with a gate of channels."""
    inner = convolved(net, x, 2 * x.channels, 1)
    inner = Image(net.activation(inner.name), inner.channels)
    inner = convolved(net, inner, inner.channels, net.choice((3, 5)), groups=inner.channels)
    if net.chance(0.7):
        mean = (
            net.op("GlobalAveragePool", inner.name)
            if net.chance(0.5)
            else net.op("ReduceMean", inner.name, net.ints(2, 3))
        )
        gate = convolved(net, convolved(net, Image(mean, inner.channels), 4, 1), inner.channels, 1)
        opened = net.op(net.choice(("Sigmoid", "HardSigmoid")), gate.name)
        inner = Image(net.op("Mul", inner.name, opened), inner.channels)
    out = normed(net, convolved(net, inner, x.channels, 1))
    return Image(net.op("Add", x.name, out.name), x.channels)


@block(Image)
def pooled(net: Net, x: Image) -> Image:
    """A pooling, or several beside each other."""
    kind, kernel = net.choice(("MaxPool", "AveragePool")), net.choice((2, 3, 3, 5))
    if net.chance(0.25):
        pools = [net.op(kind, x.name, kernel_shape=[k, k], pads=[k // 2] * 4) for k in (3, 5)]
        return convolved(net, Image(net.op("Concat", x.name, *pools, axis=1), 3 * x.channels), x.channels, 1)
    how = {"count_include_pad": net.choice((0, 1))} if kind == "AveragePool" else {}
    name = net.op(kind, x.name, kernel_shape=[kernel] * 2, strides=[net.choice((1, 2, kernel))] * 2,
                  pads=[kernel // 2] * 4, ceil_mode=net.choice((0, 0, 1)), **how)  # fmt: skip
    return Image(name, x.channels)


@block(Image)
def upsampled(net: Net, x: Image) -> Image:
    """Twice the size, one way or another."""
    kind = net.choice(("resize", "transposed", "shuffle", "repeat"))
    if kind == "resize":
        mode = net.choice(("nearest", "linear", "cubic"))
        how = {"nearest": ("asymmetric", "half_pixel"), "linear": ("half_pixel", "align_corners", "pytorch_half_pixel"),
               "cubic": ("half_pixel", "align_corners")}[mode]  # fmt: skip
        extra = {"nearest_mode": "floor"} if mode == "nearest" else {"cubic_coeff_a": -0.75} if mode == "cubic" else {}
        scale = net.choice((2.0, 2.0, 0.5, 1.5))
        if (
            scale != 2.0 and "align_corners" in how
        ):  # what corners are, ONNX and onnxruntime disagree for parts of pixels
            how = ("half_pixel",)
        scales = net.constant([1, 1, scale, scale], "float32")
        name = net.op("Resize", x.name, "", scales, mode=mode, coordinate_transformation_mode=net.choice(how), **extra)
        return Image(name, x.channels)
    if kind == "transposed":
        channels, kernel = net.channels(), net.choice((2, 3, 4))
        how = {2: {}, 3: {"pads": [1] * 4, "output_padding": [1, 1]}, 4: {"pads": [1] * 4}}[kernel]
        weight = net.weight(x.channels, channels, kernel, kernel, depth=x.channels * kernel)
        return Image(net.op("ConvTranspose", x.name, weight, net.bias(channels), strides=[2, 2], **how), channels)
    if kind == "shuffle":
        y = convolved(net, x, 4 * x.channels, 1)
        if net.chance(0.5):
            return Image(net.op("DepthToSpace", y.name, blocksize=2, mode=net.choice(("CRD", "DCR"))), x.channels)
        h, w = net.size(y.name, 2), net.size(y.name, 3)
        apart = net.reshape(y.name, net.size(y.name, 0), x.channels, 2, 2, h, w)
        apart = net.transpose(apart, 0, 1, 4, 2, 5, 3)
        two = net.ints(2)
        return Image(
            net.reshape(apart, net.size(y.name, 0), x.channels, net.op("Mul", h, two), net.op("Mul", w, two)),
            x.channels,
        )
    h, w = net.size(x.name, 2), net.size(x.name, 3)
    five = net.op("Unsqueeze", x.name, net.ints(3))
    wide = net.op("Expand", five, net.sizes(net.size(x.name, 0), x.channels, h, 2, w))
    return Image(net.reshape(wide, net.size(x.name, 0), x.channels, -1, w), x.channels)


@block(Image)
def pyramid(net: Net, x: Image) -> Image:
    """A smaller copy, brought back to the size of the larger one and joined with it."""
    y = convolved(net, x, net.channels(), 3, stride=2)
    y = Image(net.activation(y.name), y.channels)
    if net.chance(0.4):
        y = convolved(net, y, y.channels, 3, stride=2)
    if net.chance(0.5):
        sizes = net.op("Concat", net.op("Shape", y.name, end=2), net.op("Shape", x.name, start=2), axis=0)
    else:
        sizes = net.sizes(net.size(y.name, 0), y.channels, net.size(x.name, 2), net.size(x.name, 3))
    mode, how = net.choice((("nearest", "asymmetric"), ("linear", "half_pixel"), ("linear", "align_corners")))
    extra = {"nearest_mode": "floor"} if mode == "nearest" else {}
    back = net.op("Resize", y.name, "", "", sizes, mode=mode, coordinate_transformation_mode=how, **extra)
    if net.chance(0.5):
        return Image(net.op("Concat", x.name, back, axis=1), x.channels + y.channels)
    return Image(net.op("Add", x.name, convolved(net, Image(back, y.channels), x.channels, 1).name), x.channels)


@block(Image)
def split_and_joined(net: Net, x: Image) -> Image:
    """Halves of the channels, one of them worked on, joined and shuffled."""
    half = x.channels // 2
    if net.chance(0.5):
        a, b = net.ops("Split", 2, x.name, net.ints(half, x.channels - half), axis=1)
    else:
        a, b = net.slice(x.name, 1, 0, half), net.slice(x.name, 1, half, 2**31)
    worked = net.activation(convolved(net, Image(b, x.channels - half), x.channels - half, 3).name)
    parts = [a, worked, b] if net.chance(0.4) else [a, worked]
    channels = half + (x.channels - half) * (len(parts) - 1)
    name = net.op("Concat", *parts, axis=1)
    if channels % 2 == 0 and net.chance(0.5):
        apart = net.reshape(name, net.size(name, 0), 2, channels // 2, net.size(name, 2), net.size(name, 3))
        name = net.reshape(
            net.transpose(apart, 0, 2, 1, 3, 4), net.size(name, 0), -1, net.size(name, 2), net.size(name, 3)
        )
    return Image(name, channels)


@block(Image)
def space_to_channels(net: Net, x: Image) -> Image:
    """Each second element of rows and columns, four images side by side."""
    h, w = net.size(x.name, 2), net.size(x.name, 3)
    even = net.pad_end(
        x.name, 4, {2: net.padded_size(h, 2), 3: net.padded_size(w, 2)}, net.choice(("constant", "edge"))
    )
    if net.chance(0.4):
        return Image(net.op("SpaceToDepth", even, blocksize=2), 4 * x.channels)
    parts = [net.slice(net.slice(even, 2, i, 2**31, 2), 3, j, 2**31, 2) for i in (0, 1) for j in (0, 1)]
    return Image(net.op("Concat", *parts, axis=1), 4 * x.channels)


@block(Image)
def windows(net: Net, x: Image) -> Image:
    """Attention in windows, of images padded to a multiple of them, rolled or not."""
    size, c = net.choice((4, 7, 8)), x.channels
    batch, h, w = (net.size(x.name, i) for i in (0, 2, 3))
    last = net.transpose(x.name, 0, 2, 3, 1)
    last = net.layer_norm(last, c) if net.chance(0.7) else last
    more_h, more_w = net.padded_size(h, size), net.padded_size(w, size)
    last = net.pad_end(last, 4, {1: more_h, 2: more_w})
    high, wide = net.op("Add", h, more_h), net.op("Add", w, more_w)
    shift = net.choice((0, size // 2))
    if shift:
        for axis in (1, 2):
            last = net.op("Concat", net.slice(last, axis, shift, 2**31), net.slice(last, axis, 0, shift), axis=axis)
    many = [net.op("Div", n, net.ints(size)) for n in (high, wide)]
    apart = net.reshape(last, batch, many[0], size, many[1], size, c)
    rows = net.reshape(net.transpose(apart, 0, 1, 3, 2, 4, 5), -1, size * size, c)
    rows = attend(net, Tokens(rows, c), net.bias(1, size * size, size * size) if net.chance(0.5) else None).name
    apart = net.reshape(rows, batch, many[0], many[1], size, size, c)
    last = net.reshape(net.transpose(apart, 0, 1, 3, 2, 4, 5), batch, high, wide, c)
    if shift:
        for axis in (1, 2):
            last = net.op("Concat", net.slice(last, axis, -shift, 2**31), net.slice(last, axis, 0, -shift), axis=axis)
    last = net.slice(net.slice(last, 1, 0, h), 2, 0, w)
    return Image(net.op("Add", x.name, net.transpose(last, 0, 3, 1, 2)), c)


@block(Image)
def gated_by_axes(net: Net, x: Image) -> Image:
    """Gates from means of rows and columns."""
    rows, columns = net.op("ReduceMean", x.name, net.ints(3)), net.op("ReduceMean", x.name, net.ints(2))
    if net.chance(0.5):
        joined = net.op("Concat", rows, net.transpose(columns, 0, 1, 3, 2), axis=2)
        joined = net.activation(convolved(net, Image(joined, x.channels), x.channels, 1).name)
        h, w = net.size(x.name, 2), net.size(x.name, 3)
        rows, columns = net.ops("Split", 2, joined, net.op("Concat", h, w, axis=0), axis=2)
        columns = net.transpose(columns, 0, 1, 3, 2)
    gate = net.op("Mul", net.op("Sigmoid", rows), net.op("Sigmoid", columns))
    return Image(net.op("Mul", x.name, gate), x.channels)


@block(Image)
def with_coordinates(net: Net, x: Image) -> Image:
    """Two more channels: where each pixel is."""
    planes: list[str] = []
    for axis in (2, 3):
        size = net.size(x.name, axis)
        steps = net.real(net.range_of(size))
        share = net.op("Div", steps, net.real(size))
        share = net.op("Unsqueeze", share, net.ints(1)) if axis == 2 else share
        target = net.sizes(net.size(x.name, 0), 1, net.size(x.name, 2), net.size(x.name, 3))
        planes.append(net.op("Expand", share, target))
    return Image(net.op("Concat", x.name, *planes, axis=1), x.channels + 2)


@block(Image)
def warped(net: Net, x: Image) -> Image:
    """Sampled at places that are near each pixel."""
    grids: list[str] = []
    for axis in (3, 2):
        size = net.size(x.name, axis)
        steps = net.op("Add", net.real(net.range_of(size)), net.number(0.5))
        place = net.op("Sub", net.op("Div", net.op("Mul", steps, net.number(2)), net.real(size)), net.number(1))
        place = net.op("Unsqueeze", place, net.ints(1)) if axis == 2 else place
        target = net.sizes(net.size(x.name, 0), net.size(x.name, 2), net.size(x.name, 3))
        grids.append(net.op("Unsqueeze", net.op("Expand", place, target), net.ints(3)))
    flow = net.transpose(net.op("Tanh", convolved(net, x, 2, 3).name), 0, 2, 3, 1)
    grid = net.op("Add", net.op("Concat", *grids, axis=3), net.op("Mul", flow, net.number(0.1)))
    name = net.op("GridSample", x.name, grid, mode="linear", padding_mode=net.choice(("zeros", "border")),
                  align_corners=net.choice((0, 1)))  # fmt: skip
    return Image(name, x.channels)


@block(Image)
def neighbours(net: Net, x: Image) -> Image:
    """Differences with shifted copies, and sums along rows."""
    border = net.op("Pad", x.name, net.ints(0, 0, 1, 1, 0, 0, 1, 1), mode=net.choice(("constant", "edge", "reflect")))
    h, w = net.size(x.name, 2), net.size(x.name, 3)
    moved = []
    for dy, dx in ((0, 1), (2, 1), (1, 0)):
        rows = net.slice(border, 2, dy, net.op("Add", h, net.ints(dy)))
        moved.append(net.slice(rows, 3, dx, net.op("Add", w, net.ints(dx))))
    total = net.op("Sum", *[net.op("Abs", net.op("Sub", x.name, m)) for m in moved])
    if net.chance(0.4):
        steps = net.op("Sqrt", net.real(net.op("Add", net.range_of(w), net.whole(1))))
        total = net.op("Div", net.op("CumSum", total, net.whole(3)), steps)
    return Image(net.op("Sub", x.name, net.op("Tanh", total)), x.channels)


@block(Image)
def flipped(net: Net, x: Image) -> Image:
    """Turned or mirrored, and joined with what it was."""
    if net.chance(0.4):
        return Image(net.transpose(x.name, 0, 1, 3, 2), x.channels)
    mirrored = net.slice(x.name, net.choice((2, 3)), -1, -(2**31), -1)
    return Image(net.op(net.choice(("Max", "Add", "Min")), x.name, mirrored), x.channels)


@block(Image)
def over_channels(net: Net, x: Image) -> Image:
    """A softmax over channels or over all pixels, as a weight."""
    if net.chance(0.5):
        return Image(net.op("Mul", x.name, net.op("Softmax", x.name, axis=1)), x.channels)
    flat = net.op("Reshape", x.name, net.ints(0, 0, -1))
    score = net.op("Softmax", net.op("ReduceMean", flat, net.ints(1)), axis=-1)
    context = net.op("MatMul", flat, net.transpose(score, 0, 2, 1))
    return Image(net.op("Add", x.name, net.op("Unsqueeze", context, net.ints(3))), x.channels)


@block(Image)
def as_tokens(net: Net, x: Image) -> Tokens:
    """Pixels or patches in a row, with positions that are brought to their number."""
    width = net.width()
    patch = net.choice((2, 4) if net.grown else (1, 2, 4))
    weight = net.weight(width, x.channels, patch, patch)
    y = net.op("Conv", x.name, weight, net.bias(width), strides=[patch] * 2)
    flat = net.transpose(net.reshape(y, net.size(y, 0), width, -1), 0, 2, 1)
    if net.chance(0.6):
        side = net.choice((5, 7))
        grid = net.bias(1, width, side, side)
        sizes = net.op("Concat", net.ints(1, width), net.op("Shape", y, start=2), axis=0)
        places = net.op("Resize", grid, "", "", sizes, mode=net.choice(("linear", "cubic")), cubic_coeff_a=-0.75,
                        coordinate_transformation_mode=net.choice(("half_pixel", "align_corners")))  # fmt: skip
        flat = net.op("Add", flat, net.transpose(net.op("Reshape", places, net.ints(1, width, -1)), 0, 2, 1))
    return Tokens(flat, width)


@block(Image)
def attention_of_pixels(net: Net, x: Image) -> Image:
    """Pixels that attend to a smaller image's."""
    c = x.channels
    heads = net.choice([h for h in (1, 2, 4) if c % h == 0])
    small = convolved(net, x, c, 3, stride=2)
    rows = net.transpose(net.op("Reshape", x.name, net.ints(0, 0, -1)), 0, 2, 1)
    keys = net.transpose(net.op("Reshape", small.name, net.ints(0, 0, -1)), 0, 2, 1)
    q, k, v = (net.linear(s, c, c) for s in (rows, keys, keys))
    q, k, v = (net.transpose(net.op("Reshape", s, net.ints(0, -1, heads, c // heads)), 0, 2, 1, 3) for s in (q, k, v))
    scores = net.op("Mul", net.op("MatMul", q, net.transpose(k, 0, 1, 3, 2)), net.number(1 / math.sqrt(c // heads)))
    mixed = net.transpose(net.op("MatMul", net.op("Softmax", scores, axis=-1), v), 0, 2, 1, 3)
    back = net.transpose(net.reshape(mixed, net.size(x.name, 0), -1, c), 0, 2, 1)
    return Image(net.op("Add", x.name, net.op("Reshape", back, net.op("Shape", x.name))), c)


@block(Image)
def patches(net: Net, x: Image) -> Image:
    """Each pixel with its neighbours beside it as channels, weighted by a softmax of them."""
    border = net.op("Pad", x.name, net.ints(0, 0, 1, 1, 0, 0, 1, 1))
    h, w = net.size(x.name, 2), net.size(x.name, 3)
    parts = []
    for dy in range(3):
        rows = net.slice(border, 2, dy, net.op("Add", h, net.ints(dy)))
        parts += [net.slice(rows, 3, dx, net.op("Add", w, net.ints(dx))) for dx in range(3)]
    every = net.op("Concat", *[net.op("Unsqueeze", part, net.ints(2)) for part in parts], axis=2)
    weights = convolved(net, x, 9, 3).name
    weights = net.op("Softmax", weights, axis=1)
    mixed = net.op(
        "ReduceSum", net.op("Mul", every, net.op("Unsqueeze", weights, net.ints(1))), net.ints(2), keepdims=0
    )
    return Image(mixed, x.channels)


@block(Image)
def scanned(net: Net, x: Image) -> Image:
    """A recurrence over the rows, each column by itself."""
    hidden = min(net.hidden(), 64)
    rows = net.transpose(x.name, 2, 0, 3, 1)
    batch, width = net.size(x.name, 0), net.size(x.name, 3)
    steps = net.reshape(rows, net.size(x.name, 2), net.op("Mul", batch, width), x.channels)
    weights = [net.weight(1, 3 * hidden, n, depth=n) for n in (x.channels, hidden)]
    y = net.op("Squeeze", net.op("GRU", steps, *weights, net.bias(1, 6 * hidden), hidden_size=hidden), net.ints(1))
    back = net.reshape(y, net.size(x.name, 2), batch, width, hidden)
    return Image(net.transpose(back, 1, 3, 0, 2), hidden)


@block(Image)
def highest_pixels(net: Net, x: Image) -> Image:
    """A mask of the pixels that are the largest around them, as detectors of key points have."""
    score = convolved(net, x, 1, 3).name
    around = net.op("MaxPool", score, kernel_shape=[3, 3], pads=[1] * 4)
    kept = net.op("Cast", net.op("Equal", score, around), to=1)
    return Image(net.op("Concat", x.name, net.op("Mul", score, kept), axis=1), x.channels + 1)
