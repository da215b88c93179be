"""Exchange of channels and pixels, as views and one transposition."""

from __future__ import annotations

from relayc.relay.errors import TypeInferenceError
from relayc.relay.expr import Call, Expr
from relayc.relay.op.common import static_shape
from relayc.relay.op.transform import reshape, transpose

__all__ = ["depth_to_space", "space_to_depth"]


def depth_to_space(data: Expr, block_size: int, mode: str = "DCR") -> Call:
    """(N, C, H, W) to (N, C / b^2, H b, W b) for b = `block_size` (ONNX: DepthToSpace).

    `mode`: "DCR" takes the block's position from the outer part of the channels, "CRD" from the inner one.
    Raises TypeInferenceError when the channels do not divide, or for another mode.
    """
    n, c, h, w = static_shape(data, 4)
    b = block_size
    if b < 1 or c % (b * b) or mode not in ("DCR", "CRD"):
        raise TypeInferenceError(f"{c} channels, block_size {b}, mode {mode!r}; expected channels that "
                                 "are a multiple of block_size squared, and mode DCR or CRD")  # fmt: skip
    out = c // (b * b)
    split = (n, b, b, out, h, w) if mode == "DCR" else (n, out, b, b, h, w)
    axes = (0, 3, 4, 1, 5, 2) if mode == "DCR" else (0, 1, 4, 2, 5, 3)
    return reshape(transpose(reshape(data, split), axes), (n, out, h * b, w * b))


def space_to_depth(data: Expr, block_size: int) -> Call:
    """(N, C, H, W) to (N, C b^2, H / b, W / b) for b = `block_size`, the block outermost (ONNX: SpaceToDepth).

    Raises TypeInferenceError when height or width do not divide.
    """
    n, c, h, w = static_shape(data, 4)
    b = block_size
    if b < 1 or h % b or w % b:
        raise TypeInferenceError(f"an image of {h} x {w} does not divide into blocks of {b}")
    blocks = transpose(reshape(data, (n, c, h // b, b, w // b, b)), (0, 3, 5, 1, 2, 4))
    return reshape(blocks, (n, c * b * b, h // b, w // b))
