"""Argument checks: makes a raw kernel and a host function that checks and calls it from a function of the loop IR.

The host function `int32 f__packed(Ctx*, void* args, int32* type_codes, int32 num_args, int64* error)` sees arguments as
Python passes them: 8-byte values (scalars, or addresses of DLPack's `DLTensor`) with a type code each. It checks all of
them, takes symbolic sizes from the shapes, and calls the kernel. Each check is an `AssertStmt`; if the k-th of them in
textual order fails, the function stores its values to `error` and returns k. Its message, with a placeholder for each
value, is ``attrs["messages"][k - 1]``. TVM: MakePackedAPI and ArgBinder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from relayc.backend.runtime.context import ARG_FLOAT, ARG_HANDLE, ARG_INT, ARG_NULL, ARG_STR, ARG_TENSOR
from relayc.backend.runtime.device import dlpack_type_of
from relayc.backend.runtime.dtype import data_type
from relayc.backend.runtime.module import HOST_SUFFIX
from relayc.te.dtype import HANDLE, INT32, INT64, DType, dtype
from relayc.te.errors import VerifyError
from relayc.te.ir import collect
from relayc.te.tir import (
    AssertStmt,
    Buffer,
    BufferStore,
    Call,
    Dim,
    Evaluate,
    LetStmt,
    PrimExpr,
    PrimFunc,
    Stmt,
    StringImm,
    Var,
    call_intrin,
    cast,
    const,
    convert,
    product,
    select,
)
from relayc.te.tir.ops import all as all_of, any as any_of, equal, logical_or, not_equal

__all__ = ["make_host_function", "make_kernel"]

_WORD = 8  # bytes of one packed argument value
# Byte offsets of the fields of a DLTensor on a 64-bit machine.
_DATA, _DEVICE_TYPE, _DEVICE_ID, _NDIM, _DTYPE, _SHAPE, _STRIDES, _BYTE_OFFSET = 0, 8, 12, 16, 20, 24, 32, 40

Wrap = Callable[[Stmt], Stmt]


def size_variables(function: PrimFunc) -> tuple[Var, ...]:
    """Variables in shapes and strides of parameters that are not parameters themselves, in order of appearance."""
    found: dict[int, Var] = {}
    for buffer in function.buffer_map.values():
        for dim in (*buffer.shape, *(buffer.strides or ())):
            for var in collect(dim, Var) if isinstance(dim, PrimExpr) else ():
                found.setdefault(id(var), var)
    return tuple(var for var in found.values() if not any(var is param for param in function.params))


def make_kernel(function: PrimFunc) -> PrimFunc:
    """The raw kernel: symbolic sizes that are not parameters are appended as scalar parameters."""
    sizes = size_variables(function)
    return function.replace(params=(*function.params, *sizes)) if sizes else function


def make_host_function(function: PrimFunc, device_kind: str, *, remote: bool) -> PrimFunc:
    """The host function of `function`, whose buffers live on devices of kind `device_kind`.

    It calls the kernel of the same module, or, when `remote`, forwards its arguments to the function of that name in
    an imported module. Raises VerifyError for a parameter that can't be checked: a symbolic size that stands alone in
    no shape, a buffer with an offset.
    """
    binder = _Binder(function, dlpack_type_of(device_kind), addressable=device_kind == "cpu")
    binder.bind_all()
    args = (binder.args, binder.codes, binder.count)
    if remote:
        call = Call(INT32, "call_packed_args", (StringImm(function.name), *args))
    else:
        call = Call(INT32, "call_kernel", (StringImm(function.name), *binder.kernel_arguments()))
    body: Stmt = Evaluate(call)
    for wrap in reversed(binder.steps):
        body = wrap(body)
    attrs = {
        "global_symbol": function.name + HOST_SUFFIX,
        "calling_convention": "packed",
        "host_of": function.name,
        "messages": tuple(binder.messages),
    }
    return PrimFunc((*args, binder.error), body, {}, attrs, span=function.span)


def _load(of: str, base: PrimExpr, offset: int) -> PrimExpr:
    return call_intrin(of, "load_at", base, const(offset, "int64"))


def _wide(dim: Dim | PrimExpr) -> PrimExpr:
    return cast(INT64, convert(dim))


@dataclass
class _Binder:
    """Collects the statements of one host function, definitions and checks, outermost first."""

    function: PrimFunc
    device_type: int
    addressable: bool
    args: Var = field(default_factory=lambda: Var("args", HANDLE))
    codes: Var = field(default_factory=lambda: Var("type_codes", HANDLE))
    count: Var = field(default_factory=lambda: Var("num_args", INT32))
    error: Var = field(default_factory=lambda: Var("error", HANDLE))
    steps: list[Wrap] = field(default_factory=list[Wrap])
    messages: list[str] = field(default_factory=list[str])
    pointers: dict[int, Var] = field(default_factory=dict[int, Var])  # id(param) -> address of element 0
    spans: list[tuple[str, Buffer, Var, PrimExpr]] = field(default_factory=list[tuple[str, Buffer, Var, PrimExpr]])
    bound: set[int] = field(default_factory=set[int])  # id of scalar parameters and sizes known so far

    def bind_all(self) -> None:
        params = self.function.params
        expected = f"expected {len(params)} arguments ({', '.join(self._names())}), got {{}}"
        self.check(equal(self.count, len(params)), expected, self.count)
        tensors = [(i, p, self.function.buffer_map[p]) for i, p in enumerate(params) if p in self.function.buffer_map]
        for i, param in enumerate(params):
            if param not in self.function.buffer_map:
                self._bind_scalar(i, param)
        parts = [_Tensor(self, i, param, buffer) for i, param, buffer in tensors]
        for tensor in parts:
            tensor.check_kind()
        for tensor in parts:
            tensor.bind_sizes()
        self._require_all_sizes()
        for tensor in parts:
            tensor.check_sizes()
            tensor.bind_pointer()
        if self.addressable and self.function.attrs.get("noalias", True):
            self._check_overlaps()

    def kernel_arguments(self) -> Iterable[PrimExpr]:
        """The arguments of the kernel call: addresses and scalars, then symbolic sizes."""
        for param in (*self.function.params, *size_variables(self.function)):
            yield self.pointers.get(id(param), param)

    def _names(self) -> list[str]:
        buffers = self.function.buffer_map
        return [buffers[p].name if p in buffers else p.name for p in self.function.params]

    def define(self, name: str, value: PrimExpr) -> Var:
        """A new variable bound to `value` in all following statements."""
        var = Var(name, value.dtype)
        self.let(var, value)
        return var

    def let(self, var: Var, value: PrimExpr) -> None:
        self.steps.append(lambda body: LetStmt(var, value, body))

    def check(self, condition: PrimExpr, message: str, *values: PrimExpr) -> None:
        """Fail with `message`, its placeholders filled with `values`, unless `condition`."""
        self.messages.append(message)
        wide = tuple(_wide(v) for v in values)
        self.steps.append(lambda body: AssertStmt(condition, message, wide, body))

    def code_of(self, position: int) -> PrimExpr:
        return _load("int32", self.codes, 4 * position)

    def _bind_scalar(self, position: int, param: Var) -> None:
        of, where = param.dtype, f"argument {position} ({param.name})"
        code = self.code_of(position)
        integer = _load("int64", self.args, _WORD * position)
        if of.is_handle:
            kinds = [equal(code, k) for k in (ARG_HANDLE, ARG_NULL, ARG_STR)]
            self.check(any_of(*kinds), f"{where}: expected a handle, got a value of kind {{:kind}}", code)
            self.let(param, _load("handle", self.args, _WORD * position))
        elif of.is_float:
            known = any_of(equal(code, ARG_FLOAT), equal(code, ARG_INT))
            self.check(known, f"{where}: expected a number of type {of}, got a value of kind {{:kind}}", code)
            number = _load("float64", self.args, _WORD * position)
            self.let(param, cast(of, select(equal(code, ARG_INT), cast("float64", integer), number)))
        else:
            text = f"{where}: expected an integer of type {of}, got a value of kind {{:kind}}"
            self.check(equal(code, ARG_INT), text, code)
            self.check_range(integer, of, f"{where}: value {{}} does not fit {of}")
            self.let(param, cast(of, integer))
        self.bound.add(id(param))

    def check_range(self, value: PrimExpr, of: DType, message: str) -> None:
        """Fail unless the 64-bit `value` is in the range of the integer type `of`."""
        if of.bits < 64:
            low, high = const(of.min_value(), "int64"), const(of.max_value(), "int64")
            self.check(all_of(value >= low, value <= high), message, value)

    def _require_all_sizes(self) -> None:
        for var in size_variables(self.function):
            if id(var) not in self.bound:
                raise VerifyError(
                    f"function {self.function.name!r}: the symbolic size {var.name!r} is not an extent of any shape, "
                    f"so it can't be taken from the arguments; add {var.name!r} to the arguments"
                )

    def _check_overlaps(self) -> None:
        """A buffer that is written must not overlap any other: kernels rely on it."""
        written = {id(store.buffer.data) for store in collect(self.function.body, BufferStore)}
        for i, (name, buffer, start, nbytes) in enumerate(self.spans):
            for other, other_buffer, other_start, other_nbytes in self.spans[:i]:
                if id(buffer.data) not in written and id(other_buffer.data) not in written:
                    continue
                zero = const(0, "int64")
                disjoint = any_of(start + nbytes <= other_start, other_start + other_nbytes <= start,
                               equal(nbytes, zero), equal(other_nbytes, zero))  # fmt: skip
                text = f"{name} at {{}} overlaps {other} at {{}}; a result needs memory of its own"
                self.check(disjoint, text, start, other_start)


class _Tensor:
    """The checks of one tensor argument, ordered so that a field is checked before it is used."""

    def __init__(self, binder: _Binder, position: int, param: Var, buffer: Buffer) -> None:
        if buffer.elem_offset != 0 or not isinstance(buffer.elem_offset, int):
            raise VerifyError(
                f"function {binder.function.name!r}: parameter {buffer.name!r} has the element offset "
                f"{buffer.elem_offset}; parameters start at element 0"
            )
        self.binder, self.position, self.param, self.buffer = binder, position, param, buffer
        self.where = f"argument {position} ({buffer.name})"
        self.tensor = Var(f"{buffer.name}_tensor", HANDLE)
        self.dims: list[Var] = []

    def check_kind(self) -> None:
        """Check that it is a tensor of the right element type and rank, on the right device."""
        binder, buffer, check = self.binder, self.buffer, self.binder.check
        code = binder.code_of(self.position)
        rank = len(buffer.shape)
        text = f"{self.where}: expected a {buffer.dtype} tensor of {rank} dimensions, got a value of kind {{:kind}}"
        check(equal(code, ARG_TENSOR), text, code)
        binder.let(self.tensor, _load("handle", binder.args, _WORD * self.position))
        element = _load("uint32", self.tensor, _DTYPE)
        info = data_type(str(buffer.dtype))
        wanted = info.code | info.bits << 8 | info.lanes << 16
        text = f"{self.where}: dtype is {{:dtype}}, expected {buffer.dtype}"
        check(equal(element, const(wanted, "uint32")), text, element)
        ndim = _load("int32", self.tensor, _NDIM)
        text = f"{self.where}: has {{}} dimensions, expected {rank}: shape {_shape_text(buffer)}"
        check(equal(ndim, rank), text, ndim)
        kind, index = _load("int32", self.tensor, _DEVICE_TYPE), _load("int32", self.tensor, _DEVICE_ID)
        text = f"{self.where}: is on device {{:device}}, expected {{:device}}"
        check(equal(kind, self.binder.device_type), text, kind, convert(self.binder.device_type))
        first = binder.pointers.get(-1)
        if first is None:
            binder.pointers[-1] = binder.define("device_id", index)
        else:
            text = f"{self.where}: is on device {{}} of its kind, the arguments before it on {{}}"
            check(equal(index, first), text, index, first)
        shape = _load("handle", self.tensor, _SHAPE)
        for axis in range(rank):
            self.dims.append(binder.define(f"{buffer.name}_shape_{axis}", _load("int64", shape, 8 * axis)))

    def bind_sizes(self) -> None:
        """Bind the symbolic sizes that are a whole extent of the shape and have no value yet."""
        for axis, dim in enumerate(self.buffer.shape):
            if isinstance(dim, Var) and id(dim) not in self.binder.bound:
                text = f"{self.where}: shape[{axis}] is {{}}, which does not fit {dim.dtype}"
                self.binder.check_range(self.dims[axis], dim.dtype, text)
                self.binder.let(dim, cast(dim.dtype, self.dims[axis]))
                self.binder.bound.add(id(dim))
        for axis, stride in enumerate(self.buffer.strides or ()):
            if isinstance(stride, Var) and id(stride) not in self.binder.bound:
                self.binder.let(stride, cast(stride.dtype, self._stride(axis)))
                self.binder.bound.add(id(stride))

    def check_sizes(self) -> None:
        """Check shape and strides against the buffer's, with symbolic sizes bound."""
        for axis, dim in enumerate(self.buffer.shape):
            actual, wanted = self.dims[axis], _wide(dim)
            name = "" if isinstance(dim, int) else f" ({dim})"
            text = f"{self.where}: shape[{axis}] is {{}}, expected {{}}{name}"
            self.binder.check(equal(actual, wanted), text, actual, wanted)
        symbolic = [dim for dim in self.buffer.shape if isinstance(dim, PrimExpr)]
        if any(dim.dtype.bits < 64 for dim in symbolic):
            elements = self._elements()
            text = f"{self.where}: has {{}} elements, more than the index type int32 can count"
            self.binder.check(elements <= const(INT32.max_value(), "int64"), text, elements)
        if self.buffer.strides is None:
            self._check_contiguous()
        else:
            self._check_strides(self.buffer.strides)

    def _elements(self) -> PrimExpr:
        return convert(product([_wide(dim) for dim in self.buffer.shape]))

    def _stride(self, axis: int) -> PrimExpr:
        return _load("int64", _load("handle", self.tensor, _STRIDES), 8 * axis)

    def _check_contiguous(self) -> None:
        """Check for null strides, or those of a dense row-major array; an axis of at most one element may have any
        stride."""
        dense = equal(_load("int64", self.tensor, _STRIDES), const(0, "int64"))
        wanted: PrimExpr = const(1, "int64")
        for axis in reversed(range(len(self.buffer.shape))):
            dim = self.buffer.shape[axis]
            if dim == 0:
                return
            if dim != 1:
                stride = self._stride(axis)
                fits = any_of(dense, self.dims[axis] <= const(1, "int64"), equal(stride, wanted))
                text = f"{self.where}: strides[{axis}] is {{}}, expected {{}} (contiguous, row-major)"
                self.binder.check(fits, text, stride, wanted)
            wanted = wanted * _wide(dim)

    def _check_strides(self, strides: tuple[Dim, ...]) -> None:
        present = not_equal(_load("int64", self.tensor, _STRIDES), const(0, "int64"))
        self.binder.check(present, f"{self.where}: has no strides, expected {len(strides)} of them")
        for axis, wanted in enumerate(strides):
            stride = self._stride(axis)
            text = f"{self.where}: strides[{axis}] is {{}}, expected {{}}"
            self.binder.check(equal(stride, _wide(wanted)), text, stride, _wide(wanted))

    def bind_pointer(self) -> None:
        """Bind the address of element 0, checked to be non-null and aligned unless the array is empty."""
        binder, name = self.binder, self.buffer.name
        offset = _load("int64", self.tensor, _BYTE_OFFSET)
        address = binder.define(f"{name}_address", _load("int64", self.tensor, _DATA) + offset)
        empty = equal(self._elements(), const(0, "int64"))
        binder.check(logical_or(not_equal(address, const(0, "int64")), empty), f"{self.where}: has no data (null)")
        element_bytes = dtype(str(self.buffer.dtype)).nbytes
        align = min(self.buffer.align, element_bytes)  # kernels of the host rely on no more
        if self.binder.addressable and align > 1:
            ok = logical_or(equal(address % const(align, "int64"), const(0, "int64")), empty)
            text = f"{self.where}: lies at address {{}}, expected a multiple of {align}; copy it with nd.array"
            binder.check(ok, text, address)
        pointer = call_intrin("handle", "handle_add_byte_offset", _load("handle", self.tensor, _DATA), offset)
        binder.pointers[id(self.param)] = binder.define(f"{name}_data", pointer)
        nbytes = self._elements() * const(element_bytes, "int64")
        binder.spans.append((self.where, self.buffer, address, nbytes))


def _shape_text(buffer: Buffer) -> str:
    return "(" + ", ".join(str(dim) for dim in buffer.shape) + ("," if len(buffer.shape) == 1 else "") + ")"
