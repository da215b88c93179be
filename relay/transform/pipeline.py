"""The passes that `relay.build` runs, as a tuple: print it, cut it, extend it."""

from __future__ import annotations

from collections.abc import Collection

from backend.target import Target
from relay.transform.absorb_shuffles import AbsorbShuffles
from relay.transform.align_channels import AlignChannels
from relay.transform.arrange_weights import ArrangeWeights
from relay.transform.block_attention import BlockAttention
from relay.transform.canonicalize_ops import CanonicalizeOps
from relay.transform.canonicalize_quantization import CanonicalizeQuantization
from relay.transform.chain_pools import ChainPools
from relay.transform.combine_parallel_conv2d import CombineParallelConv2D
from relay.transform.combine_parallel_dense import CombineParallelDense
from relay.transform.convert_layout import ConvertLayout
from relay.transform.convolve_transposed import ConvolveTransposed
from relay.transform.dead_code_elimination import DeadCodeElimination
from relay.transform.eliminate_common_subexpr import EliminateCommonSubexpr
from relay.transform.encode_strings import EncodeStrings
from relay.transform.fake_quantization_to_integer import FakeQuantizationToInteger
from relay.transform.fold_code_scales import FoldCodeScales
from relay.transform.fold_constant import FoldConstant
from relay.transform.fold_pad import FoldPad
from relay.transform.fold_scale_axis import FoldScaleAxis
from relay.transform.fuse_ops import FuseOps
from relay.transform.fuse_siblings import FuseSiblings
from relay.transform.join_slices import JoinSlices
from relay.transform.map_before_joining import MapBeforeJoining
from relay.transform.move_pointwise import MovePointwise
from relay.transform.pack_narrow_constants import PackNarrowConstants
from relay.transform.pack_weights import PackWeights
from relay.transform.read_operands_in_place import ReadOperandsInPlace
from relay.transform.recognize_attention import RecognizeAttention
from relay.transform.recognize_patterns import RecognizePatterns
from relay.transform.repeat_elements import RepeatElements
from relay.transform.share_recurrences import ShareRecurrences
from relay.transform.simplify_expr import SimplifyExpr
from relay.transform.simplify_inference import SimplifyInference
from relay.transform.split_taps import SplitTaps
from relay.transform.store_in_order import StoreInOrder
from relay.transform.sum_parallel_convolutions import SumParallelConvolutions
from relay.transform.tabulate_bytes import TabulateBytes
from relay.transform.to_mixed_precision import ToMixedPrecision
from relay.transform.trim_kernels import TrimKernels
from relay.transform.unpack_weights import UnpackWeights
from relay.transform.widen_products import WidenProducts
from te.ir import Pass

__all__ = ["default_pipeline"]


def default_pipeline(
    opt_level: int, target: Target, mixed_precision: str = "", required: Collection[str] = ()
) -> tuple[Pass, ...]:
    """Every pass from the imported graph to fused functions, for one target, in order.

    Passes above `opt_level` are left out but for those named in `required`; `PassContext` may disable more. With
    `mixed_precision`, "float16" or "bfloat16", float32 models are converted once norms are folded into weights.
    """
    in_half: tuple[Pass, ...] = (ToMixedPrecision(mixed_precision),) if mixed_precision else ()
    arrange: tuple[Pass, ...] = ()
    attention: tuple[Pass, ...] = ()
    integers: tuple[Pass, ...] = ()
    tables: tuple[Pass, ...] = ()
    codes: tuple[Pass, ...] = ()
    unpack: tuple[Pass, ...] = ()
    together: tuple[Pass, ...] = ()
    if "cpu" in target.keys:
        integers, tables = (FakeQuantizationToInteger(target),), (TabulateBytes(target),)
        codes = (FoldCodeScales(),)
        attention = (RecognizeAttention(), BlockAttention(target))
        products = (ReadOperandsInPlace(), WidenProducts(target))
        weights = (*products, ConvolveTransposed(), ShareRecurrences(target), PackWeights(target))
        moves = (JoinSlices(), RepeatElements(), AbsorbShuffles(), MapBeforeJoining(), ChainPools())
        arrange = (SplitTaps(target), *moves, CombineParallelConv2D(target), *weights)
        together = (StoreInOrder(target), FuseSiblings(target))
    elif "gpu" in target.keys:
        arrange, unpack = (AlignChannels(), ArrangeWeights()), (UnpackWeights(),)
    passes: tuple[Pass, ...] = (
        EncodeStrings(),
        *unpack,
        *integers,
        CanonicalizeQuantization(),
        FoldConstant(),
        DeadCodeElimination(),
        EliminateCommonSubexpr(),
        *tables,
        CanonicalizeOps(),
        SimplifyExpr(),
        RecognizePatterns(),
        SimplifyInference(),
        FoldConstant(),
        FoldScaleAxis(),
        FoldPad(),
        SumParallelConvolutions(),
        TrimKernels(),
        SimplifyExpr(),
        MovePointwise(),
        *attention,
        *in_half,
        CombineParallelDense(),
        ConvertLayout(),
        RecognizePatterns(),  # norms over channels, which are the last dimension now
        *codes,
        *arrange,
        FoldConstant(),
        SimplifyExpr(),
        EliminateCommonSubexpr(),
        PackNarrowConstants(),
        FuseOps(moves_into_products="gpu" in target.keys),
        *together,
    )
    return tuple([p for p in passes if p.opt_level <= opt_level or p.name in required])
