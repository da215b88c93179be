// A stack switch: saves the callee-saved registers and continues where `to` was saved.
#pragma once

#if defined(__x86_64__)
asm(R"(
.text
.type emulation_switch,@function
emulation_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size emulation_switch, .-emulation_switch
)");
#elif defined(__aarch64__)
asm(R"(
.text
.type emulation_switch,%function
emulation_switch:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
.size emulation_switch, .-emulation_switch
)");
#else
#error "the emulation has a context switch for x86-64 and aarch64 only"
#endif

extern "C" void emulation_switch(void** from, void* to);

// Prepares a stack, growing down from `top`, that starts in `entry` at the first switch to it. `entry` must not end.
inline void* fresh_stack(char* top, void (*entry)()) {
  auto place = reinterpret_cast<void**>(reinterpret_cast<unsigned long>(top) & ~15ul);
#if defined(__x86_64__)
  *--place = nullptr;  // where a return address would be: keeps the stack aligned as after a call
  *--place = reinterpret_cast<void*>(entry);
  for (int i = 0; i < 6; ++i) *--place = nullptr;
#else
  place -= 20;
  for (int i = 0; i < 20; ++i) place[i] = nullptr;
  place[11] = reinterpret_cast<void*>(entry);  // x30
#endif
  return place;
}
