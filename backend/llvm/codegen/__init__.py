"""Code generation from the loop IR to LLVM assembly: `emit_module`.

visitor.py    how each node becomes LLVM assembly: class of the node -> function
intrinsics.py likewise for calls: name of the intrinsic -> function
table.py      processors' instructions for operators, as text; their rows are where the operators are emitted
emitter.py    the state of the function being emitted, which all functions that emit nodes get
machine.py    properties of the target

index.py, vector_index.py   index arithmetic in 64 bits, constants folded
convert.py, arithmetic.py, conditions.py, math.py, bits.py   values
dots.py, lookups.py, permutes.py, amx.py   special instructions
memory.py, loads.py, stores.py, pointers.py   accesses to memory
statements.py, loops.py, workspace.py, functions.py   control flow, scratch memory, calls
regions.py, work_partition.py   parallel regions
accumulators.py, unroll_factor.py, nontemporal.py, pass_selection.py   decisions about loops and results
vectors.py, instructions.py   parts of vectors; selection of instructions
module.py     functions and modules
"""

from relayc.backend.llvm.codegen.machine import Machine
from relayc.backend.llvm.codegen.module import EmittedModule, emit_module
from relayc.backend.llvm.codegen.pass_selection import PassSelection
from relayc.backend.llvm.codegen.table import instruction_table

__all__ = ["EmittedModule", "Machine", "PassSelection", "emit_module", "instruction_table"]
