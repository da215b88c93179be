"""The CUDA dialect: kernels to the text of CUDA C++."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from relayc.backend.c_like import CLikeGenerator
from relayc.backend.cuda.vectors import VectorAccesses
from relayc.backend.kernels import Kernel
from relayc.te.dtype import DType
from relayc.te.errors import CompileError
from relayc.te.ir import collect
from relayc.te.tir import (
    Add,
    Allocate,
    AttrStmt,
    Broadcast,
    Buffer,
    BufferLoad,
    BufferStore,
    Call,
    Cast,
    FloorDiv,
    FloorMod,
    For,
    ForKind,
    IfThenElse,
    IntImm,
    IterVar,
    Let,
    LetStmt,
    Mul,
    PrimExpr,
    PrimFunc,
    Ramp,
    Range,
    StringImm,
    Var,
    product,
)

__all__ = ["CudaGenerator", "dynamic_shared_bytes"]

_SHARED, _DYNAMIC = "shared", "shared.dyn"
_BARRIERS = {"shared": "__syncthreads()", "warp": "__syncwarp()"}
_BUILTIN = ("threadIdx", "blockIdx", "blockDim", "gridDim", "warpSize")


class CudaGenerator(VectorAccesses, CLikeGenerator):
    """Prints the kernels of one function. All that it calls is C++, a CUDA built-in, or in the prelude."""

    language: ClassVar[str] = "CUDA"
    type_names: ClassVar[dict[str, str]] = {
        "bool": "unsigned char", "int8": "signed char", "int16": "short", "int32": "int", "int64": "long long",
        "uint8": "unsigned char", "uint16": "unsigned short", "uint32": "unsigned", "uint64": "unsigned long long",
        "float16": "rc_float16", "bfloat16": "rc_bfloat16", "float32": "float", "float64": "double",
        "handle": "void*", "void": "void",
    }  # fmt: skip
    keywords: ClassVar[frozenset[str]] = CLikeGenerator.keywords | frozenset((
        "isfinite", "isinf", "isnan",
        *_BUILTIN, "alignas", "asm", "catch", "class", "constexpr", "decltype", "delete", "explicit", "export", "false",
        "friend", "half", "mutable", "namespace", "new", "noexcept", "nullptr", "operator", "private", "protected",
        "public", "template", "this", "throw", "true", "try", "typeid", "typename", "using", "virtual",
        *CLikeGenerator.float_calls.values(), *[f + "f" for f in CLikeGenerator.float_calls.values()],
    ))  # fmt: skip
    storage_floats: ClassVar[frozenset[str]] = frozenset(("float16", "bfloat16"))
    not_a_number: ClassVar[str] = "RC_NAN"
    infinity: ClassVar[str] = "RC_INF"
    address_cast: ClassVar[str] = ""
    loop_pragmas: ClassVar[dict[ForKind, str]] = {ForKind.UNROLLED: "#pragma unroll"}

    def __init__(self, function: PrimFunc, fast_math: bool = False) -> None:
        super().__init__()
        self.function = function
        self.fast_math = fast_math
        self.uses_wgmma = False
        """Do asynchronous tensor cores (wgmma) read shared memory, so that barriers need a proxy fence?"""
        for param in function.params:  # the same names in all kernels of the function
            buffer = function.buffer_map.get(param)
            name = self.name(param)
            if buffer is not None:
                self.names[buffer.data] = name

    def emit_kernel(self, kernel: Kernel, workspaces: Sequence[Buffer]) -> str:
        """The text of one kernel."""
        buffers = {b.data: b for b in (*self.function.buffer_map.values(), *workspaces)}
        written = _written(kernel)
        self.uses_wgmma = any(map(_is_warp_group_product, collect(kernel.body, Call)))
        params = [self.kernel_parameter(v, buffers.get(v), v in written) for v in kernel.arguments]
        self.lines = []
        head = f'extern "C" __global__ void __launch_bounds__({kernel.threads})'
        self.line(f"{head} {kernel.name}({', '.join(params)}) {{")
        self.body(kernel.body)
        self.line("}")
        return "\n".join(self.lines)

    def kernel_parameter(self, var: Var, buffer: Buffer | None, written: bool) -> str:
        """The declaration of a kernel parameter."""
        if buffer is None:
            return f"const {self.type_name(var.dtype)} {self.name(var)}"
        pointer = self.pointers[var] = self.pointer_type(buffer.dtype, buffer.scope)
        alone = " __restrict__" if self.function.attrs.get("noalias", True) else ""
        return f"{'' if written else 'const '}{pointer}{alone} {self.name(var)}"

    # -- numbers

    def visit_IntImm(self, node: IntImm) -> str:
        if node.dtype.bits < 64 or node.dtype.is_handle:
            return super().visit_IntImm(node)
        if node.dtype.is_uint:
            return f"{node.value}ull"
        return f"{node.value}ll" if node.value > -(1 << 63) else f"({node.value + 1}ll - 1)"

    def zero(self, of: DType) -> str:
        return f"{self.type_name(of)}{{}}" if str(of.element) in self.storage_floats else super().zero(of)

    def convert(self, text: str, of: DType, to: DType) -> str:
        if str(to) == "float16" and of.is_float and of.bits == 64:
            return f"rc_to_float16({text})"  # avoids rounding twice
        return super().convert(text, of, to)

    def visit_FloorDiv(self, node: FloorDiv | FloorMod) -> str:
        """Division of non-negative values is C's own, which is cheaper than floor division."""
        if self.is_nonnegative(node.a) and self.is_nonnegative(node.b):
            return f"({self.visit(node.a)} {'/' if isinstance(node, FloorDiv) else '%'} {self.visit(node.b)})"
        return super().visit_FloorDiv(node)

    def is_nonnegative(self, expr: PrimExpr) -> bool:
        """Is an index provably non-negative in every lane?"""
        if isinstance(expr, Ramp):
            return self.is_nonnegative(expr.base) and self.is_nonnegative(expr.stride)
        if isinstance(expr, Broadcast):
            return self.is_nonnegative(expr.value)
        if expr.dtype.lanes == 1:
            return self.analyzer.const_bounds(expr)[0] >= 0
        return (
            isinstance(expr, Add | Mul | FloorDiv | FloorMod)
            and self.is_nonnegative(expr.a)
            and self.is_nonnegative(expr.b)
        )

    visit_FloorMod = visit_FloorDiv

    def visit_Let(self, node: Let) -> str:
        kind, value = self.type_name(node.var.dtype), self.visit(node.value)
        return f"([&] {{ {kind} {self.name(node.var)} = {value}; return {self.visit(node.body)}; }}())"

    def visit_Add(self, node: Add) -> str:
        """Add a dot product of four bytes to another value by one instruction."""
        for total, other in ((node.a, node.b), (node.b, node.a)):
            if isinstance(total, Call) and total.op == "vector_reduce_add":
                text = self.byte_products(total, self.visit(other))
                if text is not None:
                    return text
        return super().visit_Binary(node)

    def call_vector_reduce_add(self, node: Call) -> str:
        text = self.byte_products(node, "0")
        return super().call_vector_reduce_add(node) if text is None else text

    call_vector_reduce_max = call_vector_reduce_min = CLikeGenerator.call_vector_reduce_max

    def byte_products(self, total: Call, start: str) -> str | None:
        """``start + vector_reduce_add(int32x4(a) * int32x4(b))`` of aligned bytes by `__dp4a`; None for other sums."""
        product = total.args[0]
        if not isinstance(product, Mul) or product.dtype.lanes != 4 or product.dtype.element != "int32":
            return None
        loads = [side.value if isinstance(side, Cast) else side for side in (product.a, product.b)]
        words = [self.word(load) for load in loads]
        if None in words or loads[0].dtype.code != loads[1].dtype.code:
            return None
        if loads[0].dtype.is_int:
            return f"__dp4a({words[0]}, {words[1]}, {start})"
        return f"((int)__dp4a({words[0]}, {words[1]}, (unsigned){start}))"

    def word(self, load: PrimExpr) -> str | None:
        """Four aligned adjacent bytes of memory as one 32-bit word."""
        if not isinstance(load, BufferLoad) or load.dtype.bits != 8 or load.dtype.is_bool:
            return None
        base = self.contiguous(load)
        if base is None or self.chunk(load.buffer, base, 4) != 4:
            return None
        kind = "int" if load.dtype.is_int else "unsigned"
        return f"*(const {kind}*)&{self.element_at(load.buffer, self.scalar(base))}"

    # -- loops and threads

    def visit_AttrStmt(self, node: AttrStmt) -> None:
        axis = node.subject
        if node.key != "thread_extent" or not isinstance(axis, IterVar):
            self.visit(node.body)
            return
        self.analyzer.bind(axis.var, Range(0, node.value))
        self.line(f"const int {self.name(axis.var)} = {axis.thread_tag};")
        self.visit(node.body)

    def visit_For(self, node: For) -> None:
        self.analyzer.bind(node.loop_var, Range(node.min, node.extent))
        super().visit_For(node)

    def visit_IfThenElse(self, node: IfThenElse) -> None:
        with self.block(f"if ({self.scalar(node.condition)})"), self.analyzer.constraint(node.condition):
            self.visit(node.then_case)
        if node.else_case is not None:
            with self.block("else"):
                self.visit(node.else_case)

    def visit_LetStmt(self, node: LetStmt) -> None:
        if node.var.dtype.is_int and node.var.dtype.lanes == 1 and not collect(node.value, BufferLoad):
            self.analyzer.bind(node.var, node.value)
        super().visit_LetStmt(node)

    # -- memory

    def declare_array(self, node: Allocate, size: int) -> str:
        buffer = node.buffer
        name, kind, count = self.name(buffer.data), self.type_name(buffer.dtype), max(1, size * buffer.dtype.lanes)
        self.pointers[buffer.data] = self.pointer_type(buffer.dtype, buffer.scope)
        if buffer.scope == _SHARED:
            return f"RC_SHARED({kind}, {name}, {count});"
        if buffer.scope == _DYNAMIC:
            return f"RC_DYN_SHARED({kind}, {name});"
        return f"alignas(16) {kind} {name}[{count}];"

    # -- calls

    def call_storage_sync(self, node: Call) -> str:
        scope = node.args[0]
        name = scope.value if isinstance(scope, StringImm) else ""
        barrier = _BARRIERS.get(name)
        if barrier is None:
            raise CompileError(f"threads of different blocks can't wait for each other: {node}")
        return f"(rc_wgmma_settle(), {barrier})" if self.uses_wgmma and name == "shared" else barrier

    def call_warp_shuffle_xor(self, node: Call) -> str:
        """Printed inline, not through the prelude: the emulation identifies every shuffle of a kernel by its line."""
        mask, value, flip, width = [self.visit(a) for a in node.args]
        of = node.dtype.element
        if of.bits >= 32:
            return f"__shfl_xor_sync({mask}, {value}, {flip}, {width})"
        bits = "unsigned short" if of.bits == 16 else "unsigned char"
        wide = f"__shfl_xor_sync({mask}, (unsigned)rc_reinterpret<{bits}>({value}), {flip}, {width})"
        return f"rc_reinterpret<{self.type_name(of)}>(({bits}){wide})"

    def call_async_copy(self, node: Call) -> str:
        to, source, nbytes, condition = [self.visit(a) for a in node.args]
        for address in node.args[:2]:
            if isinstance(address, Call) and isinstance(address.args[0], BufferLoad):
                self.needs_alignment(address.args[0].buffer, int(nbytes))
        return f"rc_async_copy<{nbytes}>({to}, {source}, {condition})"

    def call_async_commit(self, node: Call) -> str:
        return "rc_async_commit()"

    def call_async_wait(self, node: Call) -> str:
        return f"rc_async_wait<{self.visit(node.args[0])}>()"

    def call_next_draw(self, node: Call) -> str:
        return f"(rc_draws[{self.visit(node.args[0])}]++)"

    def call_call_extern(self, node: Call) -> str:
        name = node.args[0]
        assert isinstance(name, StringImm), "call_extern begins with a name"
        return f"{name.value}({', '.join([self.visit(a) for a in node.args[1:]])})"

    def call_reinterpret(self, node: Call) -> str:
        return f"rc_reinterpret<{self.type_name(node.dtype)}>({self.visit(node.args[0])})"

    def call_popcount(self, node: Call) -> str:
        return f"(({self.type_name(node.dtype)})__popcll({self.as_bits(node.args[0])}))"

    def call_clz(self, node: Call) -> str:
        bits = node.args[0].dtype.bits
        return f"(({self.type_name(node.dtype)})(__clzll({self.as_bits(node.args[0])}) - {64 - bits}))"

    def as_bits(self, value: PrimExpr) -> str:
        unsigned = self.type_names[f"uint{value.dtype.bits}"]
        return f"(unsigned long long)({unsigned}){self.visit(value)}"

    def call_atomic_add(self, node: Call) -> str:
        kind = self.type_name(node.args[1].dtype)
        address, value = (self.visit(a) for a in node.args)
        return f"rc_{node.op}(({kind}*){address}, {value})"

    call_atomic_max = call_atomic_add

    def call_prefetch(self, node: Call) -> str:
        return "((void)0)"

    def call_call_packed(self, node: Call) -> str:
        raise CompileError(f"code on the device can't call Python: {node}")

    call_call_packed_args = call_call_kernel = call_call_packed


def _written(kernel: Kernel) -> set[Var]:
    """Pointers of the buffers that a kernel may write: those it stores to, and those whose address it passes."""
    written = {store.buffer.data for store in collect(kernel.body, BufferStore)}
    read_only = {call.args[1] for call in collect(kernel.body, Call) if call.op == "async_copy"}
    for call in collect(kernel.body, Call):
        if call.op == "address_of" and isinstance(call.args[0], BufferLoad) and call not in read_only:
            written.add(call.args[0].buffer.data)
    return written


def _is_warp_group_product(call: Call) -> bool:
    name = call.args[0] if call.op == "call_extern" else None
    return isinstance(name, StringImm) and name.value.startswith("rc_wgmma")


def dynamic_shared_bytes(kernel: Kernel) -> int:
    """Bytes of dynamic shared memory of a kernel's launch. A kernel has at most one such buffer."""
    buffers = [n.buffer for n in collect(kernel.body, Allocate) if n.buffer.scope == _DYNAMIC]
    assert len(buffers) <= 1, "dynamic shared memory is merged before code is generated"
    return sum([_nbytes(b) for b in buffers])


def _nbytes(buffer: Buffer) -> int:
    count = product(buffer.shape)
    if not isinstance(count, int):
        raise CompileError(f"shared memory {buffer.name} of {count} elements; its size has to be constant")
    return count * buffer.dtype.element.nbytes * buffer.dtype.lanes
