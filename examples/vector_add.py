"""Vector addition at the level of tensors: describe, schedule, look at the loops, build, run.

    python examples/vector_add.py [--target llvm|c|interp]
"""

from __future__ import annotations

import argparse

import numpy as np

from relayc import backend, te


def main() -> None:
    """Build and run C = A + B for a size that is known only when it is called."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--target", default="llvm", help="llvm (the default), c or interp")
    args = parser.parse_args()

    n = te.size_var("n")
    a = te.placeholder((n,), name="A")
    b = te.placeholder((n,), name="B")
    c = te.compute(a.shape, lambda i: a[i] + b[i], name="C")

    schedule = te.create_schedule(c.op)
    outer, inner = schedule[c].split(c.op.axis[0], factor=64)
    schedule[c].parallel(outer)
    schedule[c].vectorize(inner)
    print(te.lower(schedule, [a, b, c]))

    target = backend.Target(args.target)
    size = 1 << (20 if target.device_kind == "cpu" else 10)
    fadd = backend.build(schedule, [a, b, c], target)
    dev = backend.device(target.device_kind, 0)
    x, y = (backend.nd.array(np.random.default_rng(seed).random(size, dtype=np.float32), dev) for seed in (0, 1))
    z = backend.nd.array(np.zeros(size, np.float32), dev)
    fadd(x, y, z)
    np.testing.assert_array_equal(z.numpy(), x.numpy() + y.numpy())
    print(f"\non {dev}: {fadd.time_evaluator('main', dev, number=10)(x, y, z).median * 1e6:.1f} us for {size} elements")


if __name__ == "__main__":
    main()
