"""Passes on graphs, one per file, and the frame they run in."""

from relay.transform.absorb_shuffles import AbsorbShuffles
from relay.transform.align_channels import AlignChannels
from relay.transform.arrange_weights import ArrangeWeights
from relay.transform.block_attention import BlockAttention
from relay.transform.canonicalize_ops import CanonicalizeOps
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
from relay.transform.function_pass import FunctionPass, RewritePass
from relay.transform.fuse_ops import FuseOps
from relay.transform.fuse_siblings import FuseSiblings
from relay.transform.join_slices import JoinSlices
from relay.transform.keep_caches import KeepCaches, find_caches
from relay.transform.map_before_joining import MapBeforeJoining
from relay.transform.move_pointwise import MovePointwise
from relay.transform.pack_narrow_constants import PackNarrowConstants
from relay.transform.pack_weights import PackWeights
from relay.transform.pipeline import default_pipeline
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
from te.ir import DumpInstrument, Pass, PassContext, PassInstrument, Sequential, TimingInstrument

__all__ = [
    "AbsorbShuffles",
    "AlignChannels",
    "ArrangeWeights",
    "BlockAttention",
    "CanonicalizeOps",
    "ChainPools",
    "CombineParallelConv2D",
    "CombineParallelDense",
    "ConvertLayout",
    "ConvolveTransposed",
    "DeadCodeElimination",
    "DumpInstrument",
    "EliminateCommonSubexpr",
    "EncodeStrings",
    "FakeQuantizationToInteger",
    "FoldCodeScales",
    "FoldConstant",
    "FoldPad",
    "FoldScaleAxis",
    "FunctionPass",
    "FuseOps",
    "FuseSiblings",
    "JoinSlices",
    "KeepCaches",
    "MapBeforeJoining",
    "MovePointwise",
    "PackNarrowConstants",
    "PackWeights",
    "Pass",
    "PassContext",
    "PassInstrument",
    "ReadOperandsInPlace",
    "RecognizeAttention",
    "RecognizePatterns",
    "RepeatElements",
    "RewritePass",
    "Sequential",
    "ShareRecurrences",
    "SimplifyExpr",
    "SimplifyInference",
    "SplitTaps",
    "StoreInOrder",
    "SumParallelConvolutions",
    "TabulateBytes",
    "TimingInstrument",
    "ToMixedPrecision",
    "TrimKernels",
    "UnpackWeights",
    "WidenProducts",
    "default_pipeline",
    "find_caches",
]
