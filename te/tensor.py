"""Tensors: the values between the operations of a tensor expression."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from relayc.te.dtype import DType, dtype
from relayc.te.errors import CompileError
from relayc.te.tir.expr import Dim, PrimExpr, ProducerLoad
from relayc.te.tir.ops import convert

if TYPE_CHECKING:
    from relayc.te.operation import Operation

__all__ = ["Tensor"]


class Tensor:
    """Output `value_index` of operation `op`: `shape` elements of `dtype`. ``A[i, j]`` is an element of it.

    An operation makes its tensors once, so a tensor's identity is the object. (TVM: `tvm.te.Tensor`.)
    """

    __slots__ = ("dtype", "op", "shape", "value_index")

    def __init__(self, shape: tuple[Dim, ...], dtype_: str, op: Operation, value_index: int) -> None:
        self.shape = shape
        self.dtype: DType = dtype(dtype_)
        self.op = op
        self.value_index = value_index

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def name(self) -> str:
        """The operation's name; with the output's number when it has several."""
        return self.op.name if self.op.num_outputs == 1 else f"{self.op.name}.v{self.value_index}"

    def __call__(self, *indices: Any) -> PrimExpr:
        """The element at `indices`, one for each dimension; scalars are read with no index."""
        if len(indices) != len(self.shape):
            raise CompileError(
                f"tensor {self.name} has {len(self.shape)} dimensions {self.shape}, but was read with "
                f"{len(indices)} indices {indices}"
            )
        return ProducerLoad(self, tuple([_index(i, self) for i in indices]))

    def __getitem__(self, indices: Any) -> PrimExpr:
        return self(*indices) if isinstance(indices, tuple) else self(indices)

    def __iter__(self) -> None:
        raise TypeError(f"tensor {self.name} can't be iterated over: read its elements by index inside te.compute")

    def __repr__(self) -> str:
        return f"Tensor({self.name}, shape={self.shape}, dtype={self.dtype})"


def _index(value: Any, tensor: Tensor) -> PrimExpr:
    if isinstance(value, slice):
        raise CompileError(f"tensor {tensor.name} can't be sliced by {value}: give one index for each dimension")
    index = convert(value)
    if not index.dtype.is_integral:
        raise CompileError(f"index {index} of tensor {tensor.name} is a {index.dtype}; expected an integer")
    return index

