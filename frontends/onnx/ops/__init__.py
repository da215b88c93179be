"""Converters of ONNX operators, one module per family. Importing a module registers its converters.

Families are imported lazily, when the first of their operators is looked up.
"""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module

__all__ = ["load_all_converters", "load_converters"]

_OPERATORS: dict[str, dict[str, str]] = {
    "": {
        "attention": "Attention RotaryEmbedding",
        "cast": "BitCast Cast CastLike",
        "constant": "Constant ConstantOfShape EyeLike Range Shape Size",
        "control": "If Loop",
        "convolution": "CausalConvWithState Conv ConvTranspose",
        "deform": "DeformConv",
        "einsum": "Einsum",
        "elementwise": (
            "Abs Acos Acosh Add And Asin Asinh Atan Atanh BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor "
            "Ceil Celu Clip Cos Cosh Div Elu Equal Erf Exp Floor Gelu Greater GreaterOrEqual HardSigmoid "
            "HardSwish Identity IsInf IsNaN LeakyRelu Less LessOrEqual Log Max Mean Min Mish Mod Mul Neg Not Or "
            "PRelu Pow Reciprocal Relu Round Selu Shrink Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Sub Sum "
            "SwiGLU Swish Tan Tanh ThresholdedRelu Where Xor"
        ),
        "fourier": "DFT STFT",
        "gather": (
            "CumProd CumSum Gather GatherElements GatherND OneHot ReverseSequence Scatter ScatterElements "
            "ScatterND TensorScatter TopK"
        ),
        "image": "ImageDecoder",
        "grid": "AffineGrid CenterCropPad GridSample",
        "linear": "Det Gemm MatMul",
        "linear_attention": "LinearAttention",
        "loss": "NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss",
        "normalization_microsoft": "SimplifiedLayerNormalization",
        "normalization": (
            "BatchNormalization GroupNormalization InstanceNormalization LRN LayerNormalization LpNormalization "
            "MeanVarianceNormalization RMSNormalization"
        ),
        "optional": "Optional OptionalGetElement OptionalHasElement",
        "padding": "Pad",
        "pooling": "AveragePool Col2Im GlobalAveragePool GlobalLpPool GlobalMaxPool LpPool MaxPool MaxUnpool",
        "quantization": (
            "ConvInteger DequantizeLinear DynamicQuantizeLinear MatMulInteger QLinearConv QLinearMatMul QuantizeLinear"
        ),
        "random": "Bernoulli Dropout Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike",
        "recurrent": "GRU LSTM RNN",
        "reduction": (
            "ArgMax ArgMin ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin "
            "ReduceProd ReduceSum ReduceSumSquare"
        ),
        "resize": "Resize Upsample",
        "scan": "Scan",
        "selection": "Compress NonMaxSuppression NonZero Unique",
        "sequence": (
            "ConcatFromSequence SequenceAt SequenceConstruct SequenceEmpty SequenceErase SequenceInsert "
            "SequenceLength SequenceMap SplitToSequence"
        ),
        "shape": (
            "Concat DepthToSpace Expand Flatten Reshape Slice SpaceToDepth Split Squeeze Tile Transpose Trilu Unsqueeze"
        ),
        "signal": "BlackmanWindow HammingWindow HannWindow MelWeightMatrix",
        "softmax": "Hardmax LogSoftmax Softmax",
        "strings": "Equal RegexFullMatch StringConcat StringNormalizer StringSplit",
        "text": "TfIdfVectorizer",
        "vision": "MaxRoiPool RoiAlign",
    },
    "ai.onnx.ml": {
        "ml": (
            "ArrayFeatureExtractor Binarizer FeatureVectorizer Imputer LinearClassifier LinearRegressor "
            "Normalizer OneHotEncoder Scaler"
        ),
        "ml_labels": "CategoryMapper LabelEncoder ZipMap",
        "ml_svm": "SVMClassifier SVMRegressor",
        "ml_trees": "TreeEnsemble TreeEnsembleClassifier TreeEnsembleRegressor",
    },
    "ai.onnx.preview.training": {
        "gradient": "Gradient",
        "optimizer": "Adagrad Adam Momentum",
    },
    "com.microsoft": {
        "attention_microsoft": "Attention MultiHeadAttention QAttention",
        "convolution_microsoft": "ConvTransposeWithDynamicPads FusedConv NhwcConv NhwcFusedConv QLinearConv",
        "decoding_microsoft": "DecoderMaskedMultiHeadAttention MRotaryEmbedding",
        "elementwise_microsoft": (
            "BiasAdd BiasDropout BiasGelu BiasSoftmax BiasSplitGelu FastGelu GatedAdd Gelu IsAllFinite MulInteger "
            "QuickGelu ScaledSiLU"
        ),
        "mixture_of_experts_microsoft": "MoE QMoE",
        "promoted_microsoft": "CDist GatherND GridSample Pad Range Trilu Unique",
        "gather_microsoft": "ExpandDims GatherBlockQuantized",
        "attention_grouped_microsoft": "GroupQueryAttention RotaryEmbedding",
        "normalization_microsoft": (
            "EmbedLayerNormalization GatedRMSNorm GroupNorm QEmbedLayerNormalization SimplifiedLayerNormalization "
            "SkipGroupNorm SkipLayerNormalization SkipSimplifiedLayerNormalization"
        ),
        "attention_positions_microsoft": "GatedRelativePositionBias GemmaRotaryEmbedding RelativePositionBias",
        "linear_microsoft": (
            "DynamicQuantizeMatMul FusedGemm FusedMatMul FusedMatMulActivation Inverse MatMulBnb4 MatMulInteger16 "
            "MatMulIntegerToFloat MatMulNBits TransposeMatMul"
        ),
        "quantization_microsoft": (
            "DequantizeLinear DynamicQuantizeLSTM NhwcMaxPool QGemm QLinearAdd QLinearAveragePool QLinearConcat "
            "QLinearGlobalAveragePool QLinearLeakyRelu QLinearMul QLinearReduceMean QLinearSigmoid QLinearSoftmax "
            "QLinearWhere QuantizeLinear"
        ),
        "recurrent_microsoft": "BranchwiseRMSNorm CausalConvWithState LinearAttention LinearAttentionGate",
        "attention_sparse_microsoft": "SparseAttention",
        "text_microsoft": "Tokenizer",
        "vision": "CropAndResize",
    },
}
"""Operators by domain and family; one may have versions in several families."""


@lru_cache(maxsize=1)
def _families() -> dict[tuple[str, str], list[str]]:
    """The families of each operator, by domain and name."""
    found: dict[tuple[str, str], list[str]] = {}
    for domain, families in _OPERATORS.items():
        for family, names in families.items():
            for name in names.split():
                found.setdefault((domain, name), []).append(family)
    return found


@lru_cache(maxsize=1024)
def load_converters(domain: str, name: str) -> None:
    """Register the converters of an operator, if there are any; idempotent."""
    for family in _families().get((domain, name), ()):
        import_module(f"relayc.frontends.onnx.ops.{family}")


def load_all_converters() -> None:
    """Register every converter."""
    for domain, name in _families():
        load_converters(domain, name)
