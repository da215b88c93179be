"""The memory plan never overlaps two tensors that are alive, and reuses memory of dead ones."""

from __future__ import annotations

from hypothesis import given, strategies as st

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
