"""A Llama-like decoder with random weights in the formats that people deploy, as ONNX files and as GGUF.

The ONNX files have one of two forms. "grouped" is what onnxruntime-genai's builder writes: GroupQueryAttention with
rotary embeddings inside, whose caches may be shared buffers. "standard" has ONNX's own operators: RotaryEmbedding and
Attention of opset 23, which appends to its caches. Both give the logits of the last position only. Weights of the same
seed are the same in all files, and are quantised from the same floats.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

__all__ = ["FORMATS", "LLAMA", "DecoderConfig", "write_gguf", "write_onnx"]

FORMATS = ("float32", "bfloat16", "int8", "int4", "int4_asymmetric")
"""Formats of weights: bfloat16 is float32 in the file, and converted by the engine."""
Floats = npt.NDArray[np.float32]
_OPSET, _IR_VERSION = 23, 11
_MICROSOFT = "com.microsoft"


@dataclass(frozen=True)
class DecoderConfig:
    """Sizes of a decoder."""

    hidden: int = 1024
    inner: int = 2816
    layers: int = 12
    heads: int = 16
    groups: int = 4
    """heads of keys and values"""
    tokens: int = 32000
    positions: int = 2048
    block: int = 32
    """weights of a block that share a scale, in 4 bits"""

    @property
    def head_size(self) -> int:
        """Channels of a head."""
        return self.hidden // self.heads

    def products(self) -> list[tuple[int, int]]:
        """(K, N) of the products of a layer, in the order of their weights."""
        h, kv = self.hidden, self.groups * self.head_size
        return [(h, h), (h, kv), (h, kv), (h, h), (h, self.inner), (h, self.inner), (self.inner, h)]

    @property
    def weights(self) -> int:
        """Weights that a step multiplies with: all but the table of embeddings."""
        return self.layers * sum(k * n for k, n in self.products()) + self.hidden * self.tokens

    def weight_bytes(self, kind: str) -> float:
        """Bytes of these weights, in a format of `FORMATS`."""
        of_block = {"int4": self.block / 2 + 4, "int4_asymmetric": self.block / 2 + 4.5}
        each = {"float32": 4.0, "bfloat16": 2.0, "int8": 1.0}
        return self.weights * (of_block[kind] / self.block if kind in of_block else each[kind])

    def cache_bytes(self, positions: int) -> int:
        """Bytes of the float32 caches of so many positions."""
        return self.layers * 2 * positions * self.groups * self.head_size * 4

    def attention_flops(self, queries: int, past: int) -> int:
        """Operations of causal attention that are needed: a query attends to the keys up to its own position."""
        keys = queries * past + queries * (queries + 1) // 2
        return self.layers * 4 * keys * self.heads * self.head_size


LLAMA = DecoderConfig()
"""201 million parameters, 32.8 million of them embeddings."""


def _drawn(config: DecoderConfig, index: int, shape: tuple[int, int]) -> Floats:
    """Weights number `index`, (K, N)."""
    scale = np.float32(1.5 / shape[0] ** 0.5)
    return np.random.default_rng(index).standard_normal(shape, np.float32) * scale


def _embeddings(config: DecoderConfig) -> Floats:
    return np.random.default_rng(10**6).standard_normal((config.tokens, config.hidden), np.float32)


def _quantized_blocks(weights: Floats, block: int, symmetric: bool) -> tuple[Any, Floats, Any]:
    """Codes (N, blocks, block / 2), scales (N, blocks) and packed zero points of (K, N) weights."""
    depth, columns = weights.shape
    x = np.ascontiguousarray(weights.T).reshape(columns, depth // block, block)
    if symmetric:
        extreme = np.take_along_axis(x, np.abs(x).argmax(-1, keepdims=True), -1)[..., 0]
        scales, zeros = extreme / np.float32(-8), np.full(extreme.shape, 8, np.uint8)
    else:
        low, high = np.minimum(x.min(-1), 0), np.maximum(x.max(-1), 0)
        scales = (high - low) / np.float32(15)
        zeros = np.clip(np.round(-low / scales), 0, 15).astype(np.uint8)
    codes = np.clip(np.round(x / scales[..., None]) + zeros[..., None], 0, 15).astype(np.uint8)
    packed = codes[..., 0::2] | codes[..., 1::2] << 4
    even = np.pad(zeros, ((0, 0), (0, zeros.shape[1] % 2)))
    return packed, scales.astype(np.float32), even[:, 0::2] | even[:, 1::2] << 4


class _Builder:
    """The graph of a decoder, node by node."""

    def __init__(self, config: DecoderConfig, kind: str, grouped: bool, weights_only: bool) -> None:
        self.config, self.kind, self.grouped, self.weights_only = config, kind, grouped, weights_only
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self.drawn = 0

    def constant(self, value: Any, name: str = "") -> str:
        name = name or f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def node(self, op: str, *inputs: str, outputs: int = 1, names: tuple[str, ...] = (), **attrs: Any) -> Any:
        found = names or tuple([f"t{len(self.nodes)}_{i}" for i in range(outputs)])
        self.nodes.append(helper.make_node(op, inputs, found, **attrs))
        return found[0] if len(found) == 1 else found

    def microsoft(self, op: str, *inputs: str, **attrs: Any) -> Any:
        return self.node(op, *inputs, domain=_MICROSOFT, **attrs)

    def product(self, x: str, depth: int, columns: int) -> str:
        weights = _drawn(self.config, self.drawn, (depth, columns))
        self.drawn += 1
        if self.kind in ("float32", "bfloat16"):
            return self.node("MatMul", x, self.constant(weights))
        if self.kind == "int8":
            return self.int8_product(x, weights)
        symmetric = self.kind == "int4"
        codes, scales, zeros = _quantized_blocks(weights, self.config.block, symmetric)
        inputs = [x, self.constant(codes), self.constant(scales), *([] if symmetric else [self.constant(zeros)])]
        return self.microsoft(
            "MatMulNBits", *inputs, K=depth, N=columns, bits=4, block_size=self.config.block, accuracy_level=4
        )

    def int8_product(self, x: str, weights: Floats) -> str:
        """A scale for each column; the data are quantised in the graph, or left to the engine."""
        scales = np.abs(weights).max(axis=0) / np.float32(127)
        values = self.constant(np.round(weights / scales).astype(np.int8))
        if self.weights_only:
            zeros = self.constant(np.zeros(len(scales), np.int8))
            real = self.node("DequantizeLinear", values, self.constant(scales), zeros, axis=1)
            return self.node("MatMul", x, real)
        data, scale, zero = self.quantized(x)
        total = self.node("MatMulInteger", data, values, zero)
        factor = self.node("Mul", scale, self.constant(scales))
        return self.node("Mul", self.node("Cast", total, to=TensorProto.FLOAT), factor)

    def quantized(self, x: str) -> tuple[str, str, str]:
        """Once for all products of the same data."""
        known = next((n for n in self.nodes if n.op_type == "DynamicQuantizeLinear" and n.input[0] == x), None)
        if known is not None:
            return known.output[0], known.output[1], known.output[2]
        return self.node("DynamicQuantizeLinear", x, outputs=3)

    def norm(self, x: str) -> str:
        ones = self.constant(np.ones(self.config.hidden, np.float32))
        if self.grouped:
            return self.node("SimplifiedLayerNormalization", x, ones, axis=-1, epsilon=1e-5)
        return self.node("RMSNormalization", x, ones, axis=-1, epsilon=1e-5)

    def rotations(self) -> tuple[Floats, Floats]:
        """Cosines and sines (positions, head_size / 2)."""
        size = self.config.head_size
        frequencies = 10000.0 ** (-np.arange(0, size, 2) / size)
        angles = np.arange(self.config.positions)[:, None] * frequencies
        return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)

    def caches(self, layer: int) -> tuple[list[str], list[str]]:
        """Inputs and outputs of a layer's keys and values."""
        c = self.config
        past, present = [
            [f"{when}.{layer}.{what}" for what in ("key", "value")] for when in ("past_key_values", "present")
        ]
        for names, length, into in ((past, "past", self.inputs), (present, "all", self.outputs)):
            shape = ["batch", c.groups, length, c.head_size]
            into.extend([helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in names])
        return past, present

    def attention(self, layer: int, q: str, k: str, v: str, shared: dict[str, str]) -> str:
        past, present = self.caches(layer)
        c = self.config
        if self.grouped:
            names = (f"a{layer}", *present)
            inputs = (q, k, v, *past, shared["lengths"], shared["total"], shared["cos"], shared["sin"])
            self.microsoft(
                "GroupQueryAttention", *inputs, names=names, num_heads=c.heads, kv_num_heads=c.groups, do_rotary=1
            )
            return names[0]
        angles = shared["positions"]
        parts = [
            self.node("RotaryEmbedding", x, shared["cos"], shared["sin"], angles, num_heads=n)
            for x, n in ((q, c.heads), (k, c.groups))
        ]
        names = (f"a{layer}", *present)
        self.node(
            "Attention", *parts, v, "", *past, names=names, is_causal=1, q_num_heads=c.heads, kv_num_heads=c.groups
        )
        return names[0]

    def shared(self) -> dict[str, str]:
        """What all layers read: rotations, and lengths or positions."""
        cos, sin = [self.constant(x) for x in self.rotations()]
        if not self.grouped:
            return {"cos": cos, "sin": sin, "positions": "position_ids"}
        one, last = self.constant(np.array([1])), self.constant(np.array(1))
        counts = self.node("ReduceSum", "attention_mask", one, keepdims=0)
        lengths = self.node("Cast", self.node("Sub", counts, one), to=TensorProto.INT32)
        total = self.node("Gather", self.node("Shape", "attention_mask"), last)
        return {"cos": cos, "sin": sin, "lengths": lengths, "total": self.node("Cast", total, to=TensorProto.INT32)}

    def layer(self, x: str, layer: int, shared: dict[str, str]) -> str:
        shapes = iter(self.config.products())
        data = self.norm(x)
        q, k, v = [self.product(data, *next(shapes)) for _ in range(3)]
        x = self.node("Add", x, self.product(self.attention(layer, q, k, v, shared), *next(shapes)))
        data = self.norm(x)
        gate, up = [self.product(data, *next(shapes)) for _ in range(2)]
        gated = self.node("Mul", self.node("Mul", gate, self.node("Sigmoid", gate)), up)
        return self.node("Add", x, self.product(gated, *next(shapes)))

    def model(self) -> onnx.ModelProto:
        c = self.config
        mask = ("attention_mask", "all") if self.grouped else ("position_ids", "new")
        for name, length in (("input_ids", "new"), mask):
            self.inputs.append(helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", length]))
        self.outputs.append(helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 1, c.tokens]))
        shared = self.shared()
        x = self.node("Gather", self.constant(_embeddings(c)), "input_ids")
        for layer in range(c.layers):
            x = self.layer(x, layer, shared)
        bounds = [self.constant(np.array([at])) for at in (-1, np.iinfo(np.int64).max, 1)]
        last = self.norm(self.node("Slice", x, *bounds))
        logits = self.product(last, c.hidden, c.tokens)
        self.node("Identity", logits, names=("logits",))
        graph = helper.make_graph(self.nodes, "decoder", self.inputs, self.outputs, self.constants)
        opsets = [helper.make_opsetid("", 21 if self.grouped else _OPSET), helper.make_opsetid(_MICROSOFT, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION)


def write_onnx(
    folder: Path, config: DecoderConfig, kind: str, *, grouped: bool = True, weights_only: bool = False
) -> Path:
    """Write ``model.onnx`` of a format, and its weights beside it; also the ``genai_config.json`` of onnxruntime-genai.

    int8 products have data that are quantised in the graph (DynamicQuantizeLinear, MatMulInteger), or, with
    `weights_only`, float data and a DequantizeLinear of the weights. A model that is there already is kept.
    """
    path = folder / "model.onnx"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        model = _Builder(config, kind, grouped, weights_only).model()
        onnx.save(model, path, save_as_external_data=True, location="model.onnx.data")
        (folder / "genai_config.json").write_text(json.dumps(_genai_config(config), indent=2))
    return path


def _genai_config(c: DecoderConfig) -> dict[str, Any]:
    names = (("past", "past_key_values"), ("present", "present"))
    caches = {f"{when}_{what}_names": f"{name}.%d.{what}" for when, name in names for what in ("key", "value")}
    inputs = {"input_ids": "input_ids", "attention_mask": "attention_mask"}
    decoder = {
        "session_options": {"intra_op_num_threads": 1, "provider_options": []}, "filename": "model.onnx",
        "head_size": c.head_size, "hidden_size": c.hidden, "num_attention_heads": c.heads,
        "num_hidden_layers": c.layers, "num_key_value_heads": c.groups,
        "inputs": {**inputs, **{k: v for k, v in caches.items() if k.startswith("past")}},
        "outputs": {"logits": "logits", **{k: v for k, v in caches.items() if k.startswith("present")}},
    }  # fmt: skip
    model = {"type": "llama", "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "vocab_size": c.tokens,
             "context_length": c.positions, "decoder": decoder}  # fmt: skip
    search = {"max_length": c.positions, "min_length": 0, "past_present_share_buffer": True, "do_sample": False,
              "num_beams": 1, "num_return_sequences": 1}  # fmt: skip
    return {"model": model, "search": search}


_GGUF_TYPES = {"float32": "F32", "bfloat16": "BF16", "int8": "Q8_0", "int4": "Q4_0", "int4_asymmetric": "Q4_1"}
_GGUF_NAMES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")


def _interleaved(weights: Floats, heads: int) -> Floats:
    """Rows (N, K) of a projection for llama.cpp, which rotates adjacent channels: halves of a head alternate."""
    columns, depth = weights.shape
    return weights.reshape(heads, 2, columns // heads // 2, depth).swapaxes(1, 2).reshape(columns, depth)


def write_gguf(path: Path, config: DecoderConfig, kind: str) -> Path:
    """Write the model for llama.cpp, in the type nearest to a format. A file that is there already is kept."""
    if path.exists():
        return path
    import gguf

    path.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(path, "llama")
    sizes = {
        writer.add_context_length: config.positions, writer.add_embedding_length: config.hidden,
        writer.add_block_count: config.layers, writer.add_feed_forward_length: config.inner,
        writer.add_head_count: config.heads, writer.add_head_count_kv: config.groups,
        writer.add_vocab_size: config.tokens, writer.add_rope_dimension_count: config.head_size,
        writer.add_layer_norm_rms_eps: 1e-5, writer.add_rope_freq_base: 10000.0,
    }  # fmt: skip
    for add, value in sizes.items():
        add(value)  # pyright: ignore[reportArgumentType]: each takes the type of its value
    writer.add_tokenizer_model("no_vocab")
    wanted = gguf.GGMLQuantizationType[_GGUF_TYPES[kind]]

    def add(name: str, value: Floats, kind: gguf.GGMLQuantizationType = wanted) -> None:
        data = gguf.quants.quantize(np.ascontiguousarray(value), kind)
        writer.add_tensor(f"{name}.weight", data, raw_dtype=kind)

    plain, ones = gguf.GGMLQuantizationType.F32, np.ones(config.hidden, np.float32)
    add("token_embd", _embeddings(config), plain if kind == "float32" else gguf.GGMLQuantizationType.F16)
    drawn = partial(_drawn, config)
    for layer in range(config.layers):
        for i, (name, shape) in enumerate(zip(_GGUF_NAMES, config.products(), strict=True)):
            rows = drawn(layer * len(_GGUF_NAMES) + i, shape).T
            heads = {"attn_q": config.heads, "attn_k": config.groups}.get(name)
            add(f"blk.{layer}.{name}", rows if heads is None else _interleaved(rows, heads))
        for name in ("attn_norm", "ffn_norm"):
            add(f"blk.{layer}.{name}", ones, plain)
    add("output_norm", ones, plain)
    add("output", drawn(config.layers * len(_GGUF_NAMES), (config.hidden, config.tokens)).T)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
