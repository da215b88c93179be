"""A checker of GPU kernels in the loop IR: it runs them block by block and finds errors that a GPU does not report.

`check_kernel` raises `SimtFault` for

* a race: two threads touch one element of shared or global memory, at least one writes, and no barrier stands between
  them (none can, between blocks);
* a divergent barrier or warp operation: one that some threads of the block do not reach;
* an access outside a buffer, of any scope;
* a read of memory that nothing has written: shared, local, and workspaces between kernels.

The error names the kernel, the buffer, the element, the threads and the statements.

It is no interpreter. The checks need the addresses that threads access, not the values, so loops without barriers are
evaluated in one step, as numpy arrays over threads and iterations, and values are tracked only where they determine an
address or a branch (a gather, a sort). Threads of a block go in lock-step from statement to statement; times are those
of a thread running alone, so "read before written" is exact.

Two threads may write the same *value* to one element: schedules do so on purpose at the ends of axes (``split(...,
tail="shift")`` moves the last tile back over the one before it). When a statement writes an element twice, the kernel
is run again with all its values, and it is a race only if they differ.

Long loops with barriers run their first and last iterations only, and large grids their corners: see `check_kernel`.
"""

from relayc.te.tir.simt_checker.checker import KernelChecker, check_kernel, sample_blocks
from relayc.te.tir.simt_checker.faults import ExternAccess, SimtFault

__all__ = ["ExternAccess", "KernelChecker", "SimtFault", "check_kernel", "sample_blocks"]
