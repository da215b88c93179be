"""The part of the pool that executes regions: threads claim chunks of a step, count them, and meet at a barrier.

`backend.llvm.pool_code` includes this code. A region is one or more steps: a parallel loop is one, consecutive parallel
loops and a serial loop around them (the steps of a recurrence) are several. The barrier counts chunks: a step is over
when all of its chunks are done, whoever did them, so nobody waits for a thread that has not started, and late threads
join in at the current step.

Steps and completed chunks are numbered consecutively over all regions of the process. A thread's claim word holds the
step and the number of chunks of its partition started. A thread that comes late, even after the region, finds a later
step there and claims nothing: so regions begin and end without an acknowledgement by every thread.
"""

from __future__ import annotations

__all__ = ["STEPS", "job_constants"]

_JOB = {
    "first": "i64", "ctx": "ptr", "task": "ptr", "closure": "ptr", "threads": "i32", "share": "i32", "steps": "i64",
    "before": "i64",
}  # fmt: skip
"""The fields of a %job, the description of a region, and their types."""


def job_constants() -> dict[str, str]:
    """Template substitutions of the pool's assembly that load and store the fields of a local %job."""
    return {
        "job_fields": ", ".join(_JOB.values()),
        "what_to_run": _moved("%{0} = load {1}, ptr %p.{0}", "first", "ctx", "task", "closure", "threads", "share"),
        "how_far": _moved("%{0} = load {1}, ptr %p.{0}", "threads", "share", "steps", "before"),
        "noted": _moved("store {1} %{0}, ptr %p.{0}", *_JOB),
    }


def _moved(instruction: str, *names: str) -> str:
    """Format an instruction for each of the named fields of the job at %own; field values have the fields' names."""
    lines: list[str] = []
    for name in names:
        lines.append(f"  %p.{name} = getelementptr %job, ptr %own, i64 0, i32 {list(_JOB).index(name)}")
        lines.append("  " + instruction.format(name, _JOB[name]))
    return "\n".join(lines)


STEPS = """
@done = internal global i64 0, align 128 ; chunks done, in all regions
@sleepers = internal global i32 0, align 128 ; number of threads asleep in a barrier
@stalled = internal global i64 0, align 128 ; nanoseconds that the caller slept in barriers

; Runs the unclaimed chunks of a thread's partition of a step; returns their number.
define internal i64 @run_partition(ptr %own, i32 %thread, i64 %step) {{
entry:
{what_to_run}
  %chunks = mul i32 %threads, %share
  %before = mul i32 %thread, %share
  %number = add i64 %first, %step
  %high = shl i64 %number, 8
  %share64 = zext i32 %share to i64
  %end = or i64 %high, %share64
  %thread64 = zext i32 %thread to i64
  %claims = getelementptr %mailbox, ptr @mailboxes, i64 %thread64, i32 9
  br label %look
look:
  %count = phi i64 [ 0, %entry ], [ %count, %claim ], [ %counted, %run ]
  %seen = load atomic i64, ptr %claims monotonic, align 8
  %over = icmp sge i64 %seen, %end
  br i1 %over, label %done, label %claim
claim:
  %begun = icmp sge i64 %seen, %high
  %next = select i1 %begun, i64 %seen, i64 %high
  %after = add i64 %next, 1
  %swap = cmpxchg ptr %claims, i64 %seen, i64 %after monotonic monotonic
  %mine = extractvalue {{ i64, i1 }} %swap, 1
  br i1 %mine, label %run, label %look
run:
  %of.share = sub i64 %next, %high
  %of.share32 = trunc i64 %of.share to i32
  %chunk = add i32 %before, %of.share32
  call void %task(ptr %ctx, ptr %closure, i32 %chunk, i32 %chunks, i64 %step, i32 %threads)
  %counted = add i64 %count, 1
  br label %look
done:
  ret i64 %count
}}

; Adds to the count of done chunks and wakes waiting threads. If any wait, reports this thread's interruptions.
define internal void @count_done(i32 %thread, i64 %chunks) {{
  %early = load atomic i32, ptr @sleepers monotonic, align 4
  %missed = icmp ne i32 %early, 0
  br i1 %missed, label %explain, label %add
explain:
  %thread64 = zext i32 %thread to i64
  call void @report_interruptions(i64 %thread64)
  br label %add
add:
  %d = atomicrmw add ptr @done, i64 %chunks seq_cst
  %sleepers = load atomic i32, ptr @sleepers seq_cst, align 4
  %someone = icmp ne i32 %sleepers, 0
  br i1 %someone, label %rouse, label %end
rouse:
  %w = call i64 (i64, ...) @syscall(i64 {futex}, ptr @done, i32 129, i32 2147483647)
  br label %end
end:
  ret void
}}

; Runs a thread's part of a region, given its copy of the job. In each step from the current one: its own partition,
; then unclaimed chunks of the threads whose number differs from its own in one bit. Only the caller waits for the end
; of the last step, and its chunks of that step are not added to the global count.
define internal void @run_region(ptr %own, i32 %thread) {{
entry:
{how_far}
  %chunks = mul i32 %threads, %share
  %chunks64 = zext i32 %chunks to i64
  %caller = icmp eq i32 %thread, 0
  %last = sub i64 %steps, 1
  %several = icmp ne i64 %last, 0
  br i1 %several, label %find, label %check
find:
  %done.now = load atomic i64, ptr @done acquire, align 8
  %done.here = sub i64 %done.now, %before
  %current = udiv i64 %done.here, %chunks64
  br label %check
check:
  %step = phi i64 [ 0, %entry ], [ %current, %find ], [ %step.next, %over ]
  %on = icmp slt i64 %step, %steps
  br i1 %on, label %begin, label %end
begin:
  %step.next = add i64 %step, 1
  %all.chunks = mul i64 %step.next, %chunks64
  %goal = add i64 %before, %all.chunks
  %final = icmp eq i64 %step, %last
  %silent = and i1 %final, %caller
  br label %work
work:
  %bit = phi i32 [ 0, %begin ], [ 1, %first ], [ %doubled, %other ]
  %kept = phi i64 [ 0, %begin ], [ %held, %first ], [ %held, %other ] ; chunks not yet counted
  %of = xor i32 %thread, %bit
  %exists = icmp ult i32 %of, %threads
  br i1 %exists, label %help, label %skip
help:
  %ran = call i64 @run_partition(ptr %own, i32 %of, i64 %step)
  %none = icmp eq i64 %ran, 0
  %more = add i64 %kept, %ran
  %quiet = or i1 %none, %silent
  br i1 %quiet, label %skip, label %count
count:
  call void @count_done(i32 %thread, i64 %ran)
  br label %skip
skip:
  %held = phi i64 [ %kept, %work ], [ %more, %help ], [ 0, %count ]
  %left = sub i64 %goal, %held
  %done.yet = load atomic i64, ptr @done acquire, align 8
  %reached.yet = icmp sge i64 %done.yet, %left
  br i1 %reached.yet, label %over, label %look.on
look.on:
  %own.share = icmp eq i32 %bit, 0
  br i1 %own.share, label %first, label %other
first:
  br label %work
other:
  %doubled = shl i32 %bit, 1
  %all.seen = icmp uge i32 %doubled, %threads
  br i1 %all.seen, label %stay, label %work
stay:
  %go = xor i1 %caller, true
  %leave = and i1 %final, %go
  br i1 %leave, label %end, label %meet
meet:
  %round = phi i32 [ 0, %stay ], [ %round.next, %linger ], [ %round.next, %swept ]
  %mine = phi i64 [ %held, %stay ], [ %mine, %linger ], [ %mine.now, %swept ]
  %target = sub i64 %goal, %mine
  %done = load atomic i64, ptr @done acquire, align 8
  %reached = icmp sge i64 %done, %target
  br i1 %reached, label %over, label %again
again:
  {pause}
  %round.next = add i32 %round, 1
  %tired = icmp uge i32 %round.next, {spin_count}
  br i1 %tired, label %doze, label %linger
linger:
  %waited = icmp eq i32 %round.next, {join_spins}
  br i1 %waited, label %sweep, label %meet
sweep: ; partitions may remain that no started thread steals from
  %t = phi i32 [ 0, %linger ], [ %t.next, %sweep ]
  %swept.before = phi i64 [ 0, %linger ], [ %swept.now, %sweep ]
  %ran.too = call i64 @run_partition(ptr %own, i32 %t, i64 %step)
  %swept.now = add i64 %swept.before, %ran.too
  %t.next = add i32 %t, 1
  %all.swept = icmp eq i32 %t.next, %threads
  br i1 %all.swept, label %report, label %sweep
report:
  %mine.more = add i64 %mine, %swept.now
  %nothing = icmp eq i64 %swept.now, 0
  %unsaid = or i1 %nothing, %silent
  br i1 %unsaid, label %swept, label %tell
tell:
  call void @count_done(i32 %thread, i64 %swept.now)
  br label %swept
swept:
  %mine.now = phi i64 [ %mine.more, %report ], [ %mine, %tell ]
  br label %meet
doze:
  call void @sleep_until_done(i32 %thread, i64 %target)
  br label %over
over:
  br label %check
end:
  ret void
}}

; Sleeps until %goal chunks are done. The caller records how long.
define internal void @sleep_until_done(i32 %thread, i64 %goal) noinline {{
entry:
  %began = call i64 @now()
  %more = atomicrmw add ptr @sleepers, i32 1 seq_cst
  br label %nap
nap:
  %done = load atomic i64, ptr @done seq_cst, align 8
  %reached = icmp sge i64 %done, %goal
  br i1 %reached, label %up, label %nod
nod:
  %low = trunc i64 %done to i32
  call void @sleep(ptr @done, i32 %low)
  br label %nap
up:
  %less = atomicrmw sub ptr @sleepers, i32 1 seq_cst
  %ended = call i64 @now()
  %time = sub i64 %ended, %began
  %caller = icmp eq i32 %thread, 0
  br i1 %caller, label %note, label %end
note:
  %noted = load i64, ptr @stalled
  %sum = add i64 %noted, %time
  store i64 %sum, ptr @stalled
  br label %end
end:
  ret void
}}
"""
