"""Blocks of images as detectors, segmenters, trackers and exporters of TensorFlow have them."""

from __future__ import annotations

import numpy as np

from tests.fuzz.blocks.images import convolved
from tests.fuzz.blocks.net import Image, Net, Tokens, block
from tests.fuzz.blocks.sequences import attend

__all__: list[str] = []


@block(Image)
def group_normed(net: Net, x: Image) -> Image:
    """A normalisation of groups of channels, by means over views of dynamic size or as one operator."""
    groups = net.choice([g for g in (1, 2, 3, 4, 8) if x.channels % g == 0])
    batch, h, w = (net.size(x.name, i) for i in (0, 2, 3))
    if net.chance(0.5):
        parts, axes = net.reshape(x.name, batch, groups, x.channels // groups, h, w), (2, 3, 4)
    else:
        parts, axes = net.reshape(x.name, batch, groups, -1), (2,)
    mean = net.op("ReduceMean", parts, net.ints(*axes))
    centred = net.op("Sub", parts, mean)
    variance = net.op("ReduceMean", net.op("Mul", centred, centred), net.ints(*axes))
    same = net.op("Div", centred, net.op("Sqrt", net.op("Add", variance, net.number(1e-5))))
    back = net.reshape(same, batch, x.channels, h, w)
    y = net.op("Add", net.op("Mul", back, net.bias(1, x.channels, 1, 1)), net.bias(1, x.channels, 1, 1))
    return Image(net.activation(y), x.channels)


@block(Image)
def up_and_cropped(net: Net, x: Image) -> Image:
    """A smaller copy, grown by a transposed convolution and padded or cut to the size of the larger."""
    channels = net.channels()
    small = convolved(net, x, channels, 3, stride=2)
    kernel = net.choice((2, 3, 4))
    weight = net.weight(channels, channels, kernel, kernel, depth=channels * kernel)
    groups = net.chance(0.3)
    if groups:
        weight = net.weight(channels, 1, kernel, kernel, depth=kernel)
    y = net.op("ConvTranspose", small.name, weight, net.bias(channels), strides=[2, 2], kernel_shape=[kernel] * 2,
               group=channels if groups else 1)  # fmt: skip
    h, w = net.size(x.name, 2), net.size(x.name, 3)
    if net.chance(0.5):
        y = net.slice(net.slice(y, 2, 0, h), 3, 0, w)
    else:
        more = [net.op("Sub", net.size(x.name, axis), net.size(y, axis)) for axis in (2, 3)]
        half = [net.op("Div", m, net.ints(2)) for m in more]
        rest = [net.op("Sub", m, a) for m, a in zip(more, half, strict=True)]
        y = net.op("Pad", y, net.sizes(0, 0, *half, 0, 0, *rest))
    return Image(net.op("Concat", x.name, y, axis=1), x.channels + channels)


@block(Image)
def deformed(net: Net, x: Image) -> Image:
    """A convolution at places that another one moves."""
    kernel, groups = 3, net.choice([g for g in (1, 2) if x.channels % g == 0])
    channels = min(net.channels(), 64)
    moves = convolved(net, x, 2 * groups * kernel * kernel, 3).name
    mask = [net.op("Sigmoid", convolved(net, x, groups * kernel * kernel, 3).name)] if net.chance(0.6) else []
    y = net.op("DeformConv", x.name, net.weight(channels, x.channels, kernel, kernel), net.op("Tanh", moves),
               net.bias(channels), *mask, offset_group=groups, pads=[1] * 4,
               kernel_shape=[kernel] * 2)  # fmt: skip
    return Image(y, channels)


@block(Image)
def correlated(net: Net, x: Image) -> Image:
    """Products with copies of another layer moved along rows, as many channels as moves."""
    other = convolved(net, x, x.channels, 3).name
    w = net.size(x.name, 3)
    border = net.op("Pad", other, net.ints(0, 0, 0, 2, 0, 0, 0, 2))
    volume = [
        net.op("ReduceMean", net.op("Mul", x.name, net.slice(border, 3, d, net.op("Add", w, net.ints(d)))), net.ints(1))
        for d in range(5)
    ]
    joined = net.op("Concat", *volume, axis=1)
    if net.chance(0.5):
        shares = net.op("Softmax", joined, axis=1)
        steps = net.constant(np.arange(5).reshape(1, 5, 1, 1), "float32")
        depth = net.op("ReduceSum", net.op("Mul", shares, steps), net.ints(1))
        return Image(net.op("Concat", x.name, depth, axis=1), x.channels + 1)
    return Image(net.op("Concat", x.name, joined, axis=1), x.channels + 5)


@block(Image)
def unpooled(net: Net, x: Image) -> Image:
    """The largest of each two by two, put back where they were."""
    h, w = net.size(x.name, 2), net.size(x.name, 3)
    even = net.slice(net.slice(x.name, 2, 0, net.op("Mul", net.op("Div", h, net.ints(2)), net.ints(2))), 3, 0,
                     net.op("Mul", net.op("Div", w, net.ints(2)), net.ints(2)))  # fmt: skip
    values, places = net.ops("MaxPool", 2, even, kernel_shape=[2, 2], strides=[2, 2])
    values = net.activation(values)
    back = net.op("MaxUnpool", values, places, kernel_shape=[2, 2], strides=[2, 2])
    return Image(net.op("Add", even, back), x.channels)


@block(Image)
def along_axes(net: Net, x: Image) -> Image:
    """Attention along rows or columns, or among the pixels that have the same place in a grid of windows."""
    c, kind = x.channels, net.choice(("rows", "columns", "grid"))
    batch, h, w = (net.size(x.name, i) for i in (0, 2, 3))
    if kind == "grid":
        size = net.choice((2, 3, 4))
        more = {2: net.padded_size(h, size), 3: net.padded_size(w, size)}
        padded = net.pad_end(x.name, 4, more)
        high, wide = (net.op("Div", net.op("Add", n, more[i]), net.ints(size)) for i, n in ((2, h), (3, w)))
        apart = net.transpose(net.reshape(padded, batch, c, size, high, size, wide), 0, 3, 5, 2, 4, 1)
        rows = attend(net, Tokens(net.reshape(apart, -1, size * size, c), c)).name
        apart = net.reshape(rows, batch, high, wide, size, size, c)
        back = net.reshape(net.transpose(apart, 0, 5, 3, 1, 4, 2), batch, c, net.op("Mul", high, net.ints(size)), -1)
        back = net.slice(net.slice(back, 2, 0, h), 3, 0, w)
        return Image(net.op("Add", x.name, back), c)
    order, inverse = ((0, 2, 3, 1), (0, 3, 1, 2)) if kind == "rows" else ((0, 3, 2, 1), (0, 3, 2, 1))
    outer, inner = (h, w) if kind == "rows" else (w, h)
    rows = net.reshape(net.transpose(x.name, *order), net.op("Mul", batch, outer), inner, c)
    rows = attend(net, Tokens(rows, c)).name
    back = net.transpose(net.reshape(rows, batch, outer, inner, c), *inverse)
    return Image(net.op("Add", x.name, back), c)


@block(Image)
def with_computed_weights(net: Net, x: Image) -> Image:
    """A convolution whose weights are computed from the mean of the image."""
    channels = min(net.channels(), 32)
    mean = net.op("ReduceMean", x.name, net.ints(0, 2, 3), keepdims=0)
    row = net.op("Unsqueeze", mean, net.ints(0))
    scale = net.op("Reshape", net.op("Sigmoid", net.linear(row, x.channels, channels)), net.ints(channels, 1, 1, 1))
    weight = net.op("Mul", net.weight(channels, x.channels, 3, 3), scale)
    if net.chance(0.5):
        total = net.op("ReduceSum", net.op("Mul", weight, weight), net.ints(1, 2, 3))
        weight = net.op("Div", weight, net.op("Sqrt", net.op("Add", total, net.number(1e-6))))
    return Image(net.op("Conv", x.name, weight, pads=[1] * 4), channels)


@block(Image)
def covariances(net: Net, x: Image) -> Image:
    """Gates from products of channels summed over all pixels."""
    flat = net.op("Reshape", x.name, net.ints(0, 0, -1))
    centred = net.op("Sub", flat, net.op("ReduceMean", flat, net.ints(2)))
    products = net.op("MatMul", centred, net.transpose(centred, 0, 2, 1))
    count = net.real(net.size(flat, 2))
    gate = net.op("Sigmoid", net.op("ReduceMean", net.op("Div", products, count), net.ints(2)))
    return Image(net.op("Mul", x.name, net.op("Unsqueeze", gate, net.ints(3))), x.channels)


@block(Image)
def channels_last(net: Net, x: Image) -> Image:
    """Layers as exporters of TensorFlow write them: channels last, turned around each convolution."""
    last, c = net.transpose(x.name, 0, 2, 3, 1), x.channels
    for _ in range(net.choice((1, 2))):
        channels, stride = net.channels(), net.choice((1, 1, 2))
        first = net.transpose(last, 0, 3, 1, 2)
        depthwise = net.chance(0.5)
        if depthwise:
            first = net.op("Conv", first, net.weight(c, 1, 3, 3), group=c, auto_pad="SAME_UPPER", strides=[stride] * 2,
                           kernel_shape=[3, 3])  # fmt: skip
            last = net.transpose(first, 0, 2, 3, 1)
            last = net.op("Clip", net.op("Add", last, net.bias(c)), net.number(0), net.number(6))
            first = net.transpose(last, 0, 3, 1, 2)
            first = net.op("Conv", first, net.weight(channels, c, 1, 1), kernel_shape=[1, 1])
        else:
            first = net.op("Conv", first, net.weight(channels, c, 3, 3), auto_pad="SAME_UPPER", strides=[stride] * 2,
                           kernel_shape=[3, 3])  # fmt: skip
        last, c = net.transpose(first, 0, 2, 3, 1), channels
        last = net.op("Add", net.op("Mul", last, net.bias(c)), net.bias(c))
        last = net.activation(last)
        if net.chance(0.4):
            mean = net.op("ReduceMean", last, net.ints(1, 2), keepdims=0)
            gate = net.op("Sigmoid", net.linear(mean, c, c))
            last = net.op("Mul", last, net.reshape(gate, net.size(last, 0), 1, 1, c))
    return Image(net.transpose(last, 0, 3, 1, 2), c)


@block(Image)
def moved_by_a_matrix(net: Net, x: Image) -> Image:
    """Sampled through an affine map that a layer gives for each image."""
    mean = net.op("ReduceMean", x.name, net.ints(2, 3), keepdims=0)
    change = net.op("Mul", net.op("Tanh", net.linear(mean, x.channels, 6)), net.number(0.2))
    same = net.constant([[[1, 0, 0], [0, 1, 0]]], "float32")
    theta = net.op("Add", net.op("Reshape", change, net.ints(-1, 2, 3)), same)
    corners = net.choice((0, 1))
    grid = net.op("AffineGrid", theta, net.op("Shape", x.name), align_corners=corners)
    return Image(net.op("GridSample", x.name, grid, align_corners=corners, mode=net.choice(("linear", "cubic")),
                        padding_mode=net.choice(("zeros", "border", "reflection"))), x.channels)  # fmt: skip


@block(Image)
def regions(net: Net, x: Image) -> Tokens:
    """Means of regions of the first image, at boxes around its highest pixels."""
    width = net.width()
    score = net.op("Reshape", net.slice(convolved(net, x, 1, 3).name, 0, 0, 1), net.ints(-1))
    _, places = net.ops("TopK", 2, score, net.ints(4))
    w = net.op("Squeeze", net.size(x.name, 3), net.ints(0))
    column = net.real(net.op("Mod", places, w))
    row = net.real(net.op("Div", places, w))
    corner = [net.op("Unsqueeze", net.op("Sub", t, net.number(2)), net.ints(1)) for t in (column, row)]
    far = [net.op("Unsqueeze", net.op("Add", t, net.number(3)), net.ints(1)) for t in (column, row)]
    boxes = net.op("Concat", *corner, *far, axis=1)
    first = net.constant(np.zeros(4), "int64")
    parts = net.op("RoiAlign", x.name, boxes, first, output_height=2, output_width=2, sampling_ratio=2,
                   coordinate_transformation_mode="half_pixel")  # fmt: skip
    rows = net.linear(net.op("Reshape", parts, net.ints(1, 4, -1)), 4 * x.channels, width)
    return Tokens(net.op("Add", rows, net.bias(width)), width)


@block(Image)
def in_depth(net: Net, x: Image) -> Image:
    """Channels as the depth of volumes, with convolutions and pools of three dimensions."""
    five = net.op("Unsqueeze", x.name, net.ints(1))
    y = net.op("Conv", five, net.weight(4, 1, 3, 3, 3), net.bias(4), pads=[1] * 6)
    y = net.activation(y)
    if net.chance(0.5):
        y = net.op(net.choice(("MaxPool", "AveragePool")), y, kernel_shape=[1, 3, 3], pads=[0, 1, 1, 0, 1, 1])
    y = net.op("Conv", y, net.weight(1, 4, 1, 3, 3), net.bias(1), pads=[0, 1, 1, 0, 1, 1])
    return Image(net.op("Add", x.name, net.op("Squeeze", y, net.ints(1))), x.channels)


@block(Image)
def folded(net: Net, x: Image) -> Image:
    """Patches side by side as columns, weighted and summed back where they overlap."""
    h, w = net.size(x.name, 2), net.size(x.name, 3)
    border = net.op("Pad", x.name, net.ints(0, 0, 1, 1, 0, 0, 1, 1))
    parts = [
        net.slice(net.slice(border, 2, i, net.op("Add", h, net.ints(i))), 3, j, net.op("Add", w, net.ints(j)))
        for i in range(3)
        for j in range(3)
    ]
    every = net.op("Concat", *[net.op("Unsqueeze", p, net.ints(2)) for p in parts], axis=2)
    columns = net.reshape(every, net.size(x.name, 0), 9 * x.channels, -1)
    columns = net.op("Mul", columns, net.bias(9 * x.channels, 1))
    y = net.op("Col2Im", columns, net.sizes(h, w), net.ints(3, 3), pads=[1] * 4)
    return Image(net.op("Add", x.name, y), x.channels)


@block(Image)
def normalised_responses(net: Net, x: Image) -> Image:
    """Layers of older networks: normalised over neighbouring channels, over lengths of pixels, or by powers."""
    kind = net.choice(("local", "length", "power"))
    if kind == "local":
        return Image(net.op("LRN", x.name, size=net.choice((3, 5)), alpha=0.1, beta=0.75), x.channels)
    if kind == "length":
        return Image(net.op("LpNormalization", x.name, axis=1, p=2), x.channels)
    cubes = net.op("Pow", net.op("Clip", x.name, net.number(1e-3)), net.number(3))
    mean = net.op("ReduceMean", cubes, net.ints(2, 3))
    return Image(net.op("Add", x.name, net.op("Pow", mean, net.number(1 / 3))), x.channels)


@block(Image)
def exchanged(net: Net, x: Image) -> Image:
    """Two resolutions side by side, each given the other's."""
    small = convolved(net, x, x.channels, 3, stride=2)
    a = Image(net.activation(convolved(net, x, x.channels, 3).name), x.channels)
    b = Image(net.activation(convolved(net, small, x.channels, 3).name), x.channels)
    size = net.sizes(net.size(x.name, 0), x.channels, net.size(x.name, 2), net.size(x.name, 3))
    up = net.op("Resize", convolved(net, b, x.channels, 1).name, "", "", size, mode="linear",
                coordinate_transformation_mode="half_pixel")  # fmt: skip
    joined = net.op("Add", a.name, up)
    down = net.op("Add", b.name, convolved(net, a, x.channels, 3, stride=2).name)
    mean = net.op("GlobalMaxPool", down) if net.chance(0.5) else net.op("GlobalAveragePool", down)
    return Image(net.op("Add", joined, mean), x.channels)


@block(Image)
def detected(net: Net, x: Image) -> Tokens:
    """Boxes decoded from each pixel, the best of them kept where they overlap little, and their features."""
    width = net.width()
    head = convolved(net, x, 5 + width, 1).name
    flat = net.transpose(net.op("Reshape", net.slice(head, 0, 0, 1), net.ints(1, 5 + width, -1)), 0, 2, 1)
    moves, sizes, score, features = net.ops("Split", 4, flat, net.ints(2, 2, 1, width), axis=2)
    w = net.op("Squeeze", net.size(x.name, 3), net.ints(0))
    places = net.range_of(net.op("Mul", net.size(x.name, 2), net.size(x.name, 3)))
    grid = [net.op("Unsqueeze", net.real(net.op(kind, places, w)), net.ints(0, 2)) for kind in ("Mod", "Div")]
    centre = net.op("Add", net.op("Sigmoid", moves), net.op("Concat", *grid, axis=2))
    extent = net.op("Exp", net.op("Tanh", sizes))
    boxes = net.op("Concat", centre, extent, axis=2)
    kept = net.op("NonMaxSuppression", boxes, net.transpose(net.op("Sigmoid", score), 0, 2, 1), net.ints(8),
                  net.constant([0.4], "float32"), center_point_box=1)  # fmt: skip
    index = net.op("Gather", kept, net.whole(2), axis=1)
    return Tokens(net.op("Gather", features, index, axis=1), width)
