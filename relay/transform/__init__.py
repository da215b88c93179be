"""Passes on graphs, one per file; `Pass`, `Sequential`, `PassContext` and instruments, re-exported from `te.ir`."""

from relayc.relay.transform.absorb_shuffles import AbsorbShuffles
from relayc.relay.transform.align_channels import AlignChannels
from relayc.relay.transform.arrange_weights import ArrangeWeights
from relayc.relay.transform.block_attention import BlockAttention
from relayc.relay.transform.canonicalize_ops import CanonicalizeOps
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
from relayc.relay.transform.function_pass import FunctionPass, RewritePass
from relayc.relay.transform.fuse_ops import FuseOps
from relayc.relay.transform.fuse_siblings import FuseSiblings
from relayc.relay.transform.gradient import gradient
from relayc.relay.transform.join_slices import JoinSlices
from relayc.relay.transform.keep_last_position import KeepLastPosition, find_logits
from relayc.relay.transform.limit_parts import LimitParts
from relayc.relay.transform.lower_dense_bits import LowerDenseBits
from relayc.relay.transform.pack_narrow_constants import PackNarrowConstants
from relayc.relay.transform.pack_weights import PackWeights
from relayc.relay.transform.pipeline import default_pipeline
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
from relayc.relay.transform.update_kv_cache_in_place import UpdateKVCacheInPlace, find_kv_caches
from relayc.relay.transform.widen_products import WidenProducts
from relayc.te.deprecation import deprecated_names as _deprecated_names
from relayc.te.ir import DumpInstrument, Pass, PassContext, PassInstrument, Sequential, TimingInstrument

__all__ = [
    "AbsorbShuffles",
    "AlignChannels",
    "ArrangeWeights",
    "BlockAttention",
    "CanonicalizeOps",
    "ChainPools",
    "CheckIndices",
    "CombineParallelConv2D",
    "CombineParallelDense",
    "CommutePointwiseConv",
    "ConvertLayout",
    "ConvolveByShiftedGemm",
    "ConvolveTransposed",
    "DeadCodeElimination",
    "DumpInstrument",
    "EliminateCommonSubexpr",
    "EncodeStrings",
    "FakeQuantizationToInteger",
    "FoldConstant",
    "FoldPad",
    "FoldQuantizationScales",
    "FoldScaleAxis",
    "FoldTransposeIntoStore",
    "FunctionPass",
    "FuseOps",
    "FuseSiblings",
    "JoinSlices",
    "KeepLastPosition",
    "LimitParts",
    "LowerDenseBits",
    "PackNarrowConstants",
    "PackWeights",
    "Pass",
    "PassContext",
    "PassInstrument",
    "PushElementwiseThroughConcat",
    "ReadOperandsInPlace",
    "RecognizeAttention",
    "RecognizeBlockWeights",
    "RecognizePatterns",
    "RepeatElements",
    "RewritePass",
    "SeparateOutputs",
    "Sequential",
    "ShareRecurrences",
    "SimplifyExpr",
    "SimplifyInference",
    "SumParallelConvolutions",
    "TabulateInt8Activations",
    "TimingInstrument",
    "ToMixedPrecision",
    "TrimKernels",
    "UpdateKVCacheInPlace",
    "WidenProducts",
    "default_pipeline",
    "find_kv_caches",
    "find_logits",
    "gradient",
]

__getattr__ = _deprecated_names(__name__, {
    "FoldCodeScales": "FoldQuantizationScales",
    "KeepCaches": "UpdateKVCacheInPlace",
    "MapBeforeJoining": "PushElementwiseThroughConcat",
    "MovePointwise": "CommutePointwiseConv",
    "SplitTaps": "ConvolveByShiftedGemm",
    "StoreInOrder": "FoldTransposeIntoStore",
    "TabulateBytes": "TabulateInt8Activations",
    "find_caches": "find_kv_caches",
})  # fmt: skip
