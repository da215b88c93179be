"""The base class of operators, and their registry.

An operator is one class, a frozen dataclass whose fields are its attributes::

    @register_op("nn.leaky_relu", pattern=OpPattern.ELEMWISE)
    class LeakyRelu(OpDef):
        '''x where x > 0, else alpha * x.'''
        alpha: float = 0.01
        def infer(self, x: TensorType) -> TensorType: return x
        def compute(self, x: te.Tensor) -> te.Tensor: return topi.nn.leaky_relu(x, self.alpha)
        def reference(self, x: np.ndarray) -> np.ndarray: return np.where(x > 0, x, self.alpha * x)

    y = LeakyRelu(alpha=0.2)(x)          # a Call, typed at birth; y.op.alpha
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import math
from abc import abstractmethod
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from enum import Enum, IntEnum
from typing import Any, ClassVar, TypeVar, dataclass_transform

from relayc.relay.argument_types import check_attributes, checked_call
from relayc.relay.errors import GradientError, TypeInferenceError, UnknownOperatorError
from relayc.relay.expr import Call, Expr
from relayc.relay.type import Dim, TensorType, Type
from relayc.te.errors import CompileError
from relayc.te.ir import Abstract, Span
from relayc.te.ir.structural import StructuralEqual

__all__ = [
    "MixedPrecision", "Multiplications", "OpDef", "OpPattern", "aligning", "expect_op", "get_op", "list_op_names",
    "make_call", "op_of", "register_op",
]  # fmt: skip

_O = TypeVar("_O", bound="OpDef")
Permutation = tuple[int, ...]
Multiplications = Sequence[Sequence[Dim]]
"""Numbers of multiply-accumulates, to be added, each the product of some extents."""


class OpPattern(IntEnum):
    """How an operator's output elements depend on input elements: what fusion may do with it (TVM: OpPatternKind)."""

    ELEMWISE = 0
    """Output element i depends on input elements i only."""
    BROADCAST = 1
    """Output axes map in order onto input axes, some of which are repeated."""
    INJECTIVE = 2
    """Each output element is one input element (or a value computed from one), at a computed index."""
    COMM_REDUCE = 3
    """A commutative reduction over axes."""
    OUT_FUSABLE = 4
    """A heavy operator into whose output elementwise operators may be fused."""
    TUPLE = 7
    """A tuple of values."""
    OPAQUE = 8
    """Never fused."""


class MixedPrecision(Enum):
    """The element type of an operator in a program of mixed precision (TVM: FTVMMixedPrecisionConversionType)."""

    ALWAYS = "always"
    """The low-precision type: contractions, which it makes twice as fast and half as large, and which accumulate in
    float32 anyway."""
    FOLLOW = "follow"
    """The type of the inputs: operators that move values, or map them to values of about their magnitude."""
    NEVER = "never"
    """float32: results or intermediate values leave the range of float16, or lose their meaning when rounded."""


Aligner = Callable[[Sequence[Expr], int], Sequence[Expr]]
"""Broadcasts the operands of an operator, which has a number of last axes that it does not broadcast, to one shape."""

_aligner: ContextVar[Aligner | None] = ContextVar("relayc_aligner", default=None)


@contextmanager
def aligning(align: Aligner) -> Generator[None]:
    """Within this scope the operands of broadcasting operators pass through `align`, in this thread.

    Types require symbolic sizes to be equal where they are not 1; an importer whose sizes may turn out to be 1 only
    when the model runs broadcasts them explicitly.
    """
    token = _aligner.set(align)
    try:
        yield
    finally:
        _aligner.reset(token)


class OpDef(Abstract):
    """Base of operators. Instances are values: equal when class and attributes are equal, usable as dictionary keys.

    Attributes are hashable: numbers, strings, None, tuples of them. Tensors are inputs; an operator of any number of
    inputs (`infer(self, *xs)`) takes them as arguments, not as a tuple. Several results are a TupleType.

    Traits of a class: `num_inputs` as (least, most), most None for any number; `is_view` (the output holds the input's
    bytes in the same order: reshape); `reads_inputs_once` (a heavy operator that reads each input element a few times
    only, so that cheap producers may be computed inside it, as in any reduction); `has_side_effect` (random numbers,
    printing: calls are neither merged, folded nor dropped); `can_fail` (a run may refuse the inputs with an error: what
    depends on a call is not known before, even if it has no elements); `num_data_inputs` (the leading inputs that a
    change of layout applies to, the others being weights and the like; None: all); `num_narrowed_inputs` (the leading
    inputs that mixed precision converts; None: all); `joins_inputs` (each element of the result comes from one of
    several inputs: concatenation); `permutes_elements` (each element of the result is one of
    the input, at an index that is quick to compute: transpose, slice); `looks_up` (each element of the result is one of
    the first input, where the other inputs say: gather); `reads_by_index` (a heavy operator that loads its inputs into
    shared memory itself, so that permuting their elements costs nothing: matrix products on GPUs); `num_copied_inputs`
    (the number of leading inputs that are packed before use, each element once, so that producers may be fused into the
    copy); `takes_containers` (inputs may be sequences and optional values, too); `num_unbroadcast_axes` (the
    number of last axes of an operator that broadcasts the others; None: it does not broadcast); `mixed_precision` (see
    `MixedPrecision`).
    """

    name: ClassVar[str]
    attribute_names: ClassVar[tuple[str, ...]]
    pattern: ClassVar[OpPattern]
    num_inputs: ClassVar[tuple[int, int | None]]
    is_view: ClassVar[bool] = False
    reads_inputs_once: ClassVar[bool] = False
    has_side_effect: ClassVar[bool] = False
    can_fail: ClassVar[bool] = False
    num_data_inputs: ClassVar[int | None] = None
    num_narrowed_inputs: ClassVar[int | None] = None
    joins_inputs: ClassVar[bool] = False
    permutes_elements: ClassVar[bool] = False
    looks_up: ClassVar[bool] = False
    reads_by_index: ClassVar[bool] = False
    num_copied_inputs: ClassVar[int] = 0
    takes_containers: ClassVar[bool] = False
    num_unbroadcast_axes: ClassVar[int | None] = None
    open_attributes: ClassVar[tuple[str, ...]] = ()
    largest_ratio: ClassVar[float] = math.inf
    mixed_precision: ClassVar[MixedPrecision] = MixedPrecision.FOLLOW

    # Type checkers let overrides of (*args: Any, **kwargs: Any) name their parameters; no keywords are ever passed.

    @abstractmethod
    def infer(self, *types: Any, **_: Any) -> Type:
        """The type of the result. Raises TypeInferenceError with the sentence of the broken constraint."""

    def compute(self, *inputs: Any, **_: Any) -> Any:
        """The result as tensor expressions: a te.Tensor, or a tuple of them, over te.Tensor inputs."""
        raise CompileError(f"operator {self.name} has no compute definition: it can't be compiled for any target")

    def reference(self, *arrays: Any, **_: Any) -> Any:
        """The result by numpy: an array (or a tuple), of the type `infer` gives. Serves tests and constant folding."""
        raise CompileError(f"operator {self.name} has no reference implementation")

    def gradient(self, call: Call, grad: Expr) -> Sequence[Expr | None]:
        """One gradient for each argument of `call`, from the gradient `grad` of its result; None where there is none.

        A gradient is that of a scalar function of the program, and has the type of the tensor it belongs to; if the
        result is a tuple, `grad` is one. `relay.transform.gradient` calls it for float results that need one. Raises
        GradientError by default. (TVM: FPrimalGradient.)
        """
        raise GradientError(f"operator {self.name} has no gradient rule (relay.op.base.OpDef.gradient)")

    def decomposed(self, *args: Expr) -> Expr | None:
        """The operator's result by simpler operators, which have gradient rules; None if it has a rule itself."""
        return None

    def multiplications(self, types: Sequence[Type], result: Type) -> Multiplications:
        """The multiply-accumulates of one evaluation; none for operators that are not contractions."""
        return ()

    def macs(self, types: Sequence[Type], result: Type) -> int:
        """The number of `multiplications`; those of symbolic extents count as none."""
        return sum(_number(extents) for extents in self.multiplications(types, result))

    def multiplied(self, types: Sequence[Type]) -> str:
        """The element type that `multiplications` multiply, for which processors have different instructions."""
        data = types[0]
        assert isinstance(data, TensorType)
        return str(data.dtype)

    def takes_sizes_apart(self) -> bool:
        """Is each dynamic extent a size of its own to the code, even where several are formulas of the same sizes?"""
        return False

    def ignores_factors(self, types: Sequence[Type]) -> bool:
        """Is the code no better, and planned no other way, where dynamic extents are multiples of a number?

        True of operators whose loops over them have any number of iterations: over register tiles, the last of which
        is moved back or stores a part, or over rows whose lengths are known.
        """
        return self.takes_sizes_apart()

    def is_specialized_on(self, operand: int, value: Any) -> bool:
        """Should the code be specialised on the constant `value`, an array of one element, of an operand?

        True of an exponent or a divisor, say, and of a value that makes the operation an identity. Other constants of
        elementwise operators may become data, so that functions that differ only in them are compiled once
        (`relay.lowering.share_kernels`).
        """
        return self.pattern > OpPattern.BROADCAST or float(value) in (0.0, 1.0, -1.0) or not math.isfinite(value)

    def open_form(self, types: Sequence[TensorType]) -> tuple[OpDef, Sequence[Sequence[int]]]:
        """The operator, and for each operand the axes whose extents, numbers of channels say, may be data to its code.

        Functions of dynamic sizes that differ only in these, and in `open_attributes`, may share a kernel, if extents
        differ by `largest_ratio` at most (`relay.lowering.share_extents`). By default all axes of elementwise
        operators. An operator that names extents in other attributes is returned in a form that does not.
        """
        return self, [range(ty.ndim) if self.follows_elements() else () for ty in types]

    def transposed(self, perm: Permutation, types: Sequence[Type]) -> OpDef | None:
        """The operator `t` with ``t(T(x), ...) == T(self(x, ...))``, T transposing by `perm`; None if there is none.

        The permutation applies to the data inputs (see `num_data_inputs`) that have its rank, and to the result or each
        field of it; layout conversion moves through it. The default is right for elementwise operators; one with an
        axis attribute renumbers it, a convolution changes its `data_layout`.
        """
        return self if self.pattern == OpPattern.ELEMWISE else None

    def result_type(self, types: Sequence[Type], span: Span | None = None) -> Type:
        """`infer`, after a check of the number of inputs, with errors located."""
        least, most = self.num_inputs
        try:
            if len(types) < least or (most is not None and len(types) > most):
                upper = "or more" if most is None else f"to {most}"
                expected = str(least) if most == least else f"{least} {upper}"
                raise TypeInferenceError(f"takes {expected} inputs, got {len(types)}")
            for number, ty in enumerate(types):
                if not self.takes_containers and not isinstance(ty, TensorType):
                    raise TypeInferenceError(f"input {number} is {ty}, not a tensor")
            return self.infer(*types)
        except TypeInferenceError as error:
            raise error.located(self, types, span) from None
        except (AttributeError, TypeError, ValueError):
            check_attributes(self)
            raise

    def __eq__(self, other: object) -> bool:
        if self.__class__ is not other.__class__:
            return False
        return all(_same_value(getattr(self, name), getattr(other, name)) for name in self.attribute_names)

    def __hash__(self) -> int:
        return hash((self.name, *[getattr(self, name) for name in self.attribute_names]))

    def follows_elements(self) -> bool:
        """Does it compute each element independently of its position, without a table or the like as input?"""
        alike = self.num_data_inputs is None
        return alike and self.pattern <= OpPattern.BROADCAST and not {"axis", "shape"} & set(self.attribute_names)

    def attributes(self) -> dict[str, Any]:
        """Name -> value of every attribute, in order."""
        return {name: getattr(self, name) for name in self.attribute_names}

    def replace(self: _O, **changes: Any) -> _O:
        """A copy of the operator with some attributes changed."""
        return dataclasses.replace(self, **changes)  # type: ignore[type-var]

    def structural_equal_to(self, other: OpDef, equal: StructuralEqual) -> bool:
        """Same class and attributes; symbolic attributes through the comparison in progress."""
        return self == other or equal(self.attributes(), other.attributes())

    def __call__(self, *args: Expr, span: Span | None = None) -> Call:
        align = _aligner.get()
        if align is not None and self.num_unbroadcast_axes is not None:
            args = tuple(align(args, self.num_unbroadcast_axes))
        return Call(self, args, span=span)

    def __str__(self) -> str:
        return self.name


def _same_value(a: Any, b: Any) -> bool:
    """Are two attributes equal? 0.0 and -0.0 are not."""
    if type(a) is tuple and type(b) is tuple:
        return len(a) == len(b) and all(map(_same_value, a, b))
    return a is b or (bool(a == b) and (type(a) is not float or a != 0 or str(a) == str(b)))


dataclasses.dataclass(repr=False, eq=False)(OpDef)  # no decorator: type checkers take operators for frozen


@dataclass_transform(frozen_default=True, kw_only_default=True)
def attributes_of_operator(cls: type[_O]) -> type[_O]:
    """Make the annotated fields of an operator class its keyword attributes; for bases, which are not registered.

    Instances are values by the methods of `OpDef`, so that of a dataclass only the constructor is generated: a frozen
    dataclass for each of 150 operators would take a third of the time of importing relay. A class without attributes of
    its own inherits its base's constructor. Type checkers reject assignments.
    """
    if inspect.get_annotations(cls):
        cls = dataclasses.dataclass(kw_only=True, repr=False, eq=False)(cls)
    cls.attribute_names = tuple([f.name for f in dataclasses.fields(cls)])  # type: ignore[arg-type]
    return cls


_registry: dict[str, type[OpDef]] = {}


def _number(extents: Sequence[Dim]) -> int:
    """The product of the extents; 0 if one is symbolic."""
    known = [d for d in extents if isinstance(d, int)]
    return math.prod(known) if len(known) == len(extents) else 0


@dataclass_transform(frozen_default=True, kw_only_default=True)
def register_op(name: str, *, pattern: OpPattern) -> Callable[[type[_O]], type[_O]]:
    """Make the decorated class the operator `name`: a frozen dataclass with keyword attributes, found by `get_op`."""

    def register(cls: type[_O]) -> type[_O]:
        if name in _registry:
            other = _registry[name]
            raise CompileError(f"operator {name!r} is registered already, by {other.__module__}.{other.__qualname__}")
        made = attributes_of_operator(cls)
        hidden = [attribute for attribute in made.attribute_names if hasattr(OpDef, attribute)]
        if hidden:
            raise CompileError(f"operator {name!r}: attributes {', '.join(hidden)} hide members of OpDef; rename them")
        made.name, made.pattern = name, pattern
        if "num_inputs" not in cls.__dict__:
            made.num_inputs = _count_inputs(made.infer)
        _registry[name] = made
        return made

    return register


def _count_inputs(infer: Callable[..., Any]) -> tuple[int, int | None]:
    """(least, most) inputs by the signature of `infer`."""
    parameters = list(inspect.signature(infer).parameters.values())[1:]
    fixed = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    least = sum(p.default is p.empty for p in fixed)
    variadic = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    return least, None if variadic else len(fixed)


def get_op(name: str) -> type[OpDef]:
    """The class of operator `name`. Raises UnknownOperatorError naming the closest known ones."""
    found = _registry.get(name)
    if found is None:
        close = difflib.get_close_matches(name, _registry, n=4, cutoff=0.6)
        hint = f"close are: {', '.join(close)}" if close else f"known are: {', '.join(sorted(_registry))}"
        raise UnknownOperatorError(f"unknown operator {name!r}; {hint}")
    return found


def registered_definitions() -> list[type[OpDef]]:
    """Every operator registered so far."""
    return list(_registry.values())


def list_op_names() -> list[str]:
    """The names of all registered operators, sorted (TVM: `tvm.ir.Op.list_op_names`)."""
    return sorted(_registry)


def op_of(e: Expr, kind: type[_O]) -> _O | None:
    """The operator that `e` calls if it is of this class, with its attributes."""
    return e.op if isinstance(e, Call) and isinstance(e.op, kind) else None


def expect_op(e: Expr, *kinds: type[_O]) -> _O:
    """The operator that `e` calls, which is known to be of one of these classes, with its attributes."""
    assert isinstance(e, Call) and isinstance(e.op, kinds), f"expected a call of {kinds}, got {e}"
    return e.op


def make_call(op: OpDef | str, args: Sequence[Expr], span: Span | None = None, **attrs: Any) -> Call:
    """A typed call; `op` may be a name, with attributes.

    Raises TypeInferenceError (operator, argument types, broken constraint, place) or UnknownOperatorError.
    """
    return Call(checked_call(get_op(op), op, (), attrs) if isinstance(op, str) else op, tuple(args), span=span)
