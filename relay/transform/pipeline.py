"""The passes that `relay.build` runs, as a tuple that can be printed, sliced and extended."""

from __future__ import annotations

import math
from collections.abc import Collection

from relayc.backend.target import Target
from relayc.relay.transform.absorb_shuffles import AbsorbShuffles
from relayc.relay.transform.align_channels import AlignChannels
from relayc.relay.transform.arrange_weights import ArrangeWeights
from relayc.relay.transform.block_attention import BlockAttention
from relayc.relay.transform.builders import NARROW
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
from relayc.relay.transform.widen_products import WidenProducts
from relayc.te.ir import Pass
from relayc.topi.cpu.tiling import has_amx
from relayc.topi.cuda.product_tiles import architecture

__all__ = ["default_pipeline"]


def _rounded_above(target: Target) -> int:
    """Bytes of images from which on residual connections are rounded: beside AMX products, float32 takes notable time
    in caches too."""
    return target.cache_bytes.l2 // (_PART_OF_L2 if has_amx(target, "dot2_bfloat16") else 1)


_PART_OF_L2 = 4
"""Images above this part (1 / n) of the L2 cache are rounded. (Emerald Rapids, 2 MiB: resnet50 takes 5 % less time
than where those larger than the cache are.)"""


def _kinds_of_attention(target: Target, mixed_precision: str) -> tuple[str, ...]:
    """The types of the model in which attention is computed in 16-bit floats, for which a GPU has one kernel."""
    if architecture(target) < 80:
        return ()
    return (*NARROW, "float32") if mixed_precision else NARROW


def default_pipeline(
    opt_level: int, target: Target, mixed_precision: str = "", required: Collection[str] = ()
) -> tuple[Pass, ...]:
    """Every pass from the imported graph to fused functions, for one target, in order.

    Passes above `opt_level` are left out except those named in `required`; `PassContext` may disable more. With
    `mixed_precision`, "float16" or "bfloat16", float32 models are converted once norms are folded into weights.
    """
    cpu = "cpu" in target.keys
    gpu = "gpu" in target.keys and not cpu
    of_weights = mixed_precision == "bfloat16" and cpu
    in_half: tuple[Pass, ...] = ()
    if mixed_precision:
        large = _rounded_above(target) if cpu else math.inf
        always = ("nn.dense_bits",) if gpu else ()  # tensor cores multiply its data and weights in 16 bits
        in_half = (
            ToMixedPrecision(mixed_precision, always, of_weights=of_weights, round_images_above=large),
        )

    def only(where: bool, *passes: Pass) -> tuple[Pass, ...]:
        return passes if where else ()

    passes: tuple[Pass, ...] = (
        # -- the model as imported, in operators that the rest of the pipeline knows
        CheckIndices(target),  # first: the positions as the model gives them, before a constant one is folded away
        EncodeStrings(),  # no later pass knows strings
        *only(cpu, FakeQuantizationToInteger(target)),  # reads the `qnn` operators that the next passes lower
        RecognizeBlockWeights(),  # what data stay floats; before CanonicalizeQuantization, which dequantises weights
        CanonicalizeQuantization(),  # what has not become integer arithmetic is floats from here on
        FoldConstant(),  # so that patterns find constants: exporters compute weights, shapes and scales in the graph
        DeadCodeElimination(),  # drops what only folded values used; fewer users mean more matches below
        EliminateCommonSubexpr(),  # a value that a pattern needs twice is one expression
        *only(cpu, TabulateInt8Activations(target)),  # before the activation inside of a table is recognised as one
        # -- decomposed operators become one again
        CanonicalizeOps(),  # the one form of views, biases and global pooling that patterns are written for
        SimplifyExpr(),  # views and casts between the parts of a pattern go
        RecognizePatterns(),  # before passes that move scales and constants out of a pattern
        SimplifyInference(),  # makes the factors that FoldScaleAxis reads
        FoldConstant(),  # the factors and offsets of batch norms, and what the recognised operators left of theirs
        # -- algebra on weights, while they have their shape and layout of the model
        FoldScaleAxis(),  # reads the factors that SimplifyInference made
        FoldPad(),  # before the next two, which read a convolution's own padding
        SumParallelConvolutions(),  # after batch norms have been folded into each branch
        TrimKernels(),  # after sums, whose kernel may have more taps
        SimplifyExpr(),  # drops additions of zeros and factors of one that the folds left
        CommutePointwiseConv(),  # on final 1 x 1 kernels: FoldScaleAxis, TrimKernels
        *only(cpu, RecognizeAttention(), BlockAttention(target)),  # before CombineParallelDense hides the projections,
        # and before ToMixedPrecision puts casts between the parts; the transposes cancel in ConvertLayout
        *only(gpu, RecognizeAttention(_kinds_of_attention(target, mixed_precision))),  # for the same reasons
        *in_half,  # batch norms are folded, others recognised; AlignChannels reads the type
        CombineParallelDense(),  # after precision, so that weights of one type are concatenated
        # -- layouts and algorithms of the target
        ConvertLayout(),  # before everything that is written for channels last
        RecognizePatterns(),  # norms over channels, which are the last dimension now
        *only(cpu, FoldQuantizationScales()),  # needs these norms
        *only(
            cpu,
            ConvolveByShiftedGemm(target),  # before convolutions are combined or packed: it replaces them
            JoinSlices(),  # before concatenations move
            RepeatElements(),  # data movement only; the order among these five does not matter
            AbsorbShuffles(),  # while convolutions still have plain weights, which it permutes
            PushElementwiseThroughConcat(),  # before CombineParallelConv2D, which takes activations along
            ChainPools(),  # before EliminateCommonSubexpr, which shares the chain's beginnings
            CombineParallelConv2D(target),  # on plain weights, which it concatenates
            ReadOperandsInPlace(),  # before PackWeights packs right operands that could be read in place
            WidenProducts(target),  # after ReadOperandsInPlace: operands read in place keep their type
            ConvolveTransposed(),  # before PackWeights, which packs the convolutions that it makes
            ShareRecurrences(target),  # its place does not matter: no other pass reads recurrences
            PackWeights(target),  # after all that reads or writes plain weights
            LowerDenseBits(target),  # before EliminateCommonSubexpr, which shares the sums over blocks
        ),
        *only(gpu, AlignChannels(), ArrangeWeights()),  # channels are padded while weights are plain, then transposed
        FoldConstant(),  # packs, transposes and pads the weights themselves
        SimplifyExpr(),  # transposes and casts that met
        EliminateCommonSubexpr(),  # equal weights are stored once
        # -- kernels
        SeparateOutputs(),  # after the elimination, which may leave two outputs as one value
        PackNarrowConstants(),  # after the last FoldConstant, which would unpack them again
        LimitParts(),  # after the last pass that makes concatenations; FuseOps makes the parts kernels
        FuseOps("gpu" in target.keys, "cpu" in target.keys),  # no pass before it sees a primitive function
        *only(cpu, FoldTransposeIntoStore(target)),  # reads the groups of FuseOps
        *only(cpu, FuseSiblings(target)),  # last: it merges whole kernels
    )
    return tuple([p for p in passes if p.opt_level <= opt_level or p.name in required])
