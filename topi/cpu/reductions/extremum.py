"""Argmax and argmin on CPUs: two passes over data in a cache, one for the extremum and one for its position."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from relayc import te
from relayc.te.ir.decisions import Refused, note
from relayc.te.tir import Dim, IterVar, PrimExpr
from relayc.te.tir.substitute import substitute
from relayc.topi.candidates import Candidate, KernelFacts, schedule_by
from relayc.topi.cpu.norms.moments import part_by_part, part_sizes
from relayc.topi.cpu.reductions.lines import add_up_lines
from relayc.topi.cpu.reductions.reduction import reduce_across, reduce_along
from relayc.topi.cpu.stagewise import stage_by_stage
from relayc.topi.cpu.tiling import vector_lanes
from relayc.topi.groups import constant_size, extent_of, inline_injective, iterations
from relayc.topi.reduction import largest_number, smallest_number
from relayc.topi.registry import operations_behind, register_schedule
from relayc.topi.utils import num_elements, ravel_index, unravel_index

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

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
    return schedule_by(_CANDIDATES, KernelFacts(outs, anchor, target))


def _two_passes(kernel: KernelFacts) -> te.Schedule | Refused:
    anchor, outs, target = kernel.anchor, kernel.outs, kernel.target
    if "axes" not in anchor.attrs:
        return Refused("windows are searched")
    extents = [extent_of(axis) for axis in anchor.reduce_axis]
    length, last = constant_size(extents), constant_size([extent_of(a) for a in kernel.out.op.axis[-1:]])
    along, is_static = anchor.attrs["reduces_last_axis"], all(isinstance(d, int) for d in extents)
    in_range = length < _MOST if is_static else len(extents) == 1 and not anchor.attrs["last"]
    if not in_range or not (along or last >= vector_lanes(target)):
        return Refused(f"positions may exceed {_MOST}, or there are fewer columns than a vector has lanes")
    positions = [op for op in operations_behind(outs) if anchor.output(0) in op.input_tensors]
    if not kernel.has_one_result or len(positions) != 1:
        return Refused("there are several results")
    assert isinstance(anchor, te.ComputeOp)
    s, position = kernel.create_schedule(), positions[0].output(0)
    inline_injective(s, outs, keep=[anchor])
    search = _Search(anchor, target)
    at_once = len(extents) == 1 and (search.fits or not is_static) and bool(kernel.out.op.axis)
    note("position", "two passes" if at_once else "parts", along_memory=along)
    if at_once:
        passes = search.at_once(s, position)
        (reduce_along if along else reduce_across)(s, s.outputs[0].output(0), passes, target)
    elif along:
        search.in_one_part(s, position, target)
    else:
        search.by_parts(s, position, target)
    return s


_CANDIDATES: tuple[Candidate[KernelFacts], ...] = (("two passes", _two_passes), ("stage by stage", stage_by_stage))


class _Search:
    """The two passes that replace `anchor`, a reduction of pairs of positions and values.

    Positions of NaN are shifted beyond all others, so that a NaN is preferred to any value.
    """

    def __init__(self, anchor: te.ComputeOp, target: Target) -> None:
        self.anchor, self.last = anchor, bool(anchor.attrs["last"])
        self.axes: tuple[int, ...] = anchor.attrs["axes"]
        self.extents = [extent_of(axis) for axis in anchor.reduce_axis]
        self.length = num_elements(self.extents)
        self.neutral = -1 if self.last else self.length  # a place that any other is preferred to
        self.value: PrimExpr = anchor.body[0].source[1]  # type: ignore[attr-defined]
        self.result_axes = self._result_axes()  # for each dimension of the input
        lengths = dict(zip(self.axes, self.extents, strict=True))
        self.shape: list[Dim] = [
            lengths[a] if a in lengths or axis is None else extent_of(axis) for a, axis in enumerate(self.result_axes)
        ]
        self.along = bool(anchor.attrs["reduces_last_axis"])
        share = _SHARE_ALONG if self.along else _SHARE_ACROSS
        room = target.cache_bytes.l2 // share
        self.sizes = part_sizes(self.shape, self.value.dtype.nbytes, self.axes, target, room)
        self.fits = all(self.sizes[a] == lengths[a] for a in self.axes)
        self.attrs = {key: anchor.attrs[key] for key in ("reduces_last_axis", "reduces_trailing_axes")}

    def _result_axes(self) -> list[IterVar | None]:
        axes, keepdims = iter(self.anchor.axis), self.anchor.attrs["keepdims"]
        rank = len(self.anchor.axis) + (0 if keepdims else len(self.axes))
        return [next(axes) if keepdims or a not in self.axes else None for a in range(rank)]

    def _element(self, i: Sequence[Any], ks: Sequence[Any]) -> PrimExpr:
        """Return the value that the anchor compares, at index `i` of its result and `ks` of its reduction axes."""
        at = {axis.var: v for axis, v in zip(self.anchor.axis, i, strict=True)}
        at |= {axis.var: k for axis, k in zip(self.anchor.reduce_axis, ks, strict=True)}
        found = substitute(self.value, at)
        return te.cast("float32", found) if found.dtype.is_float and found.dtype.bits < 32 else found

    def _extreme(self, value: PrimExpr, ks: Sequence[IterVar], where: PrimExpr | None = None) -> PrimExpr:
        reducer = largest_number if self.anchor.attrs["largest"] else smallest_number
        return reducer(value, axis=list(ks), where=where)

    def _place(self, x: PrimExpr, best: PrimExpr, at: Any) -> PrimExpr:
        """Return `at` where `x` is the extremum, shifted out of range where it is NaN, else the neutral position."""
        found = te.select(x == best, at, self.neutral)
        if x.dtype.is_float:
            beyond = at + self.length if self.last else at - self.length
            found = te.select(te.isnan(x), beyond, found)
        return found

    def _preferred(self, place: PrimExpr, ks: Sequence[IterVar], where: PrimExpr | None = None) -> PrimExpr:
        return (te.max if self.last else te.min)(place, axis=list(ks), where=where)

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
        name, k, j = self.anchor.name, *[te.reduce_axis((0, self.length), name="k") for _ in range(2)]

        def place(*i: Any) -> PrimExpr:
            return self._preferred(self._place(self._element(i, [j.var]), best(*i), j.var), [j])

        value = lambda *i: self._extreme(self._element(i, [k.var]), [k])  # noqa: E731
        best = te.compute(position.shape, value, name=f"{name}_value")
        where = te.compute(position.shape, place, name=f"{name}_place")
        self._replace(s, position, where)
        return s.current(best), s.current(where)

    def _parts(self) -> list[Dim]:
        """Return the number of parts along each dimension."""
        return [
            -(-constant_size([d]) // constant_size([self.sizes[a]])) if a in self.sizes else d
            for a, d in enumerate(self.shape)
        ]

    def in_one_part(self, s: te.Schedule, position: te.Tensor, target: Target) -> None:
        """Find the extremum of each part, then the position within the first part that has the overall extremum.

        Other parts are read once. Extrema propagate NaN.
        """
        shape = self._parts()
        counts = [constant_size([shape[a]]) for a in self.axes]
        extreme = te.max if self.anchor.attrs["largest"] else te.min

        def preferred(x: PrimExpr, best: PrimExpr, at: Any, ks: Sequence[IterVar], where: Any = None) -> PrimExpr:
            found = te.any(x == best, te.isnan(x)) if x.dtype.is_float else x == best
            return self._preferred(te.select(found, at, self.neutral), ks, where)

        def value(part: Sequence[Any], at: Sequence[Any], ks: Sequence[IterVar], where: Any) -> PrimExpr:
            return extreme(self._of_part(part, at), axis=list(ks), where=where)

        def part_of(i: Sequence[Any], part: Sequence[Any], ks: Sequence[IterVar]) -> PrimExpr:
            number = ravel_index([part[a] for a in self.axes], counts)
            return preferred(values(*part), result(*i), number, ks)

        def place(i: Sequence[Any], part: Sequence[Any], at: Sequence[Any], ks: Any, where: Any) -> PrimExpr:
            return preferred(self._of_part(part, at), result(*i), ravel_index(at, self.extents), ks, where)

        def place_in_part(*i: Any) -> PrimExpr:
            part = self._part(i, dict(zip(self.axes, unravel_index(chosen(*i), counts), strict=True)))
            return self._over_part(lambda *found: place(i, *found))(*part)

        values = self._stage("value", shape, self._over_part(value))
        of_values = lambda _, part, ks: extreme(values(*part), axis=list(ks))  # noqa: E731
        result = self._stage("value_of_parts", position.shape, self._over_parts(shape, of_values))
        chosen = self._stage("part", position.shape, self._over_parts(shape, part_of))
        found = self._stage("place", position.shape, place_in_part)
        self._replace(s, position, found)
        for stage in (values, result, chosen):
            reduce_along(s, stage, [stage], target)
        reduce_along(s, s.outputs[0].output(0), [found], target)

    def by_parts(self, s: te.Schedule, position: te.Tensor, target: Target) -> None:
        """Run both passes over each part, and both over the results of the parts."""
        shape = self._parts()

        def extreme(part: Sequence[Any], at: Sequence[Any], ks: Sequence[IterVar], where: PrimExpr | None) -> PrimExpr:
            return self._extreme(self._of_part(part, at), ks, where)

        def place(part: Sequence[Any], at: Sequence[Any], ks: Sequence[IterVar], where: PrimExpr | None) -> PrimExpr:
            found = self._place(self._of_part(part, at), best(*part), ravel_index(at, self.extents))
            return self._preferred(found, ks, where)

        def place_of_parts(result: PrimExpr, part: Sequence[Any], ks: Sequence[IterVar]) -> PrimExpr:
            at = places(*part)
            here = te.any(values(*part) == result, self._is_marked(at))
            return self._preferred(te.select(here, at, self.neutral), ks)

        best = self._stage("value", shape, self._over_part(extreme))
        where = self._stage("place", shape, self._over_part(place))
        places, values = te.compute(shape, lambda *i: (where(*i), best(*i)), name=f"{self.anchor.name}_parts")
        of_values = lambda _, part, ks: self._extreme(values(*part), ks)  # noqa: E731
        of_places = lambda i, part, ks: place_of_parts(result(*i), part, ks)  # noqa: E731
        result = self._stage("value_of_parts", position.shape, self._over_parts(shape, of_values))
        found = self._stage("place_of_parts", position.shape, self._over_parts(shape, of_places))
        self._replace(s, position, found)
        self._schedule_parts(s, places, (best, where), target)
        reduce_across(s, result, [result], target)
        reduce_across(s, s.outputs[0].output(0), [found], target)

    def _stage(self, what: str, shape: Sequence[Dim], element: Callable[..., PrimExpr]) -> te.Tensor:
        """A stage with the attributes of the anchor that tell how it reduces."""
        return te.compute(shape, element, name=f"{self.anchor.name}_{what}", attrs=self.attrs)

    def _of_part(self, part: Sequence[Any], at: Sequence[Any]) -> PrimExpr:
        """Return the element of a part at positions `at` along the anchor's axes."""
        axes = enumerate(self.result_axes)
        return self._element([0 if a in self.axes else part[a] for a, axis in axes if axis is not None], at)

    def _over_part(self, reduction: Callable[..., PrimExpr]) -> Callable[..., PrimExpr]:
        """Apply ``reduction(part, positions, axes, condition)`` to each part; the condition masks its end."""
        ks = {a: te.reduce_axis((0, self.sizes[a]), name=f"k{a}") for a in self.axes}

        def body(*part: Any) -> PrimExpr:
            at = [part[a] * self.sizes[a] + ks[a] for a in self.axes]
            lengths = zip(self.axes, at, self.extents, strict=True)
            inside = [v < d for a, v, d in lengths if d % constant_size([self.sizes[a]])]
            return reduction(part, at, list(ks.values()), te.all(*inside) if inside else None)

        return body

    def _over_parts(self, shape: Sequence[Dim], reduction: Callable[..., PrimExpr]) -> Callable[..., PrimExpr]:
        """Apply ``reduction(i, part, axes)`` over all parts, for each index `i` of the anchor's result."""
        ks = {a: te.reduce_axis((0, shape[a]), name=f"p{a}") for a in self.axes}

        def body(*i: Any) -> PrimExpr:
            return reduction(i, self._part(i, ks), list(ks.values()))

        return body

    def _part(self, i: Sequence[Any], numbers: Mapping[int, Any]) -> list[Any]:
        """Return the part index for index `i` of the anchor's result and the part `numbers` along the anchor's axes."""
        at: Mapping[Any, Any] = dict(zip(self.anchor.axis, i, strict=True))
        return [numbers[a] if a in numbers else at[axis] for a, axis in enumerate(self.result_axes)]

    def _schedule_parts(
        self, s: te.Schedule, parts: te.Tensor, passes: tuple[te.Tensor, te.Tensor], target: Target
    ) -> None:
        """Schedule both passes over a part, for a block of columns at a time."""
        columns = min(iterations([s[parts].op.axis[-1]]), _COLUMNS)
        part_by_part(s, parts, passes, columns, constant_size(self.shape) * 4.0, target)
        for stage in passes:
            add_up_lines(s, stage, vector_lanes(target))
