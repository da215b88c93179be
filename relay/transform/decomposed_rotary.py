"""Rotary position embeddings decomposed into small operators: rules of `RecognizePatterns`."""

from __future__ import annotations

from typing import NamedTuple

from relayc.relay.expr import Call, Constant, Expr, Tuple
from relayc.relay.op.base import expect_op, make_call
from relayc.relay.op.indexing import Take
from relayc.relay.op.joining import Concatenate
from relayc.relay.op.transform import StridedSlice
from relayc.relay.pattern import Found, PatternRule, is_op, is_tuple, wildcard
from relayc.relay.transform.builders import is_call_of, reshaped
from relayc.relay.type import shapes_equal
from relayc.te.ir.decisions import Refused

__all__ = ["ROTARY_RULES"]


class _Lane(NamedTuple):
    """Channels `first`, first + step, ... of the last dimension of `x`."""

    x: Expr
    first: int
    step: int


def _lane(e: Expr) -> _Lane | None:
    """The channels that `e` takes from all rows of a tensor: a slice, or one column of a view (..., channels / 2, 2).
    """
    if not isinstance(e, Call) or not e.tensor_type.shape:
        return None
    if is_call_of(e, "strided_slice"):
        return _slice(e)
    column = e.args[0] if is_call_of(e, "reshape") else e
    if not isinstance(column, Call) or not column.args:
        return None
    pairs = column.args[0]
    if not is_call_of(pairs, "reshape") or len(pairs.shape) != len(e.shape) + 1 or pairs.shape[-1] != 2:
        return None
    if not shapes_equal(pairs.shape[:-1], e.shape):
        return None
    first = _column(column)
    channels = e.shape[-1]
    if first is None or not isinstance(channels, int):
        return None
    return _Lane(reshaped(pairs, (*e.shape[:-1], 2 * channels)), first, 2)


def _slice(cut: Call) -> _Lane | None:
    op, rank = expect_op(cut, StridedSlice), len(cut.shape)
    begin, strides, axes = op.begin, op.strides, op.axes
    size = cut.args[0].shape[-1]
    if len(axes) != 1 or axes[0] % rank != rank - 1 or strides[0] not in (1, 2):
        return None
    if not isinstance(begin[0], int) or not isinstance(size, int):
        return None
    return _Lane(cut.args[0], slice(begin[0], None).indices(size)[0], strides[0])


def _column(e: Call) -> int | None:
    """The number of the column, of two, that `e` takes."""
    if is_call_of(e, "strided_slice"):
        lane = _slice(e)
        return lane.first if lane is not None and e.shape[-1] == 1 else None
    if isinstance(e.op, Take):
        at, rank = e.args[1], len(e.args[0].shape)
        last = e.op.axis % rank == rank - 1
        if last and isinstance(at, Constant) and at.data.size == 1 and int(at.data.item()) in (0, 1, -1):
            return int(at.data.item()) % 2
    return None


def _is_lane(e: Expr) -> bool:
    return _lane(e) is not None


class _Pairs(NamedTuple):
    """`pairs` pairs of channels of `x` from `first` on, adjacent or half of them apart."""

    x: Expr
    first: int
    pairs: int
    interleaved: bool

    def embedded(self, cosine: Expr, sine: Expr, like: Call) -> Expr:
        x, channels = self.x, 2 * self.pairs
        if (self.first, channels) != (0, x.shape[-1]):
            bounds = {"begin": (self.first,), "end": (self.first + channels,), "strides": (1,)}
            x = make_call("strided_slice", (x,), like.span, axes=(len(x.shape) - 1,), **bounds)
        return make_call("nn.rotary_embedding", (x, cosine, sine), like.span, interleaved=self.interleaved)


def _pairs(first: Expr, second: Expr, interleaved: bool) -> _Pairs | None:
    """The pairs whose halves are `first` and `second`; None for other expressions."""
    a, b, pairs = _lane(first), _lane(second), first.shape[-1]
    if a is None or b is None or a.x is not b.x or not isinstance(pairs, int) or first.ty is not second.ty:
        return None
    wanted = (2, 2, 1) if interleaved else (1, 1, pairs)
    return _Pairs(a.x, a.first, pairs, interleaved) if (a.step, b.step, b.first - a.first) == wanted else None


def _is_table(cosine: Expr, sine: Expr, columns: int) -> bool:
    return cosine.ty is sine.ty and cosine.shape[-1:] == (columns,)


class DecomposedRotaryEmbedding(PatternRule):
    """x * cos + rotated * sin = rotary_embedding(x, cos, sin), rotated = concatenate(-x[n/2:], x[:n/2])

    Or `interleaved`, rotated = (-x[1], x[0], -x[3], x[2], ...), a view of (..., n/2, 2), as in GPT-J. x may be the
    first channels of more (GPT-NeoX).
    """

    x, cosine, sine = wildcard(), wildcard(), wildcard()
    first, second = wildcard().where(_is_lane), wildcard().where(_is_lane)
    halves = is_op("concatenate")(is_op("negative")(second), first)
    adjacent = is_op("concatenate")(is_op("reshape")(is_op("negative")(second)), is_op("reshape")(first))
    swapped = halves | is_op("reshape")(adjacent)
    pattern = is_op("add")(is_op("multiply")(x, cosine), is_op("multiply")(swapped, sine))

    def replace(self, call: Call, found: Found) -> Expr | Refused | None:
        x, cosine, sine, interleaved = found[self.x], found[self.cosine], found[self.sine], self.adjacent in found
        pairs = _pairs(found[self.first], found[self.second], interleaved)
        suits = _is_of_columns(found.call(self.adjacent)) if interleaved else _is_along_last(found.call(self.halves))
        if pairs is None:
            return Refused("the two parts are not the halves, or the even and odd channels, of one tensor")
        if not suits or x.ty is not call.ty or found[self.swapped].ty is not call.ty:
            return Refused("the rotated parts are not joined along the last dimension, or the tables broadcast x")
        cut = _lane(x)
        of_x = pairs.x is x or (cut is not None and cut.step == 1 and cut[:2] == (pairs.x, pairs.first))
        if not of_x or x.shape[-1] != 2 * pairs.pairs:
            return Refused("what is multiplied by the cosines has other channels than what is rotated")
        if not _is_table(cosine, sine, 2 * pairs.pairs):
            return Refused(f"cosines and sines differ in type, or are not {2 * pairs.pairs} columns")
        return make_call("nn.rotary_embedding", (x, cosine, sine), call.span, interleaved=interleaved)


def _is_along_last(concatenated: Call) -> bool:
    rank = len(concatenated.shape)
    return expect_op(concatenated, Concatenate).axis % rank == rank - 1


def _is_of_columns(concatenated: Call) -> bool:
    """Does `concatenated` concatenate two columns?"""
    return _is_along_last(concatenated) and all(a.shape[-1] == 1 for a in concatenated.args)


_FIRST, _SECOND = wildcard().where(_is_lane), wildcard().where(_is_lane)
_COSINE, _SINE = wildcard(), wildcard()
_ROTATED_FIRST = is_op("subtract")(is_op("multiply")(_FIRST, _COSINE), is_op("multiply")(_SECOND, _SINE))
_ROTATED_SECOND = is_op("add")(is_op("multiply")(_SECOND, _COSINE), is_op("multiply")(_FIRST, _SINE))


def _rotated(first: Expr, second: Expr, found: Found, interleaved: bool) -> _Pairs | None:
    """The pairs of which `first` and `second` are the rotated halves, with one angle for each pair."""
    pairs = _pairs(found[_FIRST], found[_SECOND], interleaved)
    plain = first.ty is found[_FIRST].ty and second.ty is found[_SECOND].ty
    return pairs if pairs is not None and plain and _is_table(found[_COSINE], found[_SINE], pairs.pairs) else None


class DecomposedRotaryHalves(PatternRule):
    """concatenate(x1 * c - x2 * s, x2 * c + x1 * s, ...) = concatenate(rotary_embedding(concatenate(x1, x2)), ...)

    x1 and x2 are adjacent in one tensor, with one angle for each pair. The others are channels that are not rotated.
    """

    pattern = is_op("concatenate")
    halves = is_tuple([_ROTATED_FIRST, _ROTATED_SECOND])

    def replace(self, call: Call, found: Found) -> Expr | Refused | None:
        if not _is_along_last(call):
            return None
        missed = ""
        for i, (first, second) in enumerate(zip(call.args, call.args[1:], strict=False)):
            if not is_call_of(first, "subtract") or not is_call_of(second, "add"):
                continue
            rotated = self.halves.match(Tuple((first, second)))
            pairs = None if rotated is None else _rotated(first, second, rotated, interleaved=False)
            if rotated is None or pairs is None:
                missed = "the rotated parts are not adjacent halves of one tensor, with one angle for each pair"
                continue
            embedded = pairs.embedded(rotated[_COSINE], rotated[_SINE], call)
            args = (*call.args[:i], embedded, *call.args[i + 2 :])
            return make_call(call.operator, args, call.span) if len(args) > 1 else embedded
        return Refused(missed) if missed else None


class DecomposedRotaryInterleaved(PatternRule):
    """reshape(concatenate(x1 * c - x2 * s, x2 * c + x1 * s)) = rotary_embedding(x), interleaved

    x1 and x2 are x[..., 0::2] and x[..., 1::2], which become columns: the product of complex values in LLaMA's own
    code.
    """

    columns = is_op("concatenate")(is_op("reshape")(_ROTATED_FIRST), is_op("reshape")(_ROTATED_SECOND))
    pattern = is_op("reshape")(columns)

    def replace(self, call: Call, found: Found) -> Expr | Refused | None:
        pairs = _rotated(found[_ROTATED_FIRST], found[_ROTATED_SECOND], found, interleaved=True)
        if pairs is None or not _is_of_columns(found.call(self.columns)):
            return Refused("the rotated parts are not even and odd channels of a tensor, with an angle for each pair")
        return reshaped(pairs.embedded(found[_COSINE], found[_SINE], call), call.shape, call.span)


ROTARY_RULES: tuple[type[PatternRule], ...] = (
    DecomposedRotaryEmbedding,
    DecomposedRotaryHalves,
    DecomposedRotaryInterleaved,
)
