import sys; sys.path.insert(0,'.')
exec(open('.ed.py').read())
edit('CONTRIBUTING.md',[(""" A public name
that is renamed keeps working, with a warning, until the next major version.""","")])
edit('docs/add_a_device.md',[
("""Everything that makes a new kind of hardware usable is added from outside; no file of the compiler is edited. This page does it
for the *Hive*, an accelerator of many small cores with memory of its own, and ends with a model running on it. All blocks are
run by the tests, in order. The Hive itself is simulated, by threads of this process; what a driver and a vendor's compiler would
do is marked where it happens.

Three things are needed. Each can be written and tested by itself:
""","""A new kind of hardware is added from outside; no file of the compiler is edited. This page does it for the *Hive*, a
simulated accelerator of many small cores with separate memory, and ends with a model running on it. The tests run all blocks in order.

Three things are needed. Each can be written and tested by itself:
"""),
("how to reach a device: attributes, memory, copies, streams","access to a device: attributes, memory, copies, streams"),
("what code is made for: limits and abilities, as plain attributes","what code is generated for: limits and features, as plain attributes"),
("""The first belongs to the run half: it imports `backend.runtime` only, and ships with compiled models. The other two belong to the
compiler. A fourth, schedules for whole models, comes at the end.
""","""The first imports `relayc.runtime` only and ships with compiled models. The other two belong to the
compiler. Schedules for whole models come at the end.
"""),
("""Two Hives are plugged into this machine. The driver knows them by number, gives memory as opaque handles, and runs commands
queue by queue. Here it is a class; elsewhere it would be a library called by `ctypes`.
""","""The driver of the two simulated Hives gives memory as opaque handles and executes queues of commands. Elsewhere it would be a
library called by `ctypes`.
"""),
("    \"\"\"The makers' driver: memory by handle, queues by handle.\"\"\"","    \"\"\"The vendor's driver: memory by handle, queues by handle.\"\"\""),
("    \"\"\"Commands of one stream, done in order by a thread.\"\"\"","    \"\"\"Commands of one stream, executed in order by a thread.\"\"\""),
("""`DeviceAPI` has abstract methods for attributes, memory and copies. The rest has defaults that serve a device with one queue
that finishes its work at once: streams are `None`, and workspaces come from a pool over the data space.

**Attributes** are asked for by `DeviceAttrKind`. What can't be queried, or has no meaning here (a warp size), is `None`;
`EXIST` must never raise.

**Memory.** A handle is an `int` other than 0. It may be an address, but need not: with `addressable = False` the runtime never
adds an offset to it, and passes offsets beside it. A *data space* holds inputs and outputs; a *workspace* holds what lives within
one operator. The Hive's workspaces use the default pool, which keeps blocks for reuse, one pool for each thread and device.

**Copies** go from host to device, back, and within a device, by the kinds of the two devices. They are queued on a stream, but
the host's memory may be gone when the call returns: what is read from the host is read at once, and what is written to the host
is waited for.

**Streams.** `set_stream` makes one current for the calling thread; copies and kernels go there. `sync_stream_from_to` makes
one stream wait for another without stopping the host.
""","""`DeviceAPI` has abstract methods for attributes, memory and copies. The defaults of the others serve a synchronous device without streams.

* **Attributes** are queried by `DeviceAttrKind`. What is unknown or has no meaning here (a warp size) is `None`; `EXIST` must never raise.
* **Memory.** A handle is a nonzero `int`. With `addressable = False` it need not be an address: the runtime passes offsets
  separately. A *data space* holds inputs and outputs, a *workspace* scratch memory of one operator; by default workspaces come from a pool
  per thread and device.
* **Copies** are queued on a stream, but host memory may be freed when the call returns: it is read at once, and
  writes to it are waited for.
* **Streams.** `set_stream` makes a stream current for the calling thread; `sync_stream_from_to` makes one stream wait for another
  without blocking the host.
"""),
("""    \"\"\"Hives as the runtime sees them.\"\"\"""","""    \"\"\"The runtime's interface to Hives.\"\"\""""),
("""Two registrations make it known: a number that stands for the kind in a `DLTensor` (any unused one above DLPack's own), and the
function that makes the API. There is one API for all devices of a kind.
""","""Two registrations: the kind's number in a `DLTensor` (any unused one above DLPack's own), and the function that makes the API, one for
all devices of the kind.
"""),
("""From here on arrays live there. Streams, workspaces and errors work too, without a compiler in sight:
""","""Arrays, streams, workspaces and errors work now, without a compiler:
"""),
("""A target says what to compile for. It is written by people (`"hive -model=h64"`), so its options have types, defaults and a line of
documentation; the *parser* fills in what follows from the others, and refuses what makes no sense. Afterwards every attribute is
explicit: a target printed on one machine means the same on another, with or without a Hive in it.

*Keys* are what schedules are looked up by, most specific first. The *device query* serves `Target.from_device`: it alone reads
a live device.
""","""A target says what to compile for, as in `"hive -model=h64"`. Its options have types, defaults and documentation. The *parser* derives
the attributes that are not given and rejects invalid ones, so that a printed target means the same on every
machine. Schedules are looked up by the target's *keys*, most specific first. Only the *device query*, for `Target.from_device`, reads a
live device.
"""),
("cores that run a program at the same time","cores that run a program concurrently"),
("how hard the vendor's compiler tries","optimisation level of the vendor's compiler"),
("""It gets an `IRModule` of loop functions, flat and simplified, and the target, and gives a `Module` where every one of these
functions is found by its name. It reads the target, never a device: code is often made on another machine.

The Hive is programmed in C: a *program* is a function that each core runs with its own number. So a function of the loop IR
becomes a list of programs, one for each nest that is bound to cores, which run one after another; what they pass on to each other
lies in workspaces. `CLikeGenerator` prints the expressions and loops of any C-like language, and a dialect says what is different.
Here that is one thing: what a thread axis is.
""","""It maps an `IRModule` of flattened, simplified loop functions and the target to a `Module` that has each of them by name. It never reads a
device, since code is often generated on another machine.

The Hive is programmed in C: a *program* is a function that each core runs with its core number. A function of the loop IR becomes a
sequence of programs, one for each loop nest bound to cores, with workspaces between them. `CLikeGenerator` prints expressions and loops
of any C-like language; a dialect overrides what differs, here the thread axis.
"""),
("""    \"\"\"The Hive's C: `core` is the number of the core that runs the program.\"\"\"""","""    \"\"\"C with a parameter `core`: the number of the core that runs the program.\"\"\""""),
("""    \"\"\"The text of one program: all parameters of the function, then its workspaces.\"\"\"""","""    \"\"\"One program as text: the function's parameters, then its workspaces.\"\"\""""),
("""The `Module` is the run half's piece: it loads code and starts it. It must not know `te` nor the target, so the code generator
hands it a table: what programs a function has, on how many cores each runs, what memory they want. A function of it gets
NDArrays and numbers, in the order of the loop function's parameters; types, shapes and devices were checked by then, by a host
function that `backend.build` makes for every function. It submits work to the current stream of the arrays' device, and
returns.

What can be saved implements `save_to_bytes` and registers a loader, and compiled models for the Hive can be written to files.
""","""The `Module` is part of the runtime: it loads code and launches it, and knows neither `te` nor the target. The code generator gives it a
table of each function's programs, core counts and workspaces. Its functions get NDArrays and scalars in the order of the loop
function's parameters, already checked by the host function that `backend.build` generates, and submit work to the current stream.

`save_to_bytes` and a registered loader let compiled models for the Hive be saved.
"""),
("""    \"\"\"Programs in the Hive's machine code, and the table of the functions made of them.\"\"\"""","""    \"\"\"Machine code of programs, and the table of functions.\"\"\""""),
("""    \"\"\"What the driver makes of a handle when a program starts; queued programs keep their memory.\"\"\"""","""    \"\"\"The address behind a handle; queued programs keep their memory alive.\"\"\""""),
("""What is left is to put the two together. The vendor's compiler is this machine's C compiler. The generated text calls a
few helpers, `rc_min_f32` and so on, by fixed names: a dialect may bring its own, or take those of target `c`.
""","""Here the vendor's compiler is this machine's C compiler. The generated text calls helpers such as `rc_min_f32`; a dialect may
define its own, or use those of target `c`.
"""),
("""A tensor expression with a schedule of one's own already runs:

```python
from relayc import backend
from relayc import te
""","""A scheduled tensor expression already runs:

```python
from relayc import backend, te
"""),
("""`relay.build` asks for a schedule of every fused group of operators, by the tag of its main operation and the keys of the target.
One schedule, registered for the tag "default", serves them all: cheap operations are computed inside their readers, every other
one is spread over the cores. Faster ones for single tags, "dense", "conv2d_nhwc", "softmax", are registered in the same way when
they are wanted, and go before it.
""","""`relay.build` looks up a schedule for every fused group, by the tag of its anchor operation and the target's keys. One schedule,
registered for the tag "default", serves all groups: injective operations are inlined, all others are divided among the
cores. Faster schedules for single tags ("dense", "conv2d_nhwc", "softmax") are registered in the same way and take precedence.
"""),
("""That is all. A small model, compiled, saved, loaded and run:
""","""A small model, compiled, saved, loaded and run:
"""),
("""## What to look at next

* `backend/interp/` is a device, a target kind and a code generator on two pages; `backend/llvm/` and `backend/cuda/` are the
  real ones.
* A package registers itself when it is imported. Nothing heavy need happen then: `register_provider(name, "module:attribute")`
  names a function that is imported at its first use.
* `"target.builder.<kind>"` instead of a generator for whole modules compiles functions while the next ones are lowered, and may
  keep them in the cache on disk (`backend/llvm/build.py`).
""","""## Next steps

* `backend/interp/` is a small complete example; `backend/llvm/` and `backend/cuda/` are the real ones.
* A package registers itself when it is imported; `register_provider(name, "module:attribute")` defers the import of a function to its
  first use.
* `"target.builder.<kind>"`, in place of a generator for whole modules, compiles functions while the next ones are lowered, and may cache
  them on disk (`backend/llvm/build.py`).
"""),
])
