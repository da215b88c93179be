"""The memory plan never overlaps two tensors that are alive, and reuses memory of dead ones."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from relayc.relay.lowering import memory_plan
from relayc.relay.lowering.memory_plan import ALIGNMENT, Lifetime, plan_memory

lifetimes = st.lists(
    st.tuples(st.integers(0, 5000), st.integers(0, 20), st.integers(0, 5)).map(lambda t: (t[0], t[1], t[1] + t[2])),
    max_size=25,
).map(lambda rows: [Lifetime(i, *row) for i, row in enumerate(rows)])


@given(lifetimes)
def test_living_tensors_do_not_overlap(tensors: list[Lifetime]):
    plan = plan_memory(tensors)
    for a in tensors:
        assert plan.offsets[a.key] % ALIGNMENT == 0
        assert plan.offsets[a.key] + a.nbytes <= plan.arena_bytes
        for b in tensors:
            if a.key < b.key and a.first <= b.last and b.first <= a.last:
                a_start, b_start = plan.offsets[a.key], plan.offsets[b.key]
                assert a_start + a.nbytes <= b_start or b_start + b.nbytes <= a_start
    assert plan.live_bytes <= plan.arena_bytes


def test_a_chain_needs_two_buffers():
    chain = [Lifetime(i, 1000, i, i + 1) for i in range(10_000)]
    assert plan_memory(chain).arena_bytes == 2048


@given(lifetimes)
def test_a_tensor_lies_at_the_lowest_offset_that_is_free(tensors: list[Lifetime]):
    plan = plan_memory(tensors)
    placed: list[Lifetime] = []
    for t in sorted(tensors, key=lambda t: (-t.nbytes, t.first, t.key)):
        size = -(-max(t.nbytes, 1) // ALIGNMENT) * ALIGNMENT
        taken = [(plan.offsets[p.key], -(-max(p.nbytes, 1) // ALIGNMENT) * ALIGNMENT)
                 for p in placed if p.first <= t.last and t.first <= p.last]  # fmt: skip
        free = [at for at in (0, *[start + n for start, n in taken])
                if all(at + size <= start or start + n <= at for start, n in taken)]  # fmt: skip
        assert plan.offsets[t.key] == min(free)
        placed.append(t)


def test_many_tensors_that_are_alive_together_are_placed_side_by_side(monkeypatch: pytest.MonkeyPatch):
    looked_at = 0
    first_free = memory_plan._Occupied.first_free

    def counted(occupied: memory_plan._Occupied, size: int, offset: int) -> int:
        nonlocal looked_at
        looked_at += 1
        return first_free(occupied, size, offset)

    monkeypatch.setattr(memory_plan._Occupied, "first_free", counted)
    plan = plan_memory([Lifetime(i, 64, i, 2000) for i in range(2000)])
    assert plan.arena_bytes == 2000 * 64
    assert looked_at < 2000 * 60
