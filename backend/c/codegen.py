"""The C dialect of the C-like generator, and "target.build.c": a module of loop functions to a `CModule`."""

from __future__ import annotations

from typing import ClassVar

from relayc.backend.c.compiler import compile_shared_library, feature_check
from relayc.backend.c.prelude import PRELUDE
from relayc.backend.c.runtime import CFunction, CModule
from relayc.backend.c_like import CLikeGenerator
from relayc.backend.runtime.context import ARG_FLOAT, ARG_HANDLE, ARG_INT, ARG_STR
from relayc.backend.runtime.packed_func import BUFFER
from relayc.backend.target import Target
from relayc.te.dtype import dtype
from relayc.te.errors import CompileError
from relayc.te.ir import IRModule
from relayc.te.tir import (
    Allocate,
    AssertStmt,
    Call,
    Evaluate,
    For,
    ForKind,
    IntImm,
    PrimExpr,
    PrimFunc,
    StringImm,
    Var,
    product,
)
from relayc.te.tir.analysis import free_variables
from relayc.te.tir.passes.legalize_compute import legalize_compute
from relayc.te.tir.passes.narrow_types import lower_narrow_types

__all__ = ["CGenerator", "build", "generate_source"]

STACK_BYTES = 64 << 10
"""Maximum bytes of a stack allocation; larger scratch memory comes from the execution context."""


class CGenerator(CLikeGenerator):
    """Generates GNU C for GCC and Clang. `symbols` maps the functions of the module to their symbols."""

    loop_pragmas: ClassVar[dict[ForKind, str]] = {
        ForKind.UNROLLED: "#pragma GCC unroll 64",
        ForKind.VECTORIZED: "#pragma GCC ivdep",
    }

    def __init__(self, symbols: dict[str, str]) -> None:
        super().__init__()
        self.symbols = symbols
        self.tasks = 0
        self.in_task = False
        self.workspaces: list[str] = []  # allocated at this point of the function, in the order of allocation
        self.checks: int | None = None  # of a host function: number of assertions emitted so far

    def emit_function(self, function: PrimFunc) -> str:
        """The text of a function, preceded by the outlined bodies of its parallel loops."""
        params = ", ".join(["Ctx* ctx", *[self.parameter(function, p) for p in function.params]])
        is_host = function.attrs.get("calling_convention") == "packed"
        self.symbol = self.symbols[function.name]
        self.checks = 0 if is_host else None
        self.line(f"{'int32_t' if is_host else 'void'} {self.symbol}({params}) {{")
        self.body(function.body)
        if is_host:
            self.line("  return 0;")
        self.line("}")
        return "\n".join([*self.forward, *self.lines])

    def parameter(self, function: PrimFunc, param: Var) -> str:
        text = super().parameter(function, param)
        if param in function.buffer_map and function.attrs.get("noalias", True):
            return text.replace("* ", "* restrict ")
        return text

    # -- parallel loops

    def visit_For(self, node: For) -> None:
        single = isinstance(node.extent, IntImm) and node.extent.value <= 1
        if node.kind is ForKind.PARALLEL and not self.in_task and not single:
            self.parallel_loop(node)
        else:
            super().visit_For(node)

    def parallel_loop(self, loop: For) -> None:
        """Outline the body as a task: task t of n runs the iterations [t * extent / n, (t + 1) * extent / n)."""
        captured = [var for var in free_variables(loop.body) if var is not loop.loop_var]
        number, self.tasks = self.tasks, self.tasks + 1
        closure, task = f"{self.symbol}_closure{number}", f"{self.symbol}_task{number}"
        fields = [(self.captured_type(var), self.name(var)) for var in captured]
        values = ", ".join([self.scalar(loop.min), self.scalar(loop.extent), *[name for _, name in fields]])
        with self.block(""):
            self.line(f"{closure} closure_ = {{{values}}};")
            self.line("if (closure_.extent_ > 0)")
            tasks = f"rc_least(closure_.extent_, {loop.most_threads})"
            self.line(f"  ctx->parallel(ctx, {task}, &closure_, {tasks}, 1);")
        self.leave_if("ctx->shortage")
        outer, self.lines, depth, self.depth = self.lines, [], self.depth, 0
        workspaces, self.workspaces = self.workspaces, []
        self.in_task = True
        self.line(f"typedef struct {{ int64_t low_, extent_; {' '.join(f'{t} {n};' for t, n in fields)} }} {closure};")
        numbers = "int32_t task_, int32_t tasks_, int64_t step_, int32_t threads_"
        with self.block(f"static void {task}(Ctx* ctx, void* closure_, {numbers})"):
            self.leave_if("ctx->shortage")
            self.line(f"{closure}* shared_ = ({closure}*)closure_;")
            for kind, name in fields:
                self.line(f"{kind} {name} = shared_->{name};")
            self.line("int64_t first_ = shared_->low_ + shared_->extent_ * task_ / tasks_;")
            self.line("int64_t last_ = shared_->low_ + shared_->extent_ * (task_ + 1) / tasks_;")
            kind, var = self.type_name(loop.loop_var.dtype), self.name(loop.loop_var)
            with self.block(f"for ({kind} {var} = first_; {var} < last_; ++{var})"):
                self.visit(loop.body)
        self.in_task = False
        self.forward.append("\n".join(self.lines))
        self.lines, self.depth, self.workspaces = outer, depth, workspaces

    def captured_type(self, var: Var) -> str:
        """The type of a captured variable in a closure; a vector is captured by pointer to the waiting caller's
        array."""
        return self.pointers.get(var, self.type_name(var.dtype) + ("*" if var in self.vectors else ""))

    # -- memory and checks

    def visit_Allocate(self, node: Allocate) -> None:
        size, name = product(node.buffer.shape), self.name(node.buffer.data)
        element = node.buffer.dtype.element.nbytes * node.buffer.dtype.lanes
        if isinstance(size, int) and size * element <= STACK_BYTES:
            super().visit_Allocate(node)
            return
        with self.block(""):
            count = str(size) if isinstance(size, int) else f"(int64_t)({self.scalar(size)})"
            self.line(f"void* {name} = ctx->alloc_workspace(ctx, INT64_C({element}) * {count});")
            self.leave_if(f"!{name}")
            self.workspaces.append(name)
            self.visit(node.body)
            self.line(f"ctx->free_workspace(ctx, {self.workspaces.pop()});")

    def leave_if(self, condition: str) -> None:
        """Free the function's workspace and return if a condition holds: memory is exhausted, so that what was just
        called did not finish."""
        frees = "".join([f"ctx->free_workspace(ctx, {name}); " for name in reversed(self.workspaces)])
        self.line(f"if ({condition}) {{ {frees}return; }}")

    def declare_array(self, node: Allocate, size: int) -> str:
        return f"__attribute__((aligned(64))) {super().declare_array(node, size)}"

    def visit_AssertStmt(self, node: AssertStmt) -> None:
        if self.checks is None:
            super().visit_AssertStmt(node)
        else:
            self.checks += 1
            number = self.checks
            with self.block(f"if (!{self.scalar(node.condition)})"):
                for i, arg in enumerate(node.args):
                    self.line(f"((int64_t*)error)[{i}] = {self.scalar(arg)};")
                self.line(f"return {number};")
            self.visit(node.body)

    # -- calls

    def visit_Evaluate(self, node: Evaluate) -> None:
        super().visit_Evaluate(node)
        called = node.value.op if isinstance(node.value, Call) else ""
        if called in ("call_kernel", "call_step") and self.checks is None:
            self.leave_if("ctx->shortage")

    def call_call_kernel(self, node: Call) -> str:
        name = self.called(node)
        if name not in self.symbols:
            raise CompileError(f"call of kernel {name!r}, which is not in the module, with: {', '.join(self.symbols)}")
        return f"{self.symbols[name]}({', '.join(['ctx', *[self.visit(a) for a in node.args[1:]]])})"

    def call_call_step(self, node: Call) -> str:
        first = self.visit(node.args[-1])
        return f"{self.call_call_kernel(node)[:-1]}, {first} + 1)"

    def call_call_extern(self, node: Call) -> str:
        name, args = self.called(node), node.args[1:]
        kinds = ", ".join([self.extern_type(a) for a in args]) or "void"
        declaration = f"extern {self.type_name(node.dtype)} {name}({kinds});"
        if declaration not in self.forward:
            self.forward.append(declaration)
        return f"{name}({', '.join([self.visit(a) for a in args])})"

    def extern_type(self, arg: PrimExpr) -> str:
        """The C type of an argument of an external function."""
        return "const char*" if isinstance(arg, StringImm) else self.type_name(arg.dtype)

    def called(self, node: Call) -> str:
        """The function name, the first argument of a call."""
        name = node.args[0]
        if not isinstance(name, StringImm):
            raise CompileError(f"{node.op} takes a name first, not {name}")
        return name.value

    def call_call_packed(self, node: Call) -> str:
        values = ", ".join([self.packed_value(a) for a in node.args[1:]]) or "0"
        codes = ", ".join([str(self.packed_code(a)) for a in node.args[1:]]) or "0"
        name, count = self.visit(node.args[0]), len(node.args) - 1
        return f"ctx->call_packed(ctx, {name}, (int64_t[]){{{values}}}, (int32_t[]){{{codes}}}, {count})"

    def packed_code(self, arg: PrimExpr) -> int:
        """The type code of a packed argument."""
        if isinstance(arg, StringImm):
            return ARG_STR
        return ARG_HANDLE if arg.dtype.is_handle else ARG_FLOAT if arg.dtype.is_float else ARG_INT

    def packed_value(self, arg: PrimExpr) -> str:
        """A packed argument as its 8-byte value."""
        text = self.visit(arg)
        if self.packed_code(arg) == ARG_FLOAT:
            return f"rc_float_bits({self.convert(text, arg.dtype, dtype('float64'))})"
        return f"(int64_t){text}"

    def call_call_packed_args(self, node: Call) -> str:
        name, values, codes, count = (self.visit(a) for a in node.args)
        call = f"ctx->call_packed(ctx, {name}, (int64_t*){values}, (int32_t*){codes}, {count})"
        return f"({{ if ({call}) return -1; }})" if self.checks is not None else call

    def call_prefetch(self, node: Call) -> str:
        address, locality, write = (self.visit(a) for a in node.args)
        return f"__builtin_prefetch({address}, {write}, {locality})"

    def call_next_draw(self, node: Call) -> str:
        return f"ctx->stream_draws[{self.visit(node.args[0])}]++"

    def call_storage_sync(self, node: Call) -> str:
        return "((void)0)"

    def call_atomic_add(self, node: Call) -> str:
        address, value = (self.visit(a) for a in node.args)
        kind = self.type_name(node.args[1].dtype)
        if node.args[1].dtype.is_integral:
            builtin = "__atomic_fetch_add" if node.op == "atomic_add" else None
            if builtin is not None:
                return f"{builtin}(({kind}*){address}, {value}, __ATOMIC_RELAXED)"
        new = "old_ + by_" if node.op == "atomic_add" else "old_ > by_ ? old_ : by_"
        return (
            f"({{ {kind}* at_ = ({kind}*){address}; {kind} by_ = {value}, old_ = *at_, new_; "
            f"do new_ = {new}; while (!__atomic_compare_exchange(at_, &old_, &new_, 0, __ATOMIC_RELAXED, "
            "__ATOMIC_RELAXED)); old_; })"
        )

    call_atomic_max = call_atomic_add


def generate_source(module: IRModule) -> tuple[str, list[CFunction]]:
    """The C text of a module, and a description of its functions."""
    symbols: dict[str, str] = {}
    for name in module:
        base = "relayc_" + "".join(c if c.isalnum() and c.isascii() else "_" for c in name)
        symbols[name] = base if base not in symbols.values() else f"{base}_{len(symbols)}"
    texts: list[str] = []
    declarations: list[str] = []
    table: list[CFunction] = []
    for name in module:
        # C may keep excess precision of a float16 between operations
        function: PrimFunc = legalize_compute(lower_narrow_types(module[name]), ("float16",))
        text = CGenerator(symbols).emit_function(function)
        texts.append(text)
        if function.attrs.get("calling_convention") == "packed":
            table.append(CFunction(name, symbols[name], (), tuple(function.attrs["messages"])))
        else:
            kinds = tuple(BUFFER if p in function.buffer_map else str(p.dtype) for p in function.params)
            table.append(CFunction(name, symbols[name], kinds, None))
        head = next(line for line in text.split("\n") if line.endswith(") {") and f" {symbols[name]}(" in line)
        declarations.append(head.removesuffix(" {") + ";")
    return "\n\n".join([PRELUDE, "\n".join(declarations), *texts]) + "\n", table


def build(module: IRModule, target: Target) -> CModule:
    """The code generator of target kind "c"."""
    source, functions = generate_source(module)
    check, features = feature_check(target)
    source = f"{source}\n{check}\n"
    return CModule(source, compile_shared_library(source, target), functions, features)
