"""The code of the fork-join pool (`backend.llvm.pool` says what it does): LLVM assembly, and object files of it."""

from __future__ import annotations

from functools import lru_cache

from backend.cache import default_cache
from backend.llvm.installed import installed_llvm
from backend.llvm.pool_places import PLACES, place_constants
from backend.llvm.pool_steps import STEPS

__all__ = ["pool_object", "pool_source"]

MAX_WORKERS = 255
SPIN = 2000
"""Rounds of waiting, each one `pause` (15 to 45 ns), before a thread goes to sleep."""
PATIENCE = 64
"""Rounds for which the caller waits for workers before it takes the job back from those that have not begun."""
CHUNKS = 8
"""Parts that a thread's share is cut into: what it has not begun when others are done, they do."""

_MEMORY = """
declare ptr @malloc(i64)
declare void @free(ptr)

; Scratch memory, aligned to 64 bytes; the word before it holds the address to free.
define ptr @relayc_alloc_workspace(ptr %ctx, i64 %nbytes) {
  %size = add i64 %nbytes, 72
  %raw = call ptr @malloc(i64 %size)
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

_SERIAL = """
define void @relayc_parallel(ptr %ctx, ptr %task, ptr %closure, i32 %max_tasks) {
  call void %task(ptr %ctx, ptr %closure, i32 0, i32 1)
  ret void
}
define void @relayc_parallel_steps(ptr %ctx, ptr %task, ptr %closure, i32 %max_tasks, i64 %steps) {
  call void @every_step(ptr %ctx, ptr %task, ptr %closure, i64 %steps)
  ret void
}
define i32 @relayc_worker_count() { ret i32 0 }
define void @relayc_forget_workers() { ret void }
"""

_ALONE = """
; All steps of a region, in this thread.
define internal void @every_step(ptr %ctx, ptr %task, ptr %closure, i64 %steps) {
entry:
  br label %check
check:
  %step = phi i64 [ 0, %entry ], [ %next, %run ]
  %more = icmp slt i64 %step, %steps
  br i1 %more, label %run, label %done
run:
  call void %task(ptr %ctx, ptr %closure, i32 0, i32 1, i64 %step)
  %next = add i64 %step, 1
  br label %check
done:
  ret void
}
"""

# A mailbox holds IDLE (0), RUN (1), BUSY (2) or, with its worker in the futex, ASLEEP (-1). The job is written before
# any mailbox is set to RUN and stays until every worker that took it (RUN to BUSY) has counted itself out of @pending;
# the caller takes it back (RUN to IDLE) from workers that the system has not let run. Beside it lies the number of the
# next chunk of the thread's share, which whoever takes a chunk counts up, and what `PLACES` knows of the thread. The
# first mailbox is the caller's.
_POOL = """
%mailbox = type {{ i32, i32, i32, i32, i32, i32, i64, i64, i64, [20 x i32] }}
%job = type {{ ptr, ptr, ptr, i32, i32, i64 }} ; ctx, task, closure, threads, chunks, steps
@mailboxes = internal global [{slots} x %mailbox] zeroinitializer, align 128
@job = internal global %job zeroinitializer, align 128
@pending = internal global i32 0, align 128
@waiting = internal global i32 0, align 128
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

; The first chunk of a thread's share, or the end of the share before.
define internal i32 @bound(i32 %thread, i32 %chunks, i32 %threads) alwaysinline {{
  %all = mul i32 %thread, %chunks
  %first = udiv i32 %all, %threads
  ret i32 %first
}}

; Runs what nobody has begun of a thread's share.
define internal void @drain(i32 %thread) {{
entry:
  %ctx = load ptr, ptr @job
  %task = load ptr, ptr getelementptr (%job, ptr @job, i32 0, i32 1)
  %closure = load ptr, ptr getelementptr (%job, ptr @job, i32 0, i32 2)
  %threads = load i32, ptr getelementptr (%job, ptr @job, i32 0, i32 3)
  %chunks = load i32, ptr getelementptr (%job, ptr @job, i32 0, i32 4)
  %following = add i32 %thread, 1
  %end = call i32 @bound(i32 %following, i32 %chunks, i32 %threads)
  %thread64 = zext i32 %thread to i64
  %next = getelementptr %mailbox, ptr @mailboxes, i64 %thread64, i32 1
  br label %look
look:
  %seen = load atomic i32, ptr %next monotonic, align 4
  %more = icmp slt i32 %seen, %end
  br i1 %more, label %claim, label %done
claim:
  %chunk = atomicrmw add ptr %next, i32 1 monotonic
  %mine = icmp slt i32 %chunk, %end
  br i1 %mine, label %run, label %done
run:
  call void %task(ptr %ctx, ptr %closure, i32 %chunk, i32 %chunks, i64 0)
  br label %look
done:
  ret void
}}

; A thread's own share, then what is left of the shares of those whose number differs from its own in one bit.
define internal void @participate(i32 %thread) {{
entry:
  %threads = load i32, ptr getelementptr (%job, ptr @job, i32 0, i32 3)
  %steps = load i64, ptr getelementptr (%job, ptr @job, i32 0, i32 5)
  %several = icmp sgt i64 %steps, 1
  br i1 %several, label %in.step, label %share
in.step:
  call void @keep_step(i32 %thread)
  ret void
share:
  %bit = phi i32 [ 0, %entry ], [ 1, %first ], [ %doubled, %other ]
  %of = xor i32 %thread, %bit
  %exists = icmp ult i32 %of, %threads
  br i1 %exists, label %help, label %skip
help:
  call void @drain(i32 %of)
  br label %skip
skip:
  %own = icmp eq i32 %bit, 0
  br i1 %own, label %first, label %other
first:
  br label %share
other:
  %doubled = shl i32 %bit, 1
  %over = icmp uge i32 %doubled, %threads
  br i1 %over, label %done, label %share
done:
  ret void
}}

define internal ptr @worker(ptr %argument) {{
entry:
  %r = call i32 (i32, ...) @prctl(i32 15, ptr @name)
  %id64 = ptrtoint ptr %argument to i64
  %id = trunc i64 %id64 to i32
  %box = getelementptr %mailbox, ptr @mailboxes, i64 %id64
  call void @introduce(i64 %id64)
  br label %wait
wait:
  br label %spin
spin:
  %round = phi i32 [ 0, %wait ], [ %next, %again ]
  %seen = load atomic i32, ptr %box acquire, align 4
  %called = icmp eq i32 %seen, 1
  br i1 %called, label %run, label %again
again:
  {pause}
  %next = add i32 %round, 1
  %tired = icmp uge i32 %next, {spin}
  br i1 %tired, label %doze, label %spin
doze:
  %swap = cmpxchg ptr %box, i32 0, i32 -1 seq_cst seq_cst
  %dozing = extractvalue {{ i32, i1 }} %swap, 1
  br i1 %dozing, label %asleep, label %run
asleep:
  call void @sleep(ptr %box, i32 -1)
  %now = load atomic i32, ptr %box acquire, align 4
  %still = icmp eq i32 %now, -1
  br i1 %still, label %asleep, label %awake
awake: ; if too late for the region, so because somebody sits there
  %early = call i1 @sit(i32 %id)
  call void @count_interruptions(i64 %id64)
  br label %run
run:
  %take = cmpxchg ptr %box, i32 1, i32 2 acquire monotonic
  %taken = extractvalue {{ i32, i1 }} %take, 1
  br i1 %taken, label %work, label %wait
work:
  %apart = call i1 @sit(i32 %id)
  call void @participate(i32 %id)
  %lost = load atomic i64, ptr @missed monotonic, align 8
  %asked = icmp ne i64 %lost, 0
  br i1 %asked, label %answer, label %leave
answer:
  call void @tell_interruptions(i64 %id64)
  br label %leave
leave:
  store atomic i32 0, ptr %box release, align 4
  %left = atomicrmw sub ptr @pending, i32 1 seq_cst
  %last = icmp eq i32 %left, 1
  br i1 %last, label %tell, label %wait
tell:
  %anyone = load atomic i32, ptr @waiting seq_cst, align 4
  %someone = icmp ne i32 %anyone, 0
  br i1 %someone, label %rouse, label %wait
rouse:
  call void @tell_interruptions(i64 %id64)
  call void @wake(ptr @pending)
  br label %wait
}}

; Starts workers until there are %wanted or the system refuses; gives how many there are. Signals are Python's business.
define internal i32 @recruit(i32 %wanted) noinline {{
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

define void @relayc_parallel(ptr %ctx, ptr %task, ptr %closure, i32 %max_tasks) {{
  call void @region(ptr %ctx, ptr %task, ptr %closure, i32 %max_tasks, i64 1)
  ret void
}}

define void @relayc_parallel_steps(ptr %ctx, ptr %task, ptr %closure, i32 %max_tasks, i64 %steps) {{
  %any = icmp sgt i64 %steps, 0
  br i1 %any, label %run, label %none
run:
  call void @region(ptr %ctx, ptr %task, ptr %closure, i32 %max_tasks, i64 %steps)
  ret void
none:
  ret void
}}

define internal void @region(ptr %ctx, ptr %task, ptr %closure, i32 %max_tasks, i64 %steps) {{
entry:
  %p.threads = getelementptr i8, ptr %ctx, i64 8
  %threads = load i32, ptr %p.threads
  %few = icmp slt i32 %max_tasks, %threads
  %asked = select i1 %few, i32 %max_tasks, i32 %threads
  %much = icmp sgt i32 %asked, {slots}
  %limited = select i1 %much, i32 {slots}, i32 %asked
  %alone = icmp sle i32 %limited, 1
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
  br i1 %enough, label %publish, label %hire
hire:
  %hired = call i32 @recruit(i32 %wanted)
  br label %publish
publish:
  %able = phi i32 [ %wanted, %count ], [ %hired, %hire ]
  %capped = icmp slt i32 %able, %wanted
  %helpers = select i1 %capped, i32 %able, i32 %wanted
  %tasks = add i32 %helpers, 1
  %most = mul i32 %tasks, {chunks}
  %over = urem i32 %max_tasks, %tasks
  %even = sub i32 %max_tasks, %over ; as many for each thread
  %fewer = icmp slt i32 %even, %most
  %chunks = select i1 %fewer, i32 %even, i32 %most
  %began = call i64 @now()
  %s = call i1 @sit(i32 0)
  store ptr %ctx, ptr @job
  store ptr %task, ptr getelementptr (%job, ptr @job, i32 0, i32 1)
  store ptr %closure, ptr getelementptr (%job, ptr @job, i32 0, i32 2)
  store atomic i32 %tasks, ptr getelementptr (%job, ptr @job, i32 0, i32 3) monotonic, align 4
  store i32 %chunks, ptr getelementptr (%job, ptr @job, i32 0, i32 4)
  store i64 %steps, ptr getelementptr (%job, ptr @job, i32 0, i32 5)
  store atomic i64 0, ptr @done monotonic, align 8
  %at.once = icmp eq i64 %steps, 1
  store atomic i32 %helpers, ptr @pending release, align 4
  br label %allot
allot:
  %t = phi i32 [ 0, %publish ], [ %t.next, %allot ]
  %first = call i32 @bound(i32 %t, i32 %chunks, i32 %tasks)
  %t64 = zext i32 %t to i64
  %counter = getelementptr %mailbox, ptr @mailboxes, i64 %t64, i32 1
  %start = select i1 %at.once, i32 %first, i32 %chunks
  store atomic i32 %start, ptr %counter monotonic, align 4
  %claims = getelementptr %mailbox, ptr @mailboxes, i64 %t64, i32 8
  %first64 = zext i32 %first to i64
  store atomic i64 %first64, ptr %claims monotonic, align 8
  %t.next = add i32 %t, 1
  %allotted = icmp eq i32 %t.next, %tasks
  br i1 %allotted, label %seated, label %allot
seated:
  %crowd = load atomic i32, ptr @crowded monotonic, align 4
  %apart = icmp eq i32 %crowd, 0
  br i1 %apart, label %placed, label %separate
separate:
  call void @spread()
  br label %placed
placed:
  %any = load i32, ptr @benched
  %complete = icmp eq i32 %any, 0
  br i1 %complete, label %call, label %look.at.clock
look.at.clock:
  %time = call i64 @now()
  store i32 0, ptr @benched
  br label %call
call:
  %w = phi i32 [ 1, %placed ], [ 1, %look.at.clock ], [ %w.next, %called ]
  %moment = phi i64 [ 0, %placed ], [ %time, %look.at.clock ], [ %moment, %called ]
  %called.all = icmp sgt i32 %w, %helpers
  br i1 %called.all, label %work, label %ring
ring:
  %w64 = sext i32 %w to i64
  %box = getelementptr %mailbox, ptr @mailboxes, i64 %w64
  br i1 %complete, label %summon, label %ask
ask:
  %p.until = getelementptr %mailbox, ptr %box, i64 0, i32 6
  %until = load i64, ptr %p.until
  %benched = icmp sgt i64 %until, %moment
  br i1 %benched, label %pass.over, label %come.back
come.back:
  store i64 %moment, ptr %p.until
  br label %summon
pass.over:
  store i32 1, ptr @benched
  %one.less = atomicrmw sub ptr @pending, i32 1 seq_cst
  br label %called
summon:
  %was = atomicrmw xchg ptr %box, i32 1 seq_cst
  %slept = icmp eq i32 %was, -1
  br i1 %slept, label %meet, label %called
meet: ; it would wake where the caller runs
  %place = getelementptr %mailbox, ptr @mailboxes, i64 %w64, i32 2
  %there = load atomic i32, ptr %place monotonic, align 4
  %here = load atomic i32, ptr getelementptr (%mailbox, ptr @mailboxes, i64 0, i32 2) monotonic, align 4
  %same = icmp eq i32 %there, %here
  br i1 %same, label %part, label %rouse
part:
  call void @spread()
  br label %rouse
rouse:
  call void @wake(ptr %box)
  br label %called
called:
  %w.next = add i32 %w, 1
  br label %call
work:
  call void @participate(i32 0)
  br i1 %complete, label %join, label %stand.in
stand.in: ; for those on the bench
  %b = phi i32 [ 1, %work ], [ %b.next, %stand.in ]
  call void @drain(i32 %b)
  %b.next = add i32 %b, 1
  %stood.in = icmp sgt i32 %b.next, %helpers
  br i1 %stood.in, label %join, label %stand.in
join:
  %round = phi i32 [ 0, %work ], [ 0, %stand.in ], [ %next, %joining ], [ %next, %dismissed ]
  %left = load atomic i32, ptr @pending acquire, align 4
  %finished = icmp eq i32 %left, 0
  br i1 %finished, label %release, label %again
again:
  {pause}
  %next = add i32 %round, 1
  %waited = icmp eq i32 %next, {patience}
  br i1 %waited, label %dismiss, label %linger
linger:
  %tired = icmp uge i32 %next, {spin}
  br i1 %tired, label %doze, label %joining
joining:
  br label %join
dismiss:
  %d = phi i32 [ 1, %again ], [ %d.next, %absent ]
  %none = icmp sgt i32 %d, %helpers
  br i1 %none, label %dismissed, label %recall
recall:
  %d64 = sext i32 %d to i64
  %d.box = getelementptr %mailbox, ptr @mailboxes, i64 %d64
  %back = cmpxchg ptr %d.box, i32 1, i32 0 seq_cst monotonic
  %unread = extractvalue {{ i32, i1 }} %back, 1
  br i1 %unread, label %replace, label %absent
replace:
  call void @drain(i32 %d)
  %fewer.pending = atomicrmw sub ptr @pending, i32 1 seq_cst
  br label %absent
absent:
  %d.next = add i32 %d, 1
  br label %dismiss
dismissed:
  br label %join
doze:
  %before.nap = call i64 @now()
  store atomic i32 1, ptr @waiting seq_cst, align 4
  br label %nap
nap:
  %still = load atomic i32, ptr @pending seq_cst, align 4
  %ended = icmp eq i32 %still, 0
  br i1 %ended, label %up, label %nod
nod:
  call void @sleep(ptr @pending, i32 %still)
  br label %nap
up:
  store atomic i32 0, ptr @waiting seq_cst, align 4
  %after.nap = call i64 @now()
  %nap.time = sub i64 %after.nap, %before.nap
  call void @complain(i32 %helpers, i64 %began, i64 %nap.time, i64 %after.nap)
  br label %release
release:
  %lost = load atomic i64, ptr @missed monotonic, align 8
  %missing = icmp ne i64 %lost, 0
  br i1 %missing, label %blame, label %end
blame:
  store atomic i64 0, ptr @missed monotonic, align 8
  %blame.time = call i64 @now()
  call void @complain(i32 %helpers, i64 %began, i64 %lost, i64 %blame.time)
  br label %end
end:
  store atomic i32 0, ptr @busy release, align 4
  ret void
}}

define i32 @relayc_worker_count() {{
  %n = load i32, ptr @workers
  ret i32 %n
}}

; In the child of a fork there are no workers, whatever the parent was doing.
define void @relayc_forget_workers() {{
  call void @llvm.memset.p0.i64(ptr @mailboxes, i8 0, i64 {mailbox_bytes}, i1 false)
  call void @llvm.memset.p0.i64(ptr @seats, i8 0, i64 {seat_bytes}, i1 false)
  store i32 0, ptr @workers
  store i32 0, ptr @pending
  store i32 0, ptr @waiting
  store i32 0, ptr @busy
  store i32 0, ptr @crowded
  store i32 0, ptr @calm
  store i32 0, ptr @benched
  store i64 0, ptr @missed
  store i32 0, ptr @dozing
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
        return _MEMORY + _ALONE + _SERIAL
    declare_pause, pause = _PAUSE[machine]
    slots = MAX_WORKERS + 1
    pool = (_POOL + STEPS + PLACES).format(
        declare_pause=declare_pause, pause=pause, futex=_FUTEX[machine], spin=SPIN, patience=PATIENCE, chunks=CHUNKS,
        slots=slots, mailbox_bytes=slots * 128, **place_constants(machine),
    )  # fmt: skip
    return _MEMORY + _ALONE + pool


@lru_cache(maxsize=4)
def pool_object(triple: str) -> bytes:
    """An object file of the pool that runs on every processor of the triple; kept in the cache of compiled code."""
    architecture, *rest = triple.split("-")
    source = pool_source("linux" if any(word.startswith("linux") for word in rest) else "other", architecture)
    cache, key = default_cache(), "\0".join(["llvm pool 1", installed_llvm().version, triple, source])
    code = None if cache is None else cache.get(key)
    if code is None:
        code = _compiled(source, triple)
        if cache is not None:
            cache.put(key, code)
    return code


def _compiled(source: str, triple: str) -> bytes:
    import llvmlite.binding as llvm  # this loads LLVM

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple(triple).create_target_machine(opt=1, reloc="pic", codemodel="small")
    return machine.emit_object(llvm.parse_assembly(source))
