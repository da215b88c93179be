"""Placement of the pool's workers: one thread per core, and backoff on cores that other programs occupy.

`backend.llvm.pool_code` includes this code. The operating system may wake a worker on its caller's core although other
cores are idle; there the two time-slice: the worker spins while the caller could work, or never starts. So threads
record the core that they run on, and the caller migrates workers that share a core.

A worker whose core another program uses is preempted within a chunk every few milliseconds, and all threads wait for
it. A caller that waited for a preempted worker in a short region suspends it for a while, twice as long each time this
recurs (exponential backoff).
"""

from __future__ import annotations

__all__ = ["MIGRATION_PAUSE", "PLACEMENT", "placement_constants"]

MAX_CORES = 1024
"""Capacity of core sets, in cores; on larger machines workers are not migrated."""
MIGRATION_PAUSE = 64
"""Regions for which no migration is attempted after no vacant core was found."""
MIN_STALL = 500_000
"""Minimum stall, in nanoseconds, after which a caller suspends a preempted worker that it waited for; the stall must
also exceed twice the caller's own work. Long regions are worth the wait."""
FIRST_SUSPENSION, MAX_SUSPENSION = 10_000_000, 320_000_000
"""Initial and maximum suspension of a worker, in nanoseconds."""
BACKOFF_RESET = 20_000_000
"""Nanoseconds of undisturbed work after which the backoff of a worker restarts at its initial value."""
_GETTID = {"x86_64": 186, "aarch64": 178}

PLACEMENT = """
; Fields of a %mailbox: 1: suspended; 2: the core that the thread last ran on plus 1 (0: none); 3: its system thread
; id; 4: was it preempted; 5: its count of preemptions. Only callers use 6, the time until which it is suspended or at
; which it was resumed, and 7, the length of its last suspension.
@core.occupants = internal global [{cores} x i32] zeroinitializer, align 128 ; core -> 1 + its last thread
@core.shared = internal global i32 0, align 128 ; did a worker find another thread on its core?
@migration.pause = internal global i32 0, align 128
@suspended = internal global i32 0

declare i32 @sched_getcpu()
declare i32 @sched_getaffinity(i32, i64, ptr)
declare i32 @sched_setaffinity(i32, i64, ptr)
declare i32 @getrusage(i32, ptr)
declare i32 @clock_gettime(i32, ptr)

; Records the core that a thread runs on. False if another thread of the region uses it; the caller has precedence.
define internal i1 @occupy_core(i32 %thread) {{
entry:
  %cpu = call i32 @sched_getcpu()
  %known = icmp ult i32 %cpu, {cores}
  br i1 %known, label %look, label %alone
look:
  %cpu64 = zext i32 %cpu to i64
  %seat = getelementptr [{cores} x i32], ptr @core.occupants, i64 0, i64 %cpu64
  %thread64 = zext i32 %thread to i64
  %place = getelementptr %mailbox, ptr @mailboxes, i64 %thread64, i32 2
  %mine = add i32 %thread, 1
  %here = add i32 %cpu, 1
  %was = load atomic i32, ptr %place monotonic, align 4
  %stayed = icmp eq i32 %was, %here
  br i1 %stayed, label %look.up, label %move
move:
  store atomic i32 %here, ptr %place monotonic, align 4
  br label %look.up
look.up:
  %seen = load atomic i32, ptr %seat monotonic, align 4
  %kept = icmp eq i32 %seen, %mine
  br i1 %kept, label %alone, label %claim
claim:
  %caller = icmp eq i32 %thread, 0
  %free = icmp eq i32 %seen, 0
  %mine.now = or i1 %free, %caller
  br i1 %mine.now, label %take, label %ask
ask:
  %other = sub i32 %seen, 1
  %other64 = zext i32 %other to i64
  %other.place = getelementptr %mailbox, ptr @mailboxes, i64 %other64, i32 2
  %other.here = load atomic i32, ptr %other.place monotonic, align 4
  %threads = load atomic i32, ptr getelementptr (%job, ptr @job, i32 0, i32 4) monotonic, align 4
  %takes.part = icmp slt i32 %other, %threads
  %sits = icmp eq i32 %other.here, %here
  %occupied = and i1 %takes.part, %sits
  br i1 %occupied, label %beside, label %take
take:
  store atomic i32 %mine, ptr %seat monotonic, align 4
  br label %alone
alone:
  ret i1 true
beside:
  store atomic i32 1, ptr @core.shared monotonic, align 4
  ret i1 false
}}

; Migrates workers that share a core with another thread to vacant cores in the caller's affinity mask.
define internal void @migrate_workers() noinline {{
entry:
  %vacant = alloca [{words} x i64], align 8
  %taken = alloca [{words} x i64], align 8
  %calm = load i32, ptr @migration.pause
  %resting = icmp sgt i32 %calm, 0
  br i1 %resting, label %rest, label %begin
rest:
  %calmer = sub i32 %calm, 1
  store i32 %calmer, ptr @migration.pause
  ret void
begin:
  store atomic i32 0, ptr @core.shared monotonic, align 4
  call void @llvm.memset.p0.i64(ptr %taken, i8 0, i64 {bytes}, i1 false)
  %unknown = call i32 @sched_getaffinity(i32 0, i64 {bytes}, ptr %vacant)
  %told = icmp eq i32 %unknown, 0
  %threads = load i32, ptr getelementptr (%job, ptr @job, i32 0, i32 4)
  br i1 %told, label %leave, label %give.up
leave:
  %t = phi i32 [ 0, %begin ], [ %t.next, %left ]
  %t64 = zext i32 %t to i64
  %t.place = getelementptr %mailbox, ptr @mailboxes, i64 %t64, i32 2
  %t.here = load atomic i32, ptr %t.place monotonic, align 4
  %t.never = icmp eq i32 %t.here, 0
  br i1 %t.never, label %left, label %clear
clear:
  %t.cpu = sub i32 %t.here, 1
  %t.was = call i1 @update_core_set(ptr %vacant, i32 %t.cpu, i1 false)
  br label %left
left:
  %t.next = add i32 %t, 1
  %cleared = icmp eq i32 %t.next, %threads
  br i1 %cleared, label %sort, label %leave
sort:
  %w = phi i32 [ 0, %left ], [ %w.next, %sorted ]
  %w64 = zext i32 %w to i64
  %w.place = getelementptr %mailbox, ptr @mailboxes, i64 %w64, i32 2
  %w.here = load atomic i32, ptr %w.place monotonic, align 4
  %w.never = icmp eq i32 %w.here, 0
  br i1 %w.never, label %sorted, label %check
check:
  %w.cpu = sub i32 %w.here, 1
  %second = call i1 @update_core_set(ptr %taken, i32 %w.cpu, i1 true)
  br i1 %second, label %send, label %sorted
send:
  %p.number = getelementptr %mailbox, ptr @mailboxes, i64 %w64, i32 3
  %number = load atomic i32, ptr %p.number monotonic, align 4
  %named = icmp ne i32 %number, 0 ; 0 would be the caller
  br i1 %named, label %order, label %sorted
order:
  %refused = call i32 @sched_setaffinity(i32 %number, i64 {bytes}, ptr %vacant)
  %sent = icmp eq i32 %refused, 0
  br i1 %sent, label %sorted, label %give.up
sorted:
  %w.next = add i32 %w, 1
  %all = icmp eq i32 %w.next, %threads
  br i1 %all, label %done, label %sort
give.up:
  store i32 {migration_pause}, ptr @migration.pause
  br label %done
done:
  ret void
}}

; Adds a core to a set or removes it; returns whether it was in the set.
define internal i1 @update_core_set(ptr %set, i32 %core, i1 %in) {{
  %core64 = zext i32 %core to i64
  %index = lshr i64 %core64, 6
  %shift = and i64 %core64, 63
  %bit = shl i64 1, %shift
  %others = xor i64 %bit, -1
  %word = getelementptr i64, ptr %set, i64 %index
  %old = load i64, ptr %word
  %was = and i64 %old, %bit
  %had = icmp ne i64 %was, 0
  %without = and i64 %old, %others
  %added = select i1 %in, i64 %bit, i64 0
  %new = or i64 %without, %added
  store i64 %new, ptr %word
  ret i1 %had
}}

define internal void @record_thread_id(i64 %thread) {{
  %number64 = call i64 (i64, ...) @syscall(i64 {gettid})
  %number = trunc i64 %number64 to i32
  %p.number = getelementptr %mailbox, ptr @mailboxes, i64 %thread, i32 3
  store atomic i32 %number, ptr %p.number monotonic, align 4
  ret void
}}

; The number of involuntary context switches of this thread.
define internal i32 @interruptions() noinline {{
  %usage = alloca [18 x i64], align 8
  call void @llvm.memset.p0.i64(ptr %usage, i8 0, i64 144, i1 false)
  %r = call i32 @getrusage(i32 1, ptr %usage)
  %p.count = getelementptr i64, ptr %usage, i64 17
  %count = load i64, ptr %p.count
  %count32 = trunc i64 %count to i32
  ret i32 %count32
}}

define internal void @count_interruptions(i64 %thread) {{
  %count = call i32 @interruptions()
  %p.count = getelementptr %mailbox, ptr @mailboxes, i64 %thread, i32 5
  store i32 %count, ptr %p.count
  ret void
}}

; Records in its mailbox whether a thread was preempted since its last count.
define internal void @report_interruptions(i64 %thread) {{
  %p.count = getelementptr %mailbox, ptr @mailboxes, i64 %thread, i32 5
  %before = load i32, ptr %p.count
  call void @count_interruptions(i64 %thread)
  %now = load i32, ptr %p.count
  %more = icmp ne i32 %now, %before
  %more32 = zext i1 %more to i32
  %p.more = getelementptr %mailbox, ptr @mailboxes, i64 %thread, i32 4
  store atomic i32 %more32, ptr %p.more monotonic, align 4
  ret void
}}

define internal i64 @now() noinline {{
  %parts = alloca [2 x i64], align 8
  %r = call i32 @clock_gettime(i32 1, ptr %parts)
  %seconds = load i64, ptr %parts
  %p.rest = getelementptr i64, ptr %parts, i64 1
  %rest = load i64, ptr %p.rest
  %whole = mul i64 %seconds, 1000000000
  %time = add i64 %whole, %rest
  ret i64 %time
}}

; Suspends preempted workers among 1 ... %last if the caller's stall, %lost of the nanoseconds from %start to %now, is
; long enough.
define internal void @report_stall(i32 %last, i64 %start, i64 %lost, i64 %now) noinline {{
  %all = sub i64 %now, %start
  %own = sub i64 %all, %lost
  %twice = shl i64 %own, 1
  %much = icmp sgt i64 %lost, %twice
  %long = icmp sgt i64 %lost, {min_stall}
  %late = and i1 %much, %long
  br i1 %late, label %send, label %end
send:
  call void @suspend(i32 %last, i64 %now)
  ret void
end:
  ret void
}}

; Suspends the workers among 1 ... %last that were preempted, with exponential backoff.
define internal void @suspend(i32 %last, i64 %now) noinline {{
entry:
  br label %each
each:
  %w = phi i32 [ 1, %entry ], [ %w.next, %done ]
  %w64 = zext i32 %w to i64
  %p.more = getelementptr %mailbox, ptr @mailboxes, i64 %w64, i32 4
  %more = atomicrmw xchg ptr %p.more, i32 0 monotonic
  %interrupted = icmp ne i32 %more, 0
  br i1 %interrupted, label %send, label %done
send:
  %p.until = getelementptr %mailbox, ptr @mailboxes, i64 %w64, i32 6
  %p.span = getelementptr %mailbox, ptr @mailboxes, i64 %w64, i32 7
  %until = load i64, ptr %p.until
  %span = load i64, ptr %p.span
  %since = sub i64 %now, %until
  %new = icmp sgt i64 %since, {backoff_reset}
  %twice = shl i64 %span, 1
  %too.long = icmp sgt i64 %twice, {max_suspension}
  %longer = select i1 %too.long, i64 {max_suspension}, i64 %twice
  %first = icmp eq i64 %span, 0
  %begins = or i1 %new, %first
  %for = select i1 %begins, i64 {first_suspension}, i64 %longer
  %back = add i64 %now, %for
  store i64 %back, ptr %p.until
  store i64 %for, ptr %p.span
  store i32 1, ptr @suspended
  br label %done
done:
  %w.next = add i32 %w, 1
  %all = icmp sgt i32 %w.next, %last
  br i1 %all, label %end, label %each
end:
  ret void
}}

; Resumes the workers whose suspension is over.
define internal void @resume_workers(i64 %now) noinline {{
entry:
  %last = load i32, ptr @workers
  store i32 0, ptr @suspended
  br label %each
each:
  %w = phi i32 [ 1, %entry ], [ %w.next, %next ]
  %w64 = zext i32 %w to i64
  %p.away = getelementptr %mailbox, ptr @mailboxes, i64 %w64, i32 1
  %away = load atomic i32, ptr %p.away monotonic, align 4
  %p.until = getelementptr %mailbox, ptr @mailboxes, i64 %w64, i32 6
  %until = load i64, ptr %p.until
  %stays = icmp sgt i64 %until, %now
  br i1 %stays, label %keep, label %ask
keep:
  store i32 1, ptr @suspended
  store atomic i32 1, ptr %p.away monotonic, align 4
  br label %next
ask:
  %was.away = icmp ne i32 %away, 0
  br i1 %was.away, label %come.back, label %next
come.back:
  store i64 %now, ptr %p.until
  store atomic i32 0, ptr %p.away monotonic, align 4
  br label %next
next:
  %w.next = add i32 %w, 1
  %all = icmp sgt i32 %w.next, %last
  br i1 %all, label %done, label %each
done:
  ret void
}}
"""


def placement_constants(machine: str) -> dict[str, int]:
    """Template substitutions of `PLACEMENT` for an architecture."""
    return {
        "cores": MAX_CORES, "words": MAX_CORES // 64, "bytes": MAX_CORES // 8, "occupant_bytes": 4 * MAX_CORES,
        "migration_pause": MIGRATION_PAUSE, "min_stall": MIN_STALL, "first_suspension": FIRST_SUSPENSION,
        "max_suspension": MAX_SUSPENSION, "backoff_reset": BACKOFF_RESET,
        "gettid": _GETTID[machine],
    }  # fmt: skip
