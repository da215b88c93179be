"""The fork-join pool (`backend.llvm.pool`), with what else the runtime needs in machine code, as LLVM assembly and as
object files."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from relayc.backend.cache import default_cache
from relayc.backend.llvm.installed import installed_llvm
from relayc.backend.llvm.linking import checked_object
from relayc.backend.llvm.pool_steps import STEPS, job_constants
from relayc.backend.llvm.worker_placement import PLACEMENT, placement_constants

__all__ = ["pool_object", "pool_source"]

MAX_WORKERS = 255
SPIN_COUNT = 2000
"""Spin count before a thread goes to sleep, in `pause` instructions (15 to 45 ns each)."""
JOIN_SPINS = 64
"""Spin count for which the caller waits for workers before it takes the work back from those that have not started."""
CHUNKS_PER_THREAD = 8
"""Chunks (fewer than 256) per thread: the granularity at which idle threads steal work."""
MAILBOX_BYTES = 256

_MEMORY = """
declare ptr @malloc(i64)
declare void @free(ptr)

; Scratch memory, aligned to 64 bytes; the word before it holds the address to free. When memory is exhausted, null, and
; the bytes wanted in the context's `shortage`, at offset 40.
define ptr @relayc_alloc_workspace(ptr %ctx, i64 %nbytes) {
  %size = add i64 %nbytes, 72
  %raw = call ptr @malloc(i64 %size)
  %failed = icmp eq ptr %raw, null
  br i1 %failed, label %exhausted, label %allocated
exhausted:
  %shortage = getelementptr i8, ptr %ctx, i64 40
  store atomic i64 %size, ptr %shortage monotonic, align 8
  ret ptr null
allocated:
  %raw.bits = ptrtoint ptr %raw to i64
  %above = add i64 %raw.bits, 71
  %aligned.bits = and i64 %above, -64
  %aligned = inttoptr i64 %aligned.bits to ptr
  %before = getelementptr i8, ptr %aligned, i64 -8
  store ptr %raw, ptr %before
  ret ptr %aligned
}

define void @relayc_free_workspace(ptr %ctx, ptr %memory) {
  %before = getelementptr i8, ptr %memory, i64 -8
  %raw = load ptr, ptr %before
  call void @free(ptr %raw)
  ret void
}
"""

_CALL_WORDS = ("function", "a", "b", "c", "table", "items.at", "kind.at", "data.at", "rank.at", "shape.at", "dtype.at",
               "flags.at", "order.at", "kind.wanted", "flags.wanted", "count")  # fmt: skip
_RECORD_WORDS = ("position", "word", "sizes", "dtype.wanted", "rank.wanted")


def _loads(base: str, names: Sequence[str]) -> str:
    """Loads of the first words of a table as values of these names."""
    return "".join(
        f"  %p.{name} = getelementptr i64, ptr %{base}, i64 {word}\n  %{name} = load i64, ptr %p.{name}\n"
        for word, name in enumerate(names)
    )


_ARRAYS = f"""
; Calls function(a, b, c) after noting arrays of numpy in a table (`backend.runtime.array_call`): 0; or 1, before it is
; called, if an array is not as its record says. Its dtype may be another of the same class and byte order than the one
; wanted: those of unpickled arrays are. The words of `call` are `_CALL_WORDS`, of which those "at" are offsets in bytes
; ("kind" is the type of an object, "order" the byte order of a dtype), then records: `_RECORD_WORDS` and the extents,
; -1 for any. `word` of the table is for the address, those from `sizes` on are for the shape, if it is not negative.
define i64 @relayc_call_with_arrays(ptr %list, ptr %call) {{
entry:
{_loads("call", _CALL_WORDS)}
  %p.list.items = getelementptr i8, ptr %list, i64 %items.at
  %items = load ptr, ptr %p.list.items
  %entries = inttoptr i64 %table to ptr
  %first = getelementptr i64, ptr %call, i64 {len(_CALL_WORDS)}
  br label %next
next:
  %record = phi ptr [ %first, %entry ], [ %after, %noted ]
  %done = phi i64 [ 0, %entry ], [ %done.next, %noted ]
  %more = icmp ult i64 %done, %count
  br i1 %more, label %look, label %enter
look:
{_loads("record", _RECORD_WORDS)}
  %p.array = getelementptr ptr, ptr %items, i64 %position
  %array = load ptr, ptr %p.array
  %p.kind = getelementptr i8, ptr %array, i64 %kind.at
  %kind = load i64, ptr %p.kind
  %is.array = icmp eq i64 %kind, %kind.wanted
  br i1 %is.array, label %typed, label %other
typed:
  %p.dtype = getelementptr i8, ptr %array, i64 %dtype.at
  %dtype = load i64, ptr %p.dtype
  %same.dtype = icmp eq i64 %dtype, %dtype.wanted
  br i1 %same.dtype, label %known, label %twin
twin:
  %p.found = inttoptr i64 %dtype to ptr
  %p.twin = inttoptr i64 %dtype.wanted to ptr
  %p.found.kind = getelementptr i8, ptr %p.found, i64 %kind.at
  %p.twin.kind = getelementptr i8, ptr %p.twin, i64 %kind.at
  %found.kind = load i64, ptr %p.found.kind
  %twin.kind = load i64, ptr %p.twin.kind
  %p.found.order = getelementptr i8, ptr %p.found, i64 %order.at
  %p.twin.order = getelementptr i8, ptr %p.twin, i64 %order.at
  %found.order = load i8, ptr %p.found.order
  %twin.order = load i8, ptr %p.twin.order
  %same.kind = icmp eq i64 %found.kind, %twin.kind
  %same.order = icmp eq i8 %found.order, %twin.order
  %is.twin = and i1 %same.kind, %same.order
  br i1 %is.twin, label %known, label %other
known:
  %p.rank = getelementptr i8, ptr %array, i64 %rank.at
  %rank32 = load i32, ptr %p.rank
  %rank = sext i32 %rank32 to i64
  %p.flags = getelementptr i8, ptr %array, i64 %flags.at
  %flags32 = load i32, ptr %p.flags
  %flags = zext i32 %flags32 to i64
  %flags.set = and i64 %flags, %flags.wanted
  %same.rank = icmp eq i64 %rank, %rank.wanted
  %same.flags = icmp eq i64 %flags.set, %flags.wanted
  %fits = and i1 %same.rank, %same.flags
  br i1 %fits, label %note, label %other
note:
  %p.data = getelementptr i8, ptr %array, i64 %data.at
  %data = load i64, ptr %p.data
  %p.entry = getelementptr i64, ptr %entries, i64 %word
  store i64 %data, ptr %p.entry
  %has.sizes = icmp sge i64 %sizes, 0
  %p.shape = getelementptr i8, ptr %array, i64 %shape.at
  %shape = load ptr, ptr %p.shape
  %extents = getelementptr i64, ptr %record, i64 {len(_RECORD_WORDS)}
  br label %axis
axis:
  %k = phi i64 [ 0, %note ], [ %k.next, %axis.done ]
  %within = icmp slt i64 %k, %rank
  br i1 %within, label %extent, label %noted
extent:
  %p.size = getelementptr i64, ptr %shape, i64 %k
  %size = load i64, ptr %p.size
  %p.wanted = getelementptr i64, ptr %extents, i64 %k
  %wanted = load i64, ptr %p.wanted
  %any = icmp slt i64 %wanted, 0
  %equal = icmp eq i64 %wanted, %size
  %allowed = or i1 %any, %equal
  br i1 %allowed, label %sized, label %other
sized:
  br i1 %has.sizes, label %size.noted, label %axis.done
size.noted:
  %at = add i64 %sizes, %k
  %p.at = getelementptr i64, ptr %entries, i64 %at
  store i64 %size, ptr %p.at
  br label %axis.done
axis.done:
  %k.next = add i64 %k, 1
  br label %axis
noted:
  %after = getelementptr i64, ptr %extents, i64 %rank
  %done.next = add i64 %done, 1
  br label %next
enter:
  %entered = inttoptr i64 %function to ptr
  call void %entered(i64 %a, i64 %b, i64 %c)
  ret i64 0
other:
  ret i64 1
}}
"""

_SERIAL = """
define void @relayc_region(ptr %ctx, ptr %task, ptr %closure, i32 %max_tasks, i64 %steps) {
  call void @every_step(ptr %ctx, ptr %task, ptr %closure, i64 %steps)
  ret void
}
define i32 @relayc_worker_count() { ret i32 0 }
define void @relayc_forget_workers() { ret void }
"""

_ALONE = """
; Runs all steps of a region in the calling thread.
define internal void @every_step(ptr %ctx, ptr %task, ptr %closure, i64 %steps) {
entry:
  br label %check
check:
  %step = phi i64 [ 0, %entry ], [ %next, %run ]
  %more = icmp slt i64 %step, %steps
  br i1 %more, label %run, label %done
run:
  call void %task(ptr %ctx, ptr %closure, i32 0, i32 1, i64 %step, i32 1)
  %next = add i64 %step, 1
  br label %check
done:
  ret void
}
"""

# %mailbox is the per-worker state block of the pool, one for each thread; the first is the caller's. Field 0 is 1 while
# the thread sleeps in the futex, field 1 marks a suspended worker, the following fields belong to `PLACEMENT`. Field 9
# is the progress in the thread's partition: the number of the last step, and in the lowest 8 bits the number of its
# chunks started. All regions write it, so it has a cache line of its own.
_POOL = """
%mailbox = type {{ i32, i32, i32, i32, i32, i32, i64, i64, [88 x i8], i64, [120 x i8] }}
; The current or last region: number of its first step, or -1 while the other fields are being written; ctx, task,
; closure, threads, chunks per thread, steps; chunks done before, in all regions.
%job = type {{ {job_fields} }}
@mailboxes = internal global [{slots} x %mailbox] zeroinitializer, align 128
@job = internal global %job zeroinitializer, align 128
@next.step = internal global i64 1
@busy = internal global i32 0, align 128
@workers = internal global i32 0, align 128
@name = private constant [14 x i8] c"relayc-worker\\00"

declare i64 @syscall(i64, ...)
declare i32 @prctl(i32, ...)
declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_detach(ptr)
declare i32 @pthread_sigmask(i32, ptr, ptr)
{declare_pause}

define internal void @sleep(ptr %word, i32 %while) {{
  %r = call i64 (i64, ...) @syscall(i64 {futex}, ptr %word, i32 128, i32 %while, ptr null)
  ret void
}}

define internal void @wake(ptr %word) {{
  %r = call i64 (i64, ...) @syscall(i64 {futex}, ptr %word, i32 129, i32 1)
  ret void
}}

; Copies a %job except its number, word by word: workers may read it while the caller writes.
define internal void @copy_job(ptr %to, ptr %from) {{
entry:
  br label %each
each:
  %i = phi i64 [ 1, %entry ], [ %next, %each ]
  %p.from = getelementptr i64, ptr %from, i64 %i
  %word = load atomic i64, ptr %p.from monotonic, align 8
  %p.to = getelementptr i64, ptr %to, i64 %i
  store atomic i64 %word, ptr %p.to monotonic, align 8
  %next = add i64 %i, 1
  %all = icmp eq i64 %next, 7
  br i1 %all, label %done, label %each
done:
  ret void
}}

; The main loop of a worker: runs every region that it observes. Regions before step %old have been observed.
define internal ptr @worker(ptr %argument) {{
entry:
  %own = alloca %job, align 8
  %r = call i32 (i32, ...) @prctl(i32 15, ptr @name)
  %id64 = ptrtoint ptr %argument to i64
  %id = trunc i64 %id64 to i32
  %box = getelementptr %mailbox, ptr @mailboxes, i64 %id64
  %p.away = getelementptr %mailbox, ptr %box, i64 0, i32 1
  %p.threads = getelementptr %job, ptr %own, i64 0, i32 4
  call void @record_thread_id(i64 %id64)
  br label %spin
spin:
  %old = phi i64 [ 0, %entry ], [ %old, %again ], [ %seen, %pass ], [ %seen, %work ], [ %old, %up ], [ %old, %awake ]
  %round = phi i32 [ 0, %entry ], [ %next, %again ], [ %round, %pass ], [ 0, %work ], [ 0, %awake ], [ 0, %up ]
  %seen = load atomic i64, ptr @job acquire, align 8
  %new = icmp sgt i64 %seen, %old
  br i1 %new, label %look, label %again
again:
  {pause}
  %next = add i32 %round, 1
  %tired = icmp uge i32 %next, {spin_count}
  br i1 %tired, label %doze, label %spin
look:
  store i64 %seen, ptr %own
  call void @copy_job(ptr %own, ptr @job)
  fence acquire
  %still.on = load atomic i64, ptr @job monotonic, align 8
  %whole = icmp eq i64 %still.on, %seen
  br i1 %whole, label %ask, label %again
ask:
  %threads = load i32, ptr %p.threads
  %wanted = icmp slt i32 %id, %threads
  %away = load atomic i32, ptr %p.away monotonic, align 4
  %present = icmp eq i32 %away, 0
  %called = and i1 %wanted, %present
  br i1 %called, label %work, label %pass
pass:
  br label %spin
work:
  %apart = call i1 @occupy_core(i32 %id)
  call void @run_region(ptr %own, i32 %id)
  br label %spin
doze:
  %s = atomicrmw xchg ptr %box, i32 1 seq_cst
  %late = load atomic i64, ptr @job seq_cst, align 8
  %missed = icmp sgt i64 %late, %old
  br i1 %missed, label %up, label %asleep
up:
  store atomic i32 0, ptr %box monotonic, align 4
  br label %spin
asleep:
  call void @sleep(ptr %box, i32 1)
  %now = load atomic i32, ptr %box acquire, align 4
  %still = icmp eq i32 %now, 1
  br i1 %still, label %asleep, label %awake
awake: ; it may be too late for the region because another thread uses this core
  %early = call i1 @occupy_core(i32 %id)
  call void @count_interruptions(i64 %id64)
  br label %spin
}}

; Starts workers until there are %wanted or the system refuses; returns their number. Workers block all signals.
define internal i32 @start_workers(i32 %wanted) noinline {{
entry:
  %all = alloca [16 x i64], align 8
  %old = alloca [16 x i64], align 8
  %thread = alloca i64, align 8
  call void @llvm.memset.p0.i64(ptr %all, i8 -1, i64 128, i1 false)
  %r = call i32 @pthread_sigmask(i32 2, ptr %all, ptr %old)
  br label %check
check:
  %have = load i32, ptr @workers
  %enough = icmp sge i32 %have, %wanted
  br i1 %enough, label %done, label %start
start:
  %id = add i32 %have, 1
  %id64 = sext i32 %id to i64
  %argument = inttoptr i64 %id64 to ptr
  %failed = call i32 @pthread_create(ptr %thread, ptr null, ptr @worker, ptr %argument)
  %ok = icmp eq i32 %failed, 0
  br i1 %ok, label %started, label %done
started:
  %handle = load ptr, ptr %thread
  %d = call i32 @pthread_detach(ptr %handle)
  store i32 %id, ptr @workers
  br label %check
done:
  %r2 = call i32 @pthread_sigmask(i32 2, ptr %old, ptr null)
  %final = load i32, ptr @workers
  ret i32 %final
}}
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)

; Wakes the sleeping workers among 1 ... %last that are not suspended.
define internal void @wake_workers(i32 %last) {{
entry:
  br label %each
each:
  %w = phi i32 [ 1, %entry ], [ %w.next, %next ]
  %w64 = sext i32 %w to i64
  %box = getelementptr %mailbox, ptr @mailboxes, i64 %w64
  %state = load atomic i32, ptr %box seq_cst, align 4
  %p.away = getelementptr %mailbox, ptr %box, i64 0, i32 1
  %away = load atomic i32, ptr %p.away monotonic, align 4
  %excused = icmp ne i32 %away, 0
  %wakeful = icmp eq i32 %state, 0
  %leave = or i1 %excused, %wakeful
  br i1 %leave, label %next, label %call
call: ; migrate it first if it would wake on the caller's core
  %place = getelementptr %mailbox, ptr %box, i64 0, i32 2
  %there = load atomic i32, ptr %place monotonic, align 4
  %here = load atomic i32, ptr getelementptr (%mailbox, ptr @mailboxes, i64 0, i32 2) monotonic, align 4
  %same = icmp eq i32 %there, %here
  br i1 %same, label %part, label %shake
part:
  call void @migrate_workers()
  br label %shake
shake:
  store atomic i32 0, ptr %box seq_cst, align 4
  call void @wake(ptr %box)
  br label %next
next:
  %w.next = add i32 %w, 1
  %all = icmp sgt i32 %w.next, %last
  br i1 %all, label %done, label %each
done:
  ret void
}}

define void @relayc_region(ptr %ctx, ptr %task, ptr %closure, i32 %max_tasks, i64 %steps) {{
entry:
  %own = alloca %job, align 8
  %p.ctx.threads = getelementptr i8, ptr %ctx, i64 8
  %most = load i32, ptr %p.ctx.threads
  %few = icmp slt i32 %max_tasks, %most
  %asked = select i1 %few, i32 %max_tasks, i32 %most
  %much = icmp sgt i32 %asked, {slots}
  %limited = select i1 %much, i32 {slots}, i32 %asked
  %single = icmp sle i32 %limited, 1
  %nothing = icmp sle i64 %steps, 0
  %alone = or i1 %single, %nothing
  br i1 %alone, label %serial, label %acquire
acquire:
  %swap = cmpxchg ptr @busy, i32 0, i32 1 acquire monotonic
  %mine = extractvalue {{ i32, i1 }} %swap, 1
  br i1 %mine, label %count, label %serial
serial:
  call void @every_step(ptr %ctx, ptr %task, ptr %closure, i64 %steps)
  ret void
count:
  %wanted = sub i32 %limited, 1
  %have = load i32, ptr @workers
  %enough = icmp sge i32 %have, %wanted
  br i1 %enough, label %prepare, label %hire
hire:
  %hired = call i32 @start_workers(i32 %wanted)
  br label %prepare
prepare:
  %able = phi i32 [ %wanted, %count ], [ %hired, %hire ]
  %capped = icmp slt i32 %able, %wanted
  %helpers = select i1 %capped, i32 %able, i32 %wanted
  %threads = add i32 %helpers, 1
  %even = udiv i32 %max_tasks, %threads ; equal for all threads
  %fewer = icmp slt i32 %even, {chunks}
  %share = select i1 %fewer, i32 %even, i32 {chunks}
  %began = call i64 @now()
  %s = call i1 @occupy_core(i32 0)
  %some.benched = load i32, ptr @suspended
  %complete = icmp eq i32 %some.benched, 0
  br i1 %complete, label %publish, label %call.roll
call.roll:
  call void @resume_workers(i64 %began)
  br label %publish
publish:
  %first = load i64, ptr @next.step
  %following = add i64 %first, %steps
  store i64 %following, ptr @next.step
  %before = load atomic i64, ptr @done monotonic, align 8
{noted}
  store atomic i64 -1, ptr @job monotonic, align 8
  fence release
  call void @copy_job(ptr @job, ptr %own)
  %p = atomicrmw xchg ptr @job, i64 %first seq_cst
  %crowd = load atomic i32, ptr @core.shared monotonic, align 4
  %apart = icmp eq i32 %crowd, 0
  br i1 %apart, label %placed, label %separate
separate:
  call void @migrate_workers()
  br label %placed
placed:
  call void @wake_workers(i32 %helpers)
  call void @run_region(ptr %own, i32 0)
  %lost = load i64, ptr @stalled
  %waited = icmp ne i64 %lost, 0
  br i1 %waited, label %blame, label %end
blame:
  store i64 0, ptr @stalled
  %ended = call i64 @now()
  call void @report_stall(i32 %helpers, i64 %began, i64 %lost, i64 %ended)
  br label %end
end:
  store atomic i32 0, ptr @busy release, align 4
  ret void
}}

define i32 @relayc_worker_count() {{
  %n = load i32, ptr @workers
  ret i32 %n
}}

; Resets the pool in the child of a fork, which has no workers; new ones must not see the parent's regions.
define void @relayc_forget_workers() {{
  call void @llvm.memset.p0.i64(ptr @mailboxes, i8 0, i64 {mailbox_bytes}, i1 false)
  call void @llvm.memset.p0.i64(ptr @core.occupants, i8 0, i64 {occupant_bytes}, i1 false)
  store i64 0, ptr @job
  store i32 0, ptr @workers
  store i32 0, ptr @busy
  store i32 0, ptr @core.shared
  store i32 0, ptr @migration.pause
  store i32 0, ptr @suspended
  store i64 0, ptr @stalled
  store i32 0, ptr @sleepers
  ret void
}}
"""

_PAUSE = {
    "x86_64": ("declare void @llvm.x86.sse2.pause()", "call void @llvm.x86.sse2.pause()"),
    "aarch64": ("declare void @llvm.aarch64.hint(i32)", "call void @llvm.aarch64.hint(i32 1)"),
}
_FUTEX = {"x86_64": 202, "aarch64": 98}


def pool_source(system: str, machine: str) -> str:
    """LLVM assembly of the pool for an operating system ("linux", ...) and an architecture ("x86_64", ...)."""
    if system != "linux" or machine not in _FUTEX:
        return _MEMORY + _ARRAYS + _ALONE + _SERIAL
    declare_pause, pause = _PAUSE[machine]
    slots = MAX_WORKERS + 1
    pool = (_POOL + STEPS + PLACEMENT).format(
        declare_pause=declare_pause, pause=pause, futex=_FUTEX[machine], spin_count=SPIN_COUNT,
        join_spins=JOIN_SPINS, chunks=CHUNKS_PER_THREAD,
        slots=slots, mailbox_bytes=slots * MAILBOX_BYTES, **job_constants(), **placement_constants(machine),
    )  # fmt: skip
    return _MEMORY + _ARRAYS + _ALONE + pool


@lru_cache(maxsize=4)
def pool_object(triple: str) -> bytes:
    """An object file of the pool for every processor of the triple, cached with the compiled code."""
    architecture, *rest = triple.split("-")
    source = pool_source("linux" if any(word.startswith("linux") for word in rest) else "other", architecture)
    cache, key = default_cache(), "\0".join(["llvm pool 1", installed_llvm().version, triple, source])
    code = None if cache is None else cache.decoded(key, lambda data: checked_object(data, triple))
    if code is None:
        code = _compiled(source, triple)
        if cache is not None:
            cache.put(key, code)
    return code


def _compiled(source: str, triple: str) -> bytes:
    import llvmlite.binding as llvm  # loads LLVM

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple(triple).create_target_machine(opt=1, reloc="pic", codemodel="small")
    return machine.emit_object(llvm.parse_assembly(source))
