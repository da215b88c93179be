"""Regions of several steps: the pool's threads stay, and meet after each step.

This is code that `backend.llvm.pool_code` puts beside the pool. A loop around a parallel loop (the steps of a
recurrence) is one region. To call the threads again for every step would take as long as a small step itself. Threads
meet by counting chunks: a step is over when all of its chunks are done, whoever did them, so nobody waits for a worker
that has not begun, and those that come late join in at the step that is on.
"""

from __future__ import annotations

__all__ = ["STEPS"]

# Of a %mailbox: 8 is the step, and below it in 32 bits the number of the next chunk of the thread's share.
STEPS = """
@done = internal global i64 0, align 128 ; chunks done, of all steps
@dozing = internal global i32 0, align 128 ; threads that sleep until a step is over
@missed = internal global i64 0, align 128 ; nanoseconds that the caller slept, waiting for steps to end

; Runs what nobody has begun of a thread's share of a step; gives the number of chunks.
define internal i64 @drain_step(i32 %thread, i64 %step) {{
entry:
  %ctx = load ptr, ptr @job
  %task = load ptr, ptr getelementptr (%job, ptr @job, i32 0, i32 1)
  %closure = load ptr, ptr getelementptr (%job, ptr @job, i32 0, i32 2)
  %threads = load i32, ptr getelementptr (%job, ptr @job, i32 0, i32 3)
  %chunks = load i32, ptr getelementptr (%job, ptr @job, i32 0, i32 4)
  %first = call i32 @bound(i32 %thread, i32 %chunks, i32 %threads)
  %following = add i32 %thread, 1
  %end = call i32 @bound(i32 %following, i32 %chunks, i32 %threads)
  %thread64 = zext i32 %thread to i64
  %claims = getelementptr %mailbox, ptr @mailboxes, i64 %thread64, i32 8
  br label %look
look:
  %count = phi i64 [ 0, %entry ], [ %count, %claim ], [ %counted, %run ]
  %seen = load atomic i64, ptr %claims monotonic, align 8
  %at = ashr i64 %seen, 32
  %over = icmp sgt i64 %at, %step
  br i1 %over, label %done, label %number
number:
  %new = icmp slt i64 %at, %step
  %next = trunc i64 %seen to i32
  %chunk = select i1 %new, i32 %first, i32 %next
  %more = icmp slt i32 %chunk, %end
  br i1 %more, label %claim, label %done
claim:
  %high = shl i64 %step, 32
  %after = add i32 %chunk, 1
  %low = zext i32 %after to i64
  %claimed = or i64 %high, %low
  %swap = cmpxchg ptr %claims, i64 %seen, i64 %claimed monotonic monotonic
  %mine = extractvalue {{ i64, i1 }} %swap, 1
  br i1 %mine, label %run, label %look
run:
  call void %task(ptr %ctx, ptr %closure, i32 %chunk, i32 %chunks, i64 %step)
  %counted = add i64 %count, 1
  br label %look
done:
  ret i64 %count
}}

define internal void @count_done(i64 %chunks) {{
  %d = atomicrmw add ptr @done, i64 %chunks seq_cst
  %sleepers = load atomic i32, ptr @dozing seq_cst, align 4
  %someone = icmp ne i32 %sleepers, 0
  br i1 %someone, label %rouse, label %end
rouse:
  %w = call i64 (i64, ...) @syscall(i64 {futex}, ptr @done, i32 129, i32 2147483647)
  br label %end
end:
  ret void
}}

; As `participate`, for each step from the one that is on.
define internal void @keep_step(i32 %thread) {{
entry:
  %threads = load i32, ptr getelementptr (%job, ptr @job, i32 0, i32 3)
  %chunks = load i32, ptr getelementptr (%job, ptr @job, i32 0, i32 4)
  %chunks64 = zext i32 %chunks to i64
  %steps = load i64, ptr getelementptr (%job, ptr @job, i32 0, i32 5)
  %done.before = load atomic i64, ptr @done acquire, align 8
  %current = udiv i64 %done.before, %chunks64
  br label %check
check:
  %step = phi i64 [ %current, %entry ], [ %step.next, %over ]
  %on = icmp slt i64 %step, %steps
  br i1 %on, label %share, label %end
share:
  %bit = phi i32 [ 0, %check ], [ 1, %first ], [ %doubled, %other ]
  %count = phi i64 [ 0, %check ], [ %sum, %first ], [ %sum, %other ]
  %of = xor i32 %thread, %bit
  %exists = icmp ult i32 %of, %threads
  br i1 %exists, label %help, label %skip
help:
  %ran = call i64 @drain_step(i32 %of, i64 %step)
  %more = add i64 %count, %ran
  br label %skip
skip:
  %sum = phi i64 [ %count, %share ], [ %more, %help ]
  %own = icmp eq i32 %bit, 0
  br i1 %own, label %first, label %other
first:
  br label %share
other:
  %doubled = shl i32 %bit, 1
  %all.seen = icmp uge i32 %doubled, %threads
  br i1 %all.seen, label %report, label %share
report:
  %step.next = add i64 %step, 1
  %goal = mul i64 %step.next, %chunks64
  %idle = icmp eq i64 %sum, 0
  br i1 %idle, label %meet, label %count.up
count.up:
  call void @count_done(i64 %sum)
  br label %meet
meet:
  %round = phi i32 [ 0, %report ], [ 0, %count.up ], [ %round.next, %linger ], [ %round.next, %swept ]
  %done = load atomic i64, ptr @done acquire, align 8
  %reached = icmp sge i64 %done, %goal
  br i1 %reached, label %over, label %again
again:
  {pause}
  %round.next = add i32 %round, 1
  %tired = icmp uge i32 %round.next, {spin}
  br i1 %tired, label %doze, label %linger
linger:
  %waited = icmp eq i32 %round.next, {patience}
  br i1 %waited, label %sweep, label %meet
sweep: ; there may be shares that are no neighbour's of anybody who has begun
  %t = phi i32 [ 0, %linger ], [ %t.next, %sweep ]
  %swept.before = phi i64 [ 0, %linger ], [ %swept.now, %sweep ]
  %ran.too = call i64 @drain_step(i32 %t, i64 %step)
  %swept.now = add i64 %swept.before, %ran.too
  %t.next = add i32 %t, 1
  %all.swept = icmp eq i32 %t.next, %threads
  br i1 %all.swept, label %swept, label %sweep
swept:
  call void @count_done(i64 %swept.now)
  br label %meet
doze:
  call void @doze_until(i32 %thread, i64 %goal)
  br label %over
over:
  br label %check
end:
  ret void
}}

; Sleeps until so many chunks are done. The caller notes how long.
define internal void @doze_until(i32 %thread, i64 %goal) noinline {{
entry:
  %began = call i64 @now()
  %more = atomicrmw add ptr @dozing, i32 1 seq_cst
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
  %less = atomicrmw sub ptr @dozing, i32 1 seq_cst
  %ended = call i64 @now()
  %time = sub i64 %ended, %began
  %caller = icmp eq i32 %thread, 0
  br i1 %caller, label %note, label %end
note:
  %noted = atomicrmw add ptr @missed, i64 %time monotonic
  br label %end
end:
  ret void
}}
"""
