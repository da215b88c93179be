"""Deprecated names of te: each works as before and warns with the name to use."""

from __future__ import annotations

import pytest

from relayc import relay, te, topi
from relayc.te.ir import structural_equal
from relayc.te.schedule import Schedule


def _schedule() -> tuple[Schedule, te.Tensor, te.Tensor, te.Tensor]:
    x = te.placeholder((8, 4), name="x")
    y = te.compute(x.shape, lambda i, j: x(i, j) + 1, name="y")
    z = te.compute(x.shape, lambda i, j: y(i, j) * 2, name="z")
    return te.create_schedule(z.op), x, y, z


@pytest.mark.parametrize(
    ("old", "new", "operands"), [("dot_pairs", "dot2", 2), ("dot_quads", "dot4", 2), ("dot_octets", "dot8", 4)]
)
def test_functions(old: str, new: str, operands: int) -> None:
    args = [te.var(f"x{i}") for i in range(operands)]
    with pytest.warns(DeprecationWarning, match=f"te.{old} is deprecated; use relayc.te.{new}") as caught:
        made = getattr(te, old)(*args)
    assert caught[0].filename == __file__
    assert structural_equal(made, getattr(te, new)(*args))


@pytest.mark.parametrize("keyword", [False, True])
def test_guess(keyword: bool) -> None:
    s, x, y, _ = _schedule()
    other = te.compute(x.shape, lambda i, j: x(i, j) * 1, name="other")
    with pytest.warns(DeprecationWarning, match=r"Schedule\.guess is deprecated; use Schedule\.speculate"):
        if keyword:
            s.guess([y], [other], trusted=lambda e: e > 0)
        else:
            s.guess([y], [other], lambda e: e > 0)
    assert [v.exact for v in s.speculations] == [(s[y],)]


def test_cache_tiled() -> None:
    s, x, y, _ = _schedule()
    with pytest.warns(DeprecationWarning, match=r"\.cache_tiled is deprecated; use .*\.cache_read_packed"):
        packed = s.cache_tiled(x, "local", [y], (4, 8), lambda t, j, i: t(i, j), lambda i, j: (j, i))
    assert s.current(packed).shape == (4, 8)


def test_when_small() -> None:
    s, *_, z = _schedule()
    other = te.create_schedule(z.op)
    with pytest.warns(DeprecationWarning, match=r"Schedule\.when_small is deprecated; use Schedule\.specialize_small"):
        s.when_small(other)
    assert s.small is other


@pytest.mark.parametrize(("package", "old", "new"), [
    (topi, "sizes", "size_tensor"), (topi.nn, "dense_quads", "dense_dot4"),
    (topi.nn, "dense_quad_groups", "dense_dot4_groups"), (topi.nn, "conv2d_quads", "conv2d_dot4"),
    (topi.nn, "window_quad_groups", "window_dot4_groups"), (relay.transform, "KeepCaches", "UpdateKVCacheInPlace"),
    (relay.transform, "FoldCodeScales", "FoldQuantizationScales"), (relay.transform, "find_caches", "find_kv_caches"),
    (relay.transform, "MapBeforeJoining", "PushElementwiseThroughConcat"),
    (relay.transform, "MovePointwise", "CommutePointwiseConv"), (relay.transform, "SplitTaps", "ConvolveByShiftedGemm"),
    (relay.transform, "StoreInOrder", "FoldTransposeIntoStore"),
    (relay.transform, "TabulateBytes", "TabulateInt8Activations"),
], ids=lambda value: value if isinstance(value, str) else value.__name__)  # fmt: skip
def test_names_of_operators_and_passes(package, old: str, new: str) -> None:
    with pytest.warns(DeprecationWarning, match=rf"{old} is deprecated; use .*{new}"):
        assert getattr(package, old) is getattr(package, new)


def test_other_names_are_unknown() -> None:
    with pytest.raises(AttributeError, match="no attribute 'dot_pears'"):
        _ = te.dot_pears
