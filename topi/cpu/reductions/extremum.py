"""Argmax and argmin on CPUs: two passes over data in a cache, one for the extremum and one for its position."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from relayc import te
from relayc.te.ir.decisions import Refused, note
from relayc.te.tir import PrimExpr
from relayc.topi.candidates import Candidate, schedule_by
from relayc.topi.cpu.reductions.lines import add_up_lines
from relayc.topi.cpu.reductions.parts import part_by_part
from relayc.topi.cpu.reductions.reduction import reduce_across, reduce_along
from relayc.topi.cpu.reductions.two_passes import TwoPassFacts
from relayc.topi.cpu.stagewise import stage_by_stage
from relayc.topi.cpu.tiling import vector_lanes
from relayc.topi.groups import constant_size, iterations
from relayc.topi.parts import Index, Parts
from relayc.topi.reduction import largest_number, smallest_number
from relayc.topi.registry import operations_behind, register_schedule
from relayc.topi.utils import num_elements, ravel_index, unravel_index

if TYPE_CHECKING:
    from collections.abc import Callable

    from relayc.backend.target import Target

__all__ = ["schedule_reduce_index"]

_COLUMNS = 512
"""Columns whose extrema are found together in reductions along a strided axis."""
_SHARE_ALONG, _SHARE_ACROSS = 16, 2
"""Divisors of the L2 size, along memory and along a strided axis: the part reduced while the next arrives."""
_MOST = 1 << 30
"""Limit on positions: NaN are marked by positions shifted out of the valid range by the length. Of first positions,
shifted downwards, any length is in the range of int32."""


@register_schedule("comm_reduce_idx", "cpu")
def schedule_reduce_index(outs: list[te.Tensor], anchor: te.Operation, target: Target) -> te.Schedule:
    """Find the position of an extremum by two passes over a row, the second one while it is in the cache.

    The first pass finds the extremum, the second its position; both take a few vector instructions per vector, where
    reducing pairs of value and position takes many. Along a strided axis a block of adjacent columns is taken
    together. Rows that no cache holds are split into parts, among whose extrema the same is done.
    """
    return schedule_by(_CANDIDATES, TwoPassFacts(outs, anchor, target))


def _two_passes(kernel: TwoPassFacts) -> te.Schedule | Refused:
    anchor, outs, target = kernel.anchor, kernel.outs, kernel.target
    if "axes" not in anchor.attrs:
        return Refused("windows are searched")
    search = _Search(kernel)
    last, is_static = iterations(kernel.out.op.axis[-1:]), isinstance(search.length, int)
    in_range = constant_size([search.length]) < _MOST if is_static else len(search.axes) == 1 and not search.last
    if not in_range or not (search.along or last >= vector_lanes(target)):
        return Refused(f"positions may exceed {_MOST}, or there are fewer columns than a vector has lanes")
    positions = [op for op in operations_behind(outs) if anchor.output(0) in op.input_tensors]
    if not kernel.has_one_result or len(positions) != 1:
        return Refused("there are several results")
    s, position = kernel.create_schedule(), positions[0].output(0)
    at_once = len(search.axes) == 1 and (search.fits or not is_static) and bool(kernel.out.op.axis)
    note("position", "two passes" if at_once else "parts", along_memory=search.along)
    if at_once:
        passes = search.at_once(s, position)
        kernel.reduce(s, s.outputs[0].output(0), *passes)
    elif search.along:
        search.in_one_part(s, position, target)
    else:
        search.by_parts(s, position, target)
    return s


_CANDIDATES: tuple[Candidate[TwoPassFacts], ...] = (("two passes", _two_passes), ("stage by stage", stage_by_stage))


class _Search(Parts):
    """The two passes that replace a `kernel`'s reduction of pairs of positions and values, over rows or their parts.

    Positions of NaN are shifted beyond all others, so that a NaN is preferred to any value.
    """

    def __init__(self, kernel: TwoPassFacts) -> None:
        attrs, self.axes, self.along = kernel.anchor.attrs, kernel.axes, kernel.along
        sizes = kernel.parts(kernel.target.cache_bytes.l2 // (_SHARE_ALONG if self.along else _SHARE_ACROSS))
        super().__init__(kernel.x, sizes, kernel.anchor.name, keepdims=attrs["keepdims"])
        self.last, self.fits = bool(attrs["last"]), kernel.are_whole(sizes)
        self.extents = [self.x.shape[a] for a in self.axes]
        self.length = num_elements(self.extents)
        self.neutral = -1 if self.last else self.length  # a place that any other is preferred to
        self.attrs = {key: attrs[key] for key in ("reduces_last_axis", "reduces_trailing_axes")}
        self.extreme = largest_number if attrs["largest"] else smallest_number
        self.extreme_of_parts = te.max if attrs["largest"] else te.min  # propagates NaN
        self.preferred = te.max if self.last else te.min

    def element(self, _: Index, at: Index) -> PrimExpr:
        """The value that the anchor compares, at an index of `x`."""
        found = self.x(*at)
        return te.cast("float32", found) if found.dtype.is_float and found.dtype.bits < 32 else found

    def _place(self, x: PrimExpr, best: PrimExpr, at: Any) -> PrimExpr:
        """`at` where `x` is the extremum, shifted out of range where it is NaN, else the neutral position."""
        found = te.select(x == best, at, self.neutral)
        if x.dtype.is_float:
            beyond = at + self.length if self.last else at - self.length
            found = te.select(te.isnan(x), beyond, found)
        return found

    def _is_marked(self, place: PrimExpr) -> PrimExpr:
        return place >= self.length if self.last else place < 0

    def _replace(self, s: te.Schedule, position: te.Tensor, place: te.Tensor) -> None:
        """Recompute `position`, a copy of the anchor's first result, as `place` without the shift that marks NaN."""

        def plain(*i: Any) -> PrimExpr:
            at = place(*i)
            shifted = at - self.length if self.last else at + self.length
            return te.cast(position.dtype, te.select(self._is_marked(at), shifted, at))

        s.recompute(position, te.compute(position.shape, plain, name=position.op.name, tag=position.op.tag))

    def at_once(self, s: te.Schedule, position: te.Tensor) -> tuple[te.Tensor, te.Tensor]:
        """Compute `position`, a copy of the anchor's first result, by two passes over each row; returns both."""
        (axis,), (k, j) = self.axes, [te.reduce_axis((0, self.length), name="k") for _ in range(2)]

        def element(i: Index, at: te.IterVar) -> PrimExpr:
            values = {**dict(zip(self.results, i, strict=True)), axis: at}
            return self.element(i, [values[a] for a in range(self.x.ndim)])

        value = lambda *i: self.extreme(element(i, k), axis=k)  # noqa: E731
        place = lambda *i: self.preferred(self._place(element(i, j), best(*i), j.var), axis=j)  # noqa: E731
        best = te.compute(position.shape, value, name=f"{self.name}_value")
        where = te.compute(position.shape, place, name=f"{self.name}_place")
        self._replace(s, position, where)
        return s.current(best), s.current(where)

    def _of_part(
        self, what: str, element: Callable[[Index, Index], PrimExpr], reducer: Callable[..., PrimExpr]
    ) -> te.Tensor:
        """The reduction of ``element(part, index into x)`` over each part."""
        reduction = self.reduction({a: self.sizes[a] for a in self.several}, element, reducer)
        return te.compute(self.shape, reduction, name=f"{self.name}_{what}", attrs=self.attrs)

    def _position(self, at: Index) -> Any:
        """The position along the anchor's axes of an index into `x`."""
        return ravel_index([at[a] for a in self.axes], self.extents)

    def in_one_part(self, s: te.Schedule, position: te.Tensor, target: Target) -> None:
        """Find the extremum of each part, then the position within the first part that has the overall extremum.

        Other parts are read once. Extrema propagate NaN.
        """
        counts = [self.shape[a] for a in self.axes]

        def where_found(x: PrimExpr, best: PrimExpr, at: Any) -> PrimExpr:
            found = te.any(x == best, te.isnan(x)) if x.dtype.is_float else x == best
            return te.select(found, at, self.neutral)

        def number(part: Index) -> PrimExpr:
            best = result(*self.result_of(part))
            return where_found(values(*part), best, ravel_index([part[a] for a in self.axes], counts))

        def place(*i: Any) -> PrimExpr:
            numbers = dict(zip(self.axes, unravel_index(chosen(*i), counts), strict=True))
            part = {**dict(zip(self.results, i, strict=True)), **numbers}
            element = lambda _, at: where_found(self.element(_, at), result(*i), self._position(at))  # noqa: E731
            over = self.reduction({a: self.sizes[a] for a in self.several}, element, self.preferred)
            return over(*[part[a] for a in range(self.x.ndim)])

        values = self._of_part("value", self.element, self.extreme_of_parts)
        result = self.over_parts(lambda part: values(*part), f"{self.name}_value_of_parts", self.extreme_of_parts)
        chosen = self.over_parts(number, f"{self.name}_part", self.preferred)
        found = te.compute(position.shape, place, name=f"{self.name}_place", attrs=self.attrs)
        self._replace(s, position, found)
        for stage in (values, result, chosen):
            reduce_along(s, stage, [stage], target)
        reduce_along(s, s.outputs[0].output(0), [found], target)

    def by_parts(self, s: te.Schedule, position: te.Tensor, target: Target) -> None:
        """Run both passes over each part, and both over the results of the parts, for a block of columns at a time."""

        def place(part: Index, at: Index) -> PrimExpr:
            return self._place(self.element(part, at), best(*part), self._position(at))

        def place_of_part(part: Index) -> PrimExpr:
            here = te.any(values(*part) == result(*self.result_of(part)), self._is_marked(places(*part)))
            return te.select(here, places(*part), self.neutral)

        best = self._of_part("value", self.element, self.extreme)
        where = self._of_part("place", place, self.preferred)
        places, values = te.compute(self.shape, lambda *i: (where(*i), best(*i)), name=f"{self.name}_parts")
        result = self.over_parts(lambda part: values(*part), f"{self.name}_value_of_parts", self.extreme)
        found = self.over_parts(place_of_part, f"{self.name}_place_of_parts", self.preferred)
        self._replace(s, position, found)
        columns = min(iterations([s[places].op.axis[-1]]), _COLUMNS)
        part_by_part(s, places, (best, where), columns, constant_size(self.x.shape) * 4.0, target)
        for stage in (best, where):
            add_up_lines(s, stage, vector_lanes(target))
        reduce_across(s, result, [result], target)
        reduce_across(s, s.outputs[0].output(0), [found], target)
