"""Code generation from the loop IR to LLVM assembly: `emit_module`.

    index.py   addresses: index arithmetic in 64 bits, constants folded
    convert.py conversions between types
    expr.py    values
    memory.py  loads and stores, scalar and vector, masked or not
    calls.py   intrinsics, one function each
    dots.py, amx.py, lookups.py, permuted.py, bfloats.py, nontemporal_stores.py   special instructions, for those
    stmt.py    statements; regions.py, work_partition.py: parallel regions
    accumulators.py, unroll_factor.py, nontemporal.py   decisions about loops and results
    legalize.py splits vectors into what the processor supports
    module.py  functions and modules
"""

from relayc.backend.llvm.codegen.convert import Machine
from relayc.backend.llvm.codegen.module import EmittedModule, emit_module

__all__ = ["EmittedModule", "Machine", "emit_module"]
