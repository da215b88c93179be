"""Rewrites of graphs of aten operators, before they are exported to ONNX.

AOTAutograd has taken operators apart that ONNX, and the compiler, know whole: a linear layer of a tensor of three
dimensions is a view, a product of matrices and a view. `whole_operators` puts them together again.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

import torch
from torch.fx import Graph, Node

__all__ = ["decompositions", "sizes_from_shapes", "whole_operators"]

aten = torch.ops.aten


def whole_operators(graph: Graph) -> None:
    """Replace parts by the operators that they are parts of: linear layers, and attention."""
    for node in list(graph.nodes):
        if node.target is aten.view.default:
            _linear(graph, node)
        elif node.target is aten._scaled_dot_product_flash_attention_for_cpu.default:
            _attention(graph, node)
    graph.eliminate_dead_code()


def _linear(graph: Graph, view: Node) -> None:
    """view(addmm(bias, view(x), t(weight))) is linear(x, weight, bias), where the views keep all but the last size."""
    product = view.args[0]
    if not isinstance(product, Node) or product.target not in (aten.addmm.default, aten.mm.default):
        return
    if product.kwargs or len(product.users) > 1:  # alpha and beta
        return
    *bias, rows, transposed = product.args
    if not _calls(rows, aten.view.default) or not _calls(transposed, aten.t.default):
        return
    x, weight = rows.args[0], transposed.args[0]
    if _shape(x)[:-1] != _shape(view)[:-1] or _shape(x)[-1:] != _shape(rows)[-1:]:
        return
    if bias and len(_shape(bias[0])) != 1:
        return
    _replace(graph, view, aten.linear.default, (x, weight, *bias), {})


def _attention(graph: Graph, node: Node) -> None:
    """The CPU's attention is scaled_dot_product_attention, if nothing else of it is used."""
    names = ("query", "key", "value", "dropout_p", "is_causal")
    passed = dict(zip(names, node.args, strict=False)) | dict(node.kwargs)
    others = [user for user in node.users if user.target is not operator.getitem or user.args[1] != 0]
    if others or passed.pop("dropout_p", 0.0) != 0.0:
        return
    tensors = tuple(passed.pop(name) for name in names[:3])
    if _shape(tensors[0])[1] != _shape(tensors[1])[1]:
        passed["enable_gqa"] = True  # several heads of queries share one of keys
    for user in list(node.users):
        _replace(graph, user, aten.scaled_dot_product_attention.default, tensors, passed)


def _calls(node: object, target: object) -> TypeGuard[Node]:
    return isinstance(node, Node) and node.target is target


def _shape(node: Any) -> tuple[str, ...]:
    """The sizes as text: comparing symbolic ones themselves would add guards."""
    return tuple(map(str, node.meta["val"].shape))


def _replace(graph: Graph, old: Node, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    with graph.inserting_before(old):
        new = graph.call_function(target, args, kwargs)
    new.meta = dict(old.meta)
    old.replace_all_uses_with(new)
    graph.erase_node(old)


def sizes_from_shapes(graph: Graph) -> None:
    """Take each size that is an input from the shape of a tensor that has it, if there is one.

    The compiler then knows it as a symbolic dimension; an integer input would be a value, known at run time only.
    """
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    tensors = [node for node in placeholders if isinstance(node.meta.get("val"), torch.Tensor)]
    first = next(node for node in graph.nodes if node.op != "placeholder")
    for node in placeholders:
        size = node.meta.get("val")
        if not isinstance(size, torch.SymInt) or not node.users:
            continue
        found = _axis_of(size, tensors)
        if found is not None:
            with graph.inserting_before(first):
                taken = graph.call_function(aten.sym_size.int, found)
            taken.meta["val"] = size
            node.replace_all_uses_with(taken)


def _axis_of(size: torch.SymInt, tensors: Sequence[Node]) -> tuple[Node, int] | None:
    """A tensor, and its axis of this symbolic size."""
    for tensor in tensors:
        for axis, extent in enumerate(tensor.meta["val"].shape):
            if isinstance(extent, torch.SymInt) and str(extent) == str(size):
                return tensor, axis
    return None


def decompositions() -> dict[Any, Callable[..., Any]]:
    """Fused operators of eager mode, which ONNX has not, as the operators that they consist of."""
    return {aten._transformer_encoder_layer_fwd.default: _encoder_layer}


def _encoder_layer(
    src: torch.Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: torch.Tensor,
    norm_bias_1: torch.Tensor,
    norm_weight_2: torch.Tensor,
    norm_bias_2: torch.Tensor,
    ffn_weight_1: torch.Tensor,
    ffn_bias_1: torch.Tensor,
    ffn_weight_2: torch.Tensor,
    ffn_bias_2: torch.Tensor,
    mask: torch.Tensor | None = None,
    mask_type: int | None = None,
) -> torch.Tensor:
    """`torch.nn.TransformerEncoderLayer` in evaluation: src is (batch, positions, embed_dim).

    `mask` is true where a position is left out: (positions, positions) for type 0, (batch, positions) for type 1, and
    (batch, heads, positions, positions) for type 2.
    """
    F = torch.nn.functional
    batch, positions, _ = src.shape

    def norm_1(x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, (embed_dim,), norm_weight_1, norm_bias_1, eps)

    def norm_2(x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, (embed_dim,), norm_weight_2, norm_bias_2, eps)

    def attention(x: torch.Tensor) -> torch.Tensor:
        projected = F.linear(x, qkv_weight, qkv_bias).view(batch, positions, 3, num_heads, embed_dim // num_heads)
        query, key, value = projected.permute(2, 0, 3, 1, 4).unbind(0)
        bias = None
        if mask is not None:
            left_out = mask.view(batch, 1, 1, positions) if mask_type == 1 else mask
            bias = torch.zeros_like(left_out, dtype=x.dtype).masked_fill(left_out.to(torch.bool), float("-inf"))
        mixed = F.scaled_dot_product_attention(query, key, value, bias)
        return F.linear(mixed.transpose(1, 2).reshape(batch, positions, embed_dim), proj_weight, proj_bias)

    def feed_forward(x: torch.Tensor) -> torch.Tensor:
        hidden = F.linear(x, ffn_weight_1, ffn_bias_1)
        return F.linear(F.gelu(hidden) if use_gelu else F.relu(hidden), ffn_weight_2, ffn_bias_2)

    if norm_first:
        x = src + attention(norm_1(src))
        return x + feed_forward(norm_2(x))
    x = norm_1(src + attention(src))
    return norm_2(x + feed_forward(x))
