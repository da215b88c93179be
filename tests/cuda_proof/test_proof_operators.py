"""Every operator compiled for a GPU: no faults in its kernels, and the results of its numpy reference."""

from __future__ import annotations

import numpy as np
import pytest

from relayc import relay
from relayc.relay.op import get_op
from tests.cuda_proof import proof
from tests.relay.op.operator_rows import ROWS, Row
from tests.relay.op.test_operators import assert_close, results_of, types_of

pytestmark = pytest.mark.slow
_BATCH = 16
BATCHES = [ROWS[i : i + _BATCH] for i in range(0, len(ROWS), _BATCH)]


def program(rows: list[Row]) -> tuple[relay.Function, dict[str, np.ndarray]]:
    """The operators of some rows as one program, and its inputs."""
    params: list[relay.Var] = []
    results: list[relay.Expr] = []
    inputs: dict[str, np.ndarray] = {}
    for i, row in enumerate(rows):
        own = [relay.var(f"x{i}_{k}", ty=ty) for k, ty in enumerate(types_of(row.inputs))]
        inputs |= {p.name: np.array(x, order="C") for p, x in zip(own, row.inputs, strict=True)}
        made = get_op(row.op)(**row.attrs)(*own)
        fields = len(made.ty.fields) if isinstance(made.ty, relay.TupleType) else 0
        results += [relay.TupleGetItem(made, k) for k in range(fields)] if fields else [made]
        params += own
    return relay.Function(tuple(params), relay.Tuple(tuple(results))), inputs


@pytest.mark.parametrize("rows", BATCHES, ids=lambda rows: f"{rows[0].op} to {rows[-1].op}")
def test_operators(cuda_device, rows):
    function, inputs = program(rows)
    results = iter(proof.run(cuda_device, function, inputs))
    for row in rows:
        for expected in results_of(get_op(row.op)(**row.attrs).reference(*row.inputs)):
            assert_close(next(results), expected, max(row.tolerance, 4e-6))


def follows_positions(row: Row) -> bool:
    """Does the operator use unchecked indices from an input, which the importer guarantees to be in bounds?"""
    dot4 = ("nn.window_dot4_groups", "nn.dense_dot4_groups")
    others = ("slice_at", "ml.tree_ensemble", "vision.weighted_pixels", "nn.routed_dense")
    return "experts" in row.attrs or row.op in (*others, *dot4)


@pytest.mark.parametrize("rows", BATCHES, ids=lambda rows: f"{rows[0].op} to {rows[-1].op}")
def test_kernels_have_no_faults(rows):
    rows = [row for row in rows if not follows_positions(row)]
    proof.check_kernels(proof.kernels_of(program(rows)[0], "sm_90"), "sm_90")


@pytest.mark.parametrize("row", [row for row in ROWS if follows_positions(row)], ids=str)
def test_indexed_reads_have_no_faults(row):
    """Indices are in arrays of trees, tables of steps and experts of rows: the first parameters of the only kernel,
    in their order."""
    (kernel,) = proof.kernels_of(program([row])[0], "sm_90")
    names = [f"p{k}" for k in range(len(row.inputs))]
    assert [p.name for p in kernel.params][: len(names)] == names
    proof.check_kernels([kernel], "sm_90", dict(zip(names, row.inputs, strict=True)))
