"""Code generation from the loop IR to the text of a C-like language.

`CLikeGenerator` emits C; a dialect is a subclass that overrides its tables and a few methods (type names, mathematical
functions, function declarations, what thread axes and barriers are).

Vectors are emitted lane by lane: a vector store is a loop over its lanes, which every C compiler vectorises again, and
every expression is printed for one lane at a time. A scalar expression is the same in every lane.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar

import numpy as np

from relayc.te.dtype import DType, dtype
from relayc.te.errors import CompileError
from relayc.te.ir import Node, Visitor, collect, structural_equal
from relayc.te.math import expand_dot2_bfloat16
from relayc.te.tir import (
    Add,
    Allocate,
    AssertStmt,
    AttrStmt,
    Binary,
    Broadcast,
    Buffer,
    BufferLoad,
    BufferStore,
    Call,
    Cast,
    Compare,
    Evaluate,
    FloatImm,
    FloorDiv,
    FloorMod,
    For,
    ForKind,
    IfThenElse,
    IntImm,
    Let,
    LetStmt,
    Logical,
    Max,
    Min,
    Mod,
    Not,
    PrimExpr,
    PrimFunc,
    Ramp,
    Select,
    SeqStmt,
    Shuffle,
    Stmt,
    StringImm,
    Var,
    While,
    make_const,
    product,
)

__all__ = ["CLikeGenerator"]

_WORD = re.compile(r"\W")


class CLikeGenerator(Visitor[Any]):
    """Prints functions of the loop IR: `emit_function` returns the text of one, `forward` the declarations to precede
    it."""

    language: ClassVar[str] = "C"
    type_names: ClassVar[dict[str, str]] = {
        "bool": "uint8_t", "int8": "int8_t", "int16": "int16_t", "int32": "int32_t", "int64": "int64_t",
        "uint8": "uint8_t", "uint16": "uint16_t", "uint32": "uint32_t", "uint64": "uint64_t", "float16": "_Float16",
        "float32": "float", "float64": "double", "handle": "void*", "void": "void", "bfloat16": "rc_bfloat16",
    }  # fmt: skip
    float_calls: ClassVar[dict[str, str]] = {name: name for name in (
        "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "sin", "cos", "tan", "asin", "acos", "atan",
        "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "floor", "ceil", "trunc", "fabs", "pow", "atan2",
        "fmod", "fma",
    )} | {
        "round": "rint", "exp_nonpositive": "exp", "fast_exp": "exp", "log1p_fraction": "log1p",
    }  # fmt: skip
    """Intrinsics that are functions of the language; the float32 variant has the suffix "f"."""
    operators: ClassVar[dict[str, str]] = {
        "shift_left": "<<", "shift_right": ">>", "bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^",
    }  # fmt: skip
    keywords: ClassVar[frozenset[str]] = frozenset((
        "auto", "bool", "break", "case", "char", "const", "continue", "ctx", "default", "do", "double", "else", "enum",
        "extern", "float", "for", "goto", "if", "inline", "int", "long", "main", "register", "restrict", "return",
        "short", "signed", "sizeof", "static", "struct", "switch", "typedef", "union", "unsigned", "void", "volatile",
        "while",
    ))  # fmt: skip
    storage_floats: ClassVar[frozenset[str]] = frozenset(("bfloat16",))
    """Storage-only element types: no arithmetic, converted by ``rc_from_<type>`` and ``rc_to_<type>``."""
    not_a_number: ClassVar[str] = "NAN"
    infinity: ClassVar[str] = "INFINITY"
    address_cast: ClassVar[str] = "(void*)"
    """The cast applied to the address of an element."""
    loop_pragmas: ClassVar[dict[ForKind, str]] = {}

    def __init__(self) -> None:
        self.forward: list[str] = []
        self.lines: list[str] = []
        self.depth = 0
        self.names: dict[Var, str] = {}
        functions = {name + suffix for name in self.float_calls.values() for suffix in ("", "f")}
        self.taken: set[str] = {*self.keywords, *functions}
        self.pointers: dict[Var, str] = {}  # declared types of pointers to buffers, where they are not void*
        self.vectors: set[Var] = set()  # variables that hold a vector, as an array
        self.lane = ""  # name or number of the lane being printed; "" outside vectors

    # -- text

    def line(self, text: str) -> None:
        """Append one line at the current indentation."""
        self.lines.append("  " * self.depth + text)

    @contextmanager
    def block(self, head: str, tail: str = "}") -> Generator[None, None, None]:
        """Emit `head {`, the block's body and `tail`."""
        self.line(head + " {" if head else "{")
        self.depth += 1
        yield
        self.depth -= 1
        self.line(tail)

    def name(self, var: Var) -> str:
        """The identifier of a variable, assigned at its first use."""
        found = self.names.get(var)
        if found is None:
            found = self.names[var] = self.fresh(var.name)
        return found

    def fresh(self, wanted: str) -> str:
        """An identifier similar to `wanted` and unique in the function."""
        base = _WORD.sub("_", wanted) or "v"
        if base[0].isdigit():
            base = "v" + base
        name, number = base, 0
        while name in self.taken:
            number += 1
            name = f"{base}_{number}"
        self.taken.add(name)
        return name

    def type_name(self, of: DType) -> str:
        """The language's name of an element type. Raises CompileError for an unsupported one."""
        found = self.type_names.get(str(of.element))
        if found is None:
            raise CompileError(f"{self.language} has no type for {of}; cast to a wider type first")
        return found

    # -- expressions, one lane at a time

    def lane_of(self, expr: PrimExpr, lane: str) -> str:
        """The text of one lane of an expression."""
        outer, self.lane = self.lane, lane
        text = self.visit(expr)
        self.lane = outer
        return text

    def scalar(self, expr: PrimExpr) -> str:
        """The text of a scalar."""
        return self.lane_of(expr, "")

    def visit_default(self, node: Node) -> str:
        raise CompileError(f"{self.language} code can't be made of {type(node).__name__}: {node}")

    def visit_Var(self, var: Var) -> str:
        return f"{self.name(var)}[{self.lane}]" if var in self.vectors else self.name(var)

    def visit_IntImm(self, node: IntImm) -> str:
        if node.dtype.is_handle:
            return f"((void*){node.value})"
        if node.dtype.bits < 64:
            text = f"{node.value}u" if node.dtype.is_uint and node.dtype.bits == 32 else str(node.value)
            return text if node.value > -(1 << 31) else f"({node.value + 1} - 1)"
        if node.dtype.is_uint:
            return f"UINT64_C({node.value})"
        return f"INT64_C({node.value})" if node.value > -(1 << 63) else "INT64_MIN"

    def visit_FloatImm(self, node: FloatImm) -> str:
        value = float(np.float32(node.value)) if node.dtype.bits < 64 else node.value
        if math.isnan(value):
            text = self.not_a_number
        elif math.isinf(value):
            text = self.infinity if value > 0 else f"(-{self.infinity})"
        else:
            short = value.is_integer() and abs(value) < 1e6
            text = (f"{value:.1f}" if short else value.hex()) + ("" if node.dtype.bits == 64 else "f")
            text = f"({text})" if text.startswith("-") else text
        return self.convert(text, dtype("float32") if node.dtype.bits < 32 else node.dtype, node.dtype)

    def visit_StringImm(self, node: StringImm) -> str:
        return '"' + node.value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'

    def visit_Cast(self, node: Cast) -> str:
        return self.convert(self.visit(node.value), node.value.dtype.element, node.dtype.element)

    def convert(self, text: str, of: DType, to: DType) -> str:
        """`text`, a value of type `of`, converted to type `to`."""
        if of == to:
            return text
        if str(of) in self.storage_floats:
            return self.convert(f"rc_from_{of}({text})", dtype("float32"), to)
        if str(to) in self.storage_floats:
            return f"rc_to_{to}((float)({text}))"
        if to.is_bool:
            return f"({text} != 0)"
        if of.is_float and to.is_integral:
            return self.to_integer(text, to)
        return f"(({self.type_name(to)}){text})"

    def to_integer(self, text: str, to: DType) -> str:
        """Convert a float to an integer; out-of-range values wrap where the language leaves the result undefined."""
        if str(to) == "uint64":
            return f"rc_to_uint64({text})"
        through = "int32" if to.bits < 32 else "int64" if to.is_uint else str(to)
        wide = f"({self.type_name(dtype(through))}){text}"
        return f"({wide})" if through == str(to) else f"(({self.type_name(to)})({wide}))"

    def arithmetic(self, of: DType, compute: Callable[..., str], *operands: str) -> str:
        """`compute` applied to operands of type `of`, in float32 where the language has no arithmetic on that type."""
        if str(of) not in self.storage_floats:
            return compute(*operands)
        return f"rc_to_{of}({compute(*[f'rc_from_{of}({x})' for x in operands])})"

    def visit_Binary(self, node: Binary) -> str:
        of = node.dtype.element
        narrow = of.is_integral and of.bits < 32  # computed as int: convert back, to wrap

        def compute(a: str, b: str) -> str:
            text = f"({a} {node.sign} {b})"
            return f"(({self.type_name(of)}){text})" if narrow else text

        return self.arithmetic(of, compute, self.visit(node.a), self.visit(node.b))

    def visit_Mod(self, node: Mod) -> str:
        if node.dtype.is_float:
            raise CompileError(f"remainder of floats: use fmod in {node}")
        return self.visit_Binary(node)

    def visit_FloorDiv(self, node: FloorDiv | FloorMod) -> str:
        of = node.dtype.element
        a, b = self.visit(node.a), self.visit(node.b)
        if of.is_uint:
            return f"({a} {'/' if isinstance(node, FloorDiv) else '%'} {b})"
        divisor = node.b.value if isinstance(node.b, Broadcast) else node.b
        if isinstance(divisor, IntImm) and divisor.value > 0 and divisor.value & (divisor.value - 1) == 0:
            bits = divisor.value.bit_length() - 1
            return f"({a} >> {bits})" if isinstance(node, FloorDiv) else f"({a} & {divisor.value - 1})"
        helper = "rc_floordiv" if isinstance(node, FloorDiv) else "rc_floormod"
        return f"{helper}_{'i64' if of.bits == 64 else 'i32'}({a}, {b})"

    visit_FloorMod = visit_FloorDiv

    def visit_Min(self, node: Min | Max) -> str:
        of = node.dtype.element
        wide = dtype("float32") if of.is_float and of.bits < 32 else of
        suffix = f"f{wide.bits}" if of.is_float else ("u64" if of.is_uint else "i64" if of.bits == 64 else "i32")
        a, b = (self.convert(self.visit(x), of, wide) for x in (node.a, node.b))
        text = f"rc_{'min' if isinstance(node, Min) else 'max'}_{suffix}({a}, {b})"
        return self.convert(text, wide, of) if of.is_float else f"(({self.type_name(of)}){text})"

    visit_Max = visit_Min

    def visit_Compare(self, node: Compare) -> str:
        a, b = self.visit(node.a), self.visit(node.b)
        of = node.a.dtype.element
        if str(of) in self.storage_floats:
            a, b = f"rc_from_{of}({a})", f"rc_from_{of}({b})"
        return f"({a} {node.sign} {b})"

    def visit_Logical(self, node: Logical) -> str:
        return f"({self.visit(node.a)} {'&&' if node.sign == 'and' else '||'} {self.visit(node.b)})"

    def visit_Not(self, node: Not) -> str:
        return f"(!{self.visit(node.a)})"

    def visit_Select(self, node: Select) -> str:
        return f"({self.visit(node.condition)} ? {self.visit(node.true_value)} : {self.visit(node.false_value)})"

    def visit_Let(self, node: Let) -> str:
        kind, value = self.type_name(node.var.dtype), self.visit(node.value)
        return f"({{ {kind} {self.name(node.var)} = {value}; {self.visit(node.body)}; }})"

    def visit_Ramp(self, node: Ramp) -> str:
        lane = self.lane
        return f"({self.scalar(node.base)} + {self.scalar(node.stride)} * {lane})"

    def visit_Broadcast(self, node: Broadcast) -> str:
        return self.scalar(node.value)

    def visit_Shuffle(self, node: Shuffle) -> str:
        """A constant lane selects one element; a variable lane becomes a chain of conditional expressions."""
        pieces = [(v, str(i)) for v in node.vectors for i in range(v.dtype.lanes)]
        picked = [self.lane_of(*pieces[i]) for i in node.indices]
        if self.lane in ("", *map(str, range(len(picked)))):
            return picked[int(self.lane or 0)]
        choices = "".join(f"{self.lane} == {i} ? {text} : " for i, text in enumerate(picked[:-1]))
        return f"({choices}{picked[-1]})"

    def index(self, indices: tuple[PrimExpr, ...]) -> str:
        """The element index of an access to a flat buffer."""
        if len(indices) != 1:
            raise CompileError(f"access with {len(indices)} indices; flatten buffers before generating code")
        return self.visit(indices[0])

    def element(self, access: BufferLoad | BufferStore) -> str:
        """The buffer element that one lane of an access reads or writes."""
        return self.element_at(access.buffer, self.index(access.indices))

    def element_at(self, buffer: Buffer, at: str) -> str:
        """The buffer element at the index with text `at`."""
        offset = buffer.elem_offset
        if offset != 0 or not isinstance(offset, int):
            at = f"({at} + {self.scalar(offset) if isinstance(offset, PrimExpr) else offset})"
        pointer, name = self.pointer_type(buffer.dtype, buffer.scope), self.name(buffer.data)
        return f"{name}[{at}]" if self.pointers.get(buffer.data) == pointer else f"(({pointer}){name})[{at}]"

    def pointer_type(self, of: DType, scope: str) -> str:
        """The type of a pointer to elements in memory of the given scope."""
        return f"{self.type_name(of)}*"

    def visit_BufferLoad(self, node: BufferLoad) -> str:
        if node.predicate is None:
            return self.element(node)
        return f"({self.visit(node.predicate)} ? {self.element(node)} : {self.zero(node.dtype)})"

    def zero(self, of: DType) -> str:
        """The zero constant of an element type."""
        return f"({self.type_name(of)})0"

    # -- calls

    def visit_Call(self, node: Call) -> str:
        special = getattr(self, "call_" + node.op, None)
        if special is not None:
            return special(node)
        args = [self.visit(a) for a in node.args]
        of = node.dtype.element
        if node.op in self.operators:
            text = f"({args[0]} {self.operators[node.op]} {args[1]})"
            return f"(({self.type_name(of)}){text})" if of.bits < 32 else text
        if node.op in self.float_calls:
            return self.float_call(self.float_calls[node.op], of, args)
        raise CompileError(f"{self.language} code has no intrinsic {node.op!r}, in {node}")

    def float_call(self, function: str, of: DType, args: list[str]) -> str:
        """A mathematical function of values of type `of`; low-precision floats are computed in float32."""
        if of.bits == 64:
            return f"{function}({', '.join(args)})"
        single = dtype("float32")
        return self.convert(f"{function}f({', '.join([self.convert(a, of, single) for a in args])})", single, of)

    def call_rsqrt(self, node: Call) -> str:
        of = node.dtype.element
        one = self.convert("1.0f", dtype("float32"), of)
        root = self.float_call("sqrt", of, [self.visit(node.args[0])])
        return self.arithmetic(of, lambda a, b: f"({a} / {b})", one, root)

    call_fast_rsqrt = call_rsqrt_estimate = call_rsqrt

    def call_fast_reciprocal(self, node: Call) -> str:
        of = node.dtype.element
        one = self.convert("1.0f", dtype("float32"), of)
        return self.arithmetic(of, lambda a, b: f"({a} / {b})", one, self.visit(node.args[0]))

    def call_fraction(self, node: Call) -> str:
        (x,) = node.args
        is_infinite = Call(dtype("bool"), "isinf", (x,))
        return self.visit(Select(is_infinite, make_const(x.dtype, 0), x - Call(x.dtype, "floor", (x,))))

    def call_scale_by_power(self, node: Call) -> str:
        x, n = node.args
        return self.visit(x * Call(n.dtype, "exp2", (Call(n.dtype, "floor", (n,)),)))

    def call_fast_gelu(self, node: Call) -> str:
        of = node.dtype.element
        half, root = (self.convert(c, dtype("float32"), of) for c in ("0.5f", "-0.70710678f"))
        product = partial(self.arithmetic, of, lambda a, b: f"({a} * {b})")
        x = self.visit(Max(node.args[0], make_const(of, -100)))  # infinity times 0 would be NaN
        return product(product(half, x), self.float_call("erfc", of, [product(root, x)]))

    def call_sigmoid(self, node: Call) -> str:
        of = node.dtype.element
        suffix, wide = ("f64", of) if of.bits == 64 else ("f32", dtype("float32"))
        return self.convert(f"rc_sigmoid_{suffix}({self.convert(self.visit(node.args[0]), of, wide)})", wide, of)

    def call_isnan(self, node: Call) -> str:
        of = node.args[0].dtype.element
        wide = dtype("float32") if of.bits < 32 else of
        return f"({node.op}({self.convert(self.visit(node.args[0]), of, wide)}) != 0)"

    call_isinf = call_isfinite = call_isnan

    def call_bitwise_not(self, node: Call) -> str:
        return f"(({self.type_name(node.dtype)})~{self.visit(node.args[0])})"

    def call_byte_pairs(self, node: Call) -> str:
        x = self.convert(self.visit(node.args[0]), node.args[0].dtype, node.dtype)
        return f"(({x} << 24 >> 24 & 65535) | ({x} >> 8 << 16))"

    def call_dot2(self, node: Call) -> str:
        x, y = [self.visit(a) for a in node.args]
        return f"(({x} << 16 >> 16) * ({y} << 16 >> 16) + ({x} >> 16) * ({y} >> 16))"

    def call_dot2_bfloat16(self, node: Call) -> str:
        return self.visit(expand_dot2_bfloat16(*node.args))

    def call_dot4(self, node: Call) -> str:
        x, y = [self.visit(a) for a in node.args]
        return f"({' + '.join(f'({x} >> {s} & 255) * ({y} << {24 - s} >> 24)' for s in range(0, 32, 8))})"

    def call_dot8(self, node: Call) -> str:
        x, y, z, w = node.args
        return f"({self.call_dot4(node.replace(args=(x, y)))} + {self.call_dot4(node.replace(args=(z, w)))})"

    def call_popcount(self, node: Call) -> str:
        return f"(({self.type_name(node.dtype)})__builtin_popcountll({self.as_bits(node.args[0])}))"

    def call_clz(self, node: Call) -> str:
        bits, text = node.args[0].dtype.bits, self.as_bits(node.args[0])
        return f"(({self.type_name(node.dtype)})({text} ? __builtin_clzll({text}) - {64 - bits} : {bits}))"

    def as_bits(self, value: PrimExpr) -> str:
        """The bits of an integer zero-extended to 64 bits."""
        return f"(uint64_t)(uint{value.dtype.bits}_t){self.visit(value)}"

    def call_reinterpret(self, node: Call) -> str:
        source, to = self.type_name(node.args[0].dtype), self.type_name(node.dtype)
        return f"(((union {{ {source} from; {to} to; }}){{ .from = {self.visit(node.args[0])} }}).to)"

    def call_likely(self, node: Call) -> str:
        return self.visit(node.args[0])

    def call_if_then_else(self, node: Call) -> str:
        condition, a, b = (self.visit(x) for x in node.args)
        return f"({condition} ? {a} : {b})"

    def call_vector_reduce_add(self, node: Call) -> str:
        vector = node.args[0]
        of = vector.dtype.element
        result = self.lane_of(vector, "0")
        for i in range(1, vector.dtype.lanes):
            result = self.combine(node.op, of, result, self.lane_of(vector, str(i)))
        return self.convert(result, of, node.dtype)

    call_vector_reduce_max = call_vector_reduce_min = call_vector_reduce_add

    def combine(self, op: str, of: DType, a: str, b: str) -> str:
        """Combine two lanes of a horizontal reduction."""
        x, y = Var("a", of), Var("b", of)
        self.names[x], self.names[y] = a, b
        if op == "vector_reduce_add":
            return self.arithmetic(of, lambda p, q: f"({p} + {q})", a, b)
        return self.visit_Min(Max(x, y) if op == "vector_reduce_max" else Min(x, y))

    def call_address_of(self, node: Call) -> str:
        load = node.args[0]
        if not isinstance(load, BufferLoad):
            raise CompileError(f"address_of takes an element of a buffer, not {load}")
        index, further = load.indices[0], ""
        if isinstance(index, Add) and isinstance(index.b, IntImm):  # compilers fold it into the address
            load, further = BufferLoad(load.buffer, (index.a,)), f" + {index.b.value}"
        return f"({self.address_cast}(&{self.lane_of(load, '0')}{further}))"

    def call_handle_add_byte_offset(self, node: Call) -> str:
        return f"((void*)((char*){self.visit(node.args[0])} + {self.visit(node.args[1])}))"

    def call_load_at(self, node: Call) -> str:
        base, offset = (self.visit(a) for a in node.args)
        return f"(*({self.type_name(node.dtype)}*)((char*){base} + {offset}))"

    def call_store_at(self, node: Call) -> str:
        base, offset, value = (self.visit(a) for a in node.args)
        return f"(*({self.type_name(node.args[2].dtype)}*)((char*){base} + {offset}) = {value})"

    def call_copy_bytes(self, node: Call) -> str:
        return f"memcpy({', '.join([self.visit(a) for a in node.args])})"

    def call_assume(self, node: Call) -> str:
        return "((void)0)"

    # -- statements

    def visit_SeqStmt(self, node: SeqStmt) -> None:
        for stmt in node.stmts:
            self.visit(stmt)

    def visit_Evaluate(self, node: Evaluate) -> None:
        if not isinstance(node.value, IntImm):
            self.line(f"{self.scalar(node.value)};")

    def visit_For(self, node: For) -> None:
        var, kind = self.name(node.loop_var), self.type_name(node.loop_var.dtype)
        low, extent = self.scalar(node.min), self.scalar(node.extent)
        high = extent if low == "0" else f"{low} + {extent}"
        if node.kind in self.loop_pragmas:
            self.line(self.loop_pragmas[node.kind])
        with self.block(f"for ({kind} {var} = {low}; {var} < {high}; ++{var})"):
            self.visit(node.body)

    def visit_While(self, node: While) -> None:
        with self.block(f"while ({self.scalar(node.condition)})"):
            self.visit(node.body)

    def visit_IfThenElse(self, node: IfThenElse) -> None:
        with self.block(f"if ({self.scalar(node.condition)})"):
            self.visit(node.then_case)
        if node.else_case is not None:
            with self.block("else"):
                self.visit(node.else_case)

    def visit_LetStmt(self, node: LetStmt) -> None:
        kind, lanes, name = self.type_name(node.var.dtype), node.var.dtype.lanes, self.name(node.var)
        if lanes == 1:
            self.line(f"{kind} {name} = {self.scalar(node.value)};")
        else:
            self.line(f"{kind} {name}[{lanes}];")
            self.each_lane(lanes, lambda lane: f"{name}[{lane}] = {self.lane_of(node.value, lane)};")
            self.vectors.add(node.var)
        self.visit(node.body)

    def each_lane(self, lanes: int, statement: Callable[[str], str]) -> None:
        """Emit a loop over lanes with one statement."""
        lane = self.fresh("lane")
        with self.block(f"for (int {lane} = 0; {lane} < {lanes}; ++{lane})"):
            self.line(statement(lane))

    def visit_BufferStore(self, node: BufferStore) -> None:
        lanes = max(node.value.dtype.lanes, node.indices[-1].dtype.lanes)
        if lanes == 1:
            guard = "" if node.predicate is None else f"if ({self.scalar(node.predicate)}) "
            outer, self.lane = self.lane, ""
            self.line(f"{guard}{self.element(node)} = {self.visit(node.value)};")
            self.lane = outer
            return
        value: Callable[[str], str] = lambda lane: self.lane_of(node.value, lane)  # noqa: E731
        with self.block(""):
            if self.reads_other_lanes(node):
                before = self.fresh("before")
                self.line(f"{self.type_name(node.value.dtype)} {before}[{lanes}];")
                self.each_lane(lanes, lambda lane: f"{before}[{lane}] = {self.lane_of(node.value, lane)};")
                value = lambda lane: f"{before}[{lane}]"  # noqa: E731
            self.each_lane(lanes, lambda lane: self.store_lane(node, lane, value(lane)))

    def store_lane(self, node: BufferStore, lane: str, value: str) -> str:
        """The store of a single lane."""
        outer, self.lane = self.lane, lane
        guard = "" if node.predicate is None else f"if ({self.visit(node.predicate)}) "
        text = f"{guard}{self.element(node)} = {value};"
        self.lane = outer
        return text

    def reads_other_lanes(self, node: BufferStore) -> bool:
        """May a lane of the value read an element that another lane stores? Then all lanes are read first."""
        return any(
            load.buffer.data is node.buffer.data and not structural_equal(load.indices, node.indices)
            for load in collect(node.value, BufferLoad)
        )

    def visit_AttrStmt(self, node: AttrStmt) -> None:
        if node.key in ("thread_extent", "virtual_thread"):
            raise CompileError(f"{self.language} code has no threads: {node.subject} is bound to one; "
                               "use parallel, or a target with threads")  # fmt: skip
        self.visit(node.body)

    def visit_Allocate(self, node: Allocate) -> None:
        size = product(node.buffer.shape)
        if not isinstance(size, int):
            raise CompileError(f"buffer {node.buffer.name} has {size} elements; {self.language} needs a constant size")
        with self.block(""):
            self.line(self.declare_array(node, size))
            self.visit(node.body)

    def declare_array(self, node: Allocate, size: int) -> str:
        """The declaration of scratch memory of constant size."""
        name, kind = self.name(node.buffer.data), self.type_name(node.buffer.dtype)
        self.pointers[node.buffer.data] = self.pointer_type(node.buffer.dtype, node.buffer.scope)
        return f"{kind} {name}[{max(1, size * node.buffer.dtype.lanes)}];"

    def visit_AssertStmt(self, node: AssertStmt) -> None:
        raise CompileError(f"a kernel can't fail, so it can't assert: {node.message}")

    # -- functions

    def parameter(self, function: PrimFunc, param: Var) -> str:
        """The declaration of one parameter."""
        buffer = function.buffer_map.get(param)
        if buffer is None:
            return f"{self.type_name(param.dtype)} {self.name(param)}"
        if buffer.data is not param:
            self.names[buffer.data] = self.name(param)
        pointer = self.pointers[buffer.data] = self.pointer_type(buffer.dtype, buffer.scope)
        return f"{pointer} {self.name(param)}"

    def body(self, stmt: Stmt) -> None:
        """Emit the statements of a function at one more level of indentation."""
        self.depth += 1
        self.visit(stmt)
        self.depth -= 1
