"""The passes that `relay.build` runs, as a tuple that can be printed, sliced and extended."""

from __future__ import annotations

from collections.abc import Collection

from relayc.backend.target import Target
from relayc.relay.transform.absorb_shuffles import AbsorbShuffles
from relayc.relay.transform.align_channels import AlignChannels
from relayc.relay.transform.arrange_weights import ArrangeWeights
from relayc.relay.transform.block_attention import BlockAttention
from relayc.relay.transform.canonicalize_ops import CanonicalizeOps
from relayc.relay.transform.canonicalize_quantization import CanonicalizeQuantization
from relayc.relay.transform.chain_pools import ChainPools
from relayc.relay.transform.check_indices import CheckIndices
from relayc.relay.transform.combine_parallel_conv2d import CombineParallelConv2D
from relayc.relay.transform.combine_parallel_dense import CombineParallelDense
from relayc.relay.transform.commute_pointwise_conv import CommutePointwiseConv
from relayc.relay.transform.convert_layout import ConvertLayout
from relayc.relay.transform.convolve_by_shifted_gemm import ConvolveByShiftedGemm
from relayc.relay.transform.convolve_transposed import ConvolveTransposed
from relayc.relay.transform.dead_code_elimination import DeadCodeElimination
from relayc.relay.transform.eliminate_common_subexpr import EliminateCommonSubexpr
from relayc.relay.transform.encode_strings import EncodeStrings
from relayc.relay.transform.fake_quantization_to_integer import FakeQuantizationToInteger
from relayc.relay.transform.fold_constant import FoldConstant
from relayc.relay.transform.fold_pad import FoldPad
from relayc.relay.transform.fold_quantization_scales import FoldQuantizationScales
from relayc.relay.transform.fold_scale_axis import FoldScaleAxis
from relayc.relay.transform.fold_transpose_into_store import FoldTransposeIntoStore
from relayc.relay.transform.fuse_ops import FuseOps
from relayc.relay.transform.fuse_siblings import FuseSiblings
from relayc.relay.transform.join_slices import JoinSlices
from relayc.relay.transform.limit_parts import LimitParts
from relayc.relay.transform.lower_dense_bits import LowerDenseBits
from relayc.relay.transform.pack_narrow_constants import PackNarrowConstants
from relayc.relay.transform.pack_weights import PackWeights
from relayc.relay.transform.push_elementwise_through_concat import PushElementwiseThroughConcat
from relayc.relay.transform.read_operands_in_place import ReadOperandsInPlace
from relayc.relay.transform.recognize_attention import RecognizeAttention
from relayc.relay.transform.recognize_block_weights import RecognizeBlockWeights
from relayc.relay.transform.recognize_patterns import RecognizePatterns
from relayc.relay.transform.repeat_elements import RepeatElements
from relayc.relay.transform.separate_outputs import SeparateOutputs
from relayc.relay.transform.share_recurrences import ShareRecurrences
from relayc.relay.transform.simplify_expr import SimplifyExpr
from relayc.relay.transform.simplify_inference import SimplifyInference
from relayc.relay.transform.sum_parallel_convolutions import SumParallelConvolutions
from relayc.relay.transform.tabulate_int8_activations import TabulateInt8Activations
from relayc.relay.transform.to_mixed_precision import ToMixedPrecision
from relayc.relay.transform.trim_kernels import TrimKernels
from relayc.relay.transform.unpack_weights import UnpackWeights
from relayc.relay.transform.widen_products import WidenProducts
from relayc.te.ir import Pass

__all__ = ["default_pipeline"]


def default_pipeline(
    opt_level: int, target: Target, mixed_precision: str = "", required: Collection[str] = ()
) -> tuple[Pass, ...]:
    """Every pass from the imported graph to fused functions, for one target, in order.

    Passes above `opt_level` are left out except those named in `required`; `PassContext` may disable more. With
    `mixed_precision`, "float16" or "bfloat16", float32 models are converted once norms are folded into weights.
    """
    of_weights = mixed_precision == "bfloat16" and "cpu" in target.keys
    in_half: tuple[Pass, ...] = (ToMixedPrecision(mixed_precision, of_weights=of_weights),) if mixed_precision else ()
    arrange: tuple[Pass, ...] = ()
    attention: tuple[Pass, ...] = ()
    integers: tuple[Pass, ...] = ()
    tables: tuple[Pass, ...] = ()
    quantization: tuple[Pass, ...] = ()
    unpack: tuple[Pass, ...] = ()
    fusions: tuple[Pass, ...] = ()
    if "cpu" in target.keys:
        integers, tables = (FakeQuantizationToInteger(target),), (TabulateInt8Activations(target),)
        quantization = (FoldQuantizationScales(),)
        attention = (RecognizeAttention(), BlockAttention(target))
        products = (ReadOperandsInPlace(), WidenProducts(target))
        packed = (PackWeights(target), LowerDenseBits(target))
        weights = (*products, ConvolveTransposed(), ShareRecurrences(target), *packed)
        moves = (JoinSlices(), RepeatElements(), AbsorbShuffles(), PushElementwiseThroughConcat(), ChainPools())
        arrange = (ConvolveByShiftedGemm(target), *moves, CombineParallelConv2D(target), *weights)
        fusions = (FoldTransposeIntoStore(target), FuseSiblings(target))
    elif "gpu" in target.keys:
        arrange, unpack = (AlignChannels(), ArrangeWeights()), (UnpackWeights(),)
    passes: tuple[Pass, ...] = (
        CheckIndices(target),
        EncodeStrings(),
        RecognizeBlockWeights(),
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
        CommutePointwiseConv(),
        *attention,
        *in_half,
        CombineParallelDense(),
        ConvertLayout(),
        RecognizePatterns(),  # norms over channels, which are the last dimension now
        *quantization,
        *arrange,
        FoldConstant(),
        SimplifyExpr(),
        EliminateCommonSubexpr(),
        SeparateOutputs(),
        PackNarrowConstants(),
        LimitParts(),
        FuseOps(permutes_into_products="gpu" in target.keys),
        *fusions,
    )
    return tuple([p for p in passes if p.opt_level <= opt_level or p.name in required])
