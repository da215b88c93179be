"""Measures this machine's roofline ceilings: fused multiply-adds from registers, and streaming copies of memory.

Interleave the measurements with those compared to them: clock frequencies and neighbouring load vary over seconds.
"""

from __future__ import annotations

import ctypes
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import llvmlite.binding as llvm
import numpy as np

from relayc.backend.runtime.ceilings import Ceilings, instructions_for
from relayc.backend.target import Target

__all__ = ["CeilingMeter", "FmaLoop", "MultiplyLoop", "StreamingCopy", "engine_of"]

_CHAINS = 12
"""Number of independent accumulators: more than latency times ports, fewer than there are registers."""
_SUMS = 14
"""Those of `MultiplyLoop`, each in a register of the first sixteen, beside two factors: dot products take longer."""
_ROUNDS = 1_000_000
_COPY_BYTES = 128 << 20
"""Bytes copied: several times the cache size of most machines."""
_LOOP_OPERATIONS = 1 << 30
"""Operations of a run of `MultiplyLoop`, which then takes milliseconds."""
_WHOLE_TILES = b"\1" + bytes(15) + 8 * b"\x40\0" + bytes(16) + 8 * b"\x10" + bytes(8)
"""The operand of ldtilecfg: eight tiles of 16 rows of 64 bytes."""


@dataclass(frozen=True)
class _Multiply:
    """An instruction that multiplies and adds registers, and its operations."""

    feature: str
    """LLVM's name of the feature that has it"""
    name: str
    registers: str
    """"zmm", "ymm" or "tmm" """
    operations: int

    def assembly(self) -> str:
        """LLVM IR of a loop of the instruction: a function of a number of rounds and of `_WHOLE_TILES`."""
        kind, used = self.registers, range(2 + _SUMS)
        if kind == "tmm":
            before, after = ["ldtilecfg ($2)"], ["tilerelease"]
            steps = [f"{self.name} %tmm{6 + i % 2}, %tmm{4 + i // 2 % 2}, %tmm{i % 4}" for i in range(_SUMS)]
        else:
            before, after = [f"vpxor %xmm{i}, %xmm{i}, %xmm{i}" for i in used], ["vzeroupper"]
            steps = [f"{self.name} %{kind}0, %{kind}1, %{kind}{i}" for i in used[2:]]
        clobbered = ",".join(f"~{{xmm{i}}}" for i in used)
        text = "\\0A".join([*before, "1:", *steps, "decq $0", "jnz 1b", *after])
        changed = f"=&r,0,r,{clobbered},~{{flags}},~{{memory}}"
        call = f'call i64 asm sideeffect "{text}", "{changed}"(i64 %rounds, ptr %tiles)'
        return f"define i64 @loop(i64 %rounds, ptr %tiles) {{\n  %r = {call}\n  ret i64 %r\n}}"


_MULTIPLIES = {
    "float64": (_Multiply("avx512f", "vfmadd231pd", "zmm", 16), _Multiply("fma", "vfmadd231pd", "ymm", 8)),
    "float32": (_Multiply("avx512f", "vfmadd231ps", "zmm", 32), _Multiply("fma", "vfmadd231ps", "ymm", 16)),
    "float16": (_Multiply("avx512fp16", "vfmadd231ph", "zmm", 64),),
    "bfloat16": (
        _Multiply("amx-bf16", "tdpbf16ps", "tmm", 16 * 16 * 64), _Multiply("avx512bf16", "vdpbf16ps", "zmm", 64),
    ),
    "int8": (
        _Multiply("amx-int8", "tdpbusd", "tmm", 16 * 16 * 128), _Multiply("avx512vnni", "vpdpbusd", "zmm", 128),
        _Multiply("avxvnni", "{vex} vpdpbusd", "ymm", 64),
    ),
}  # fmt: skip
"""The instructions of x86-64 by the type of their elements, the widest first."""


def engine_of(assembly: str) -> llvm.ExecutionEngine:
    """LLVM IR compiled for this machine; its functions live as long as the engine."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.initialize_native_asmparser()
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=3
    )
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(assembly), machine)
    engine.finalize_object()
    return engine


def _assembly(lanes: int) -> str:
    vector = f"<{lanes} x float>"
    chains = range(_CHAINS)
    phis = "\n".join(f"  %p{i} = phi {vector} [%x, %entry], [%n{i}, %loop]" for i in chains)
    steps = "\n".join(
        f"  %n{i} = call {vector} @llvm.fma.v{lanes}f32({vector} %p{i}, {vector} %x, {vector} %x)" for i in chains
    )
    sums = "\n".join(f"  %s{i} = fadd {vector} %{'n0' if i == 1 else f's{i - 1}'}, %n{i}" for i in chains if i)
    return f"""
declare {vector} @llvm.fma.v{lanes}f32({vector}, {vector}, {vector})
define float @fma_loop(i64 %count, float %seed) {{
entry:
  %v = insertelement {vector} poison, float %seed, i32 0
  %x = shufflevector {vector} %v, {vector} poison, <{lanes} x i32> zeroinitializer
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%next, %loop]
{phis}
{steps}
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, %count
  br i1 %more, label %loop, label %done
done:
{sums}
  %r = extractelement {vector} %s{_CHAINS - 1}, i32 0
  ret float %r
}}
"""


class FmaLoop:
    """A loop of only vector multiply-adds, run on each of `threads` threads."""

    def __init__(self, threads: int = 1) -> None:
        features = llvm.get_host_cpu_features()
        self.lanes = 16 if features.get("avx512f") else 8 if features.get("avx2") else 4
        self.threads = threads
        self._engine = engine_of(_assembly(self.lanes))
        signature = ctypes.CFUNCTYPE(ctypes.c_float, ctypes.c_int64, ctypes.c_float)
        self._function = signature(self._engine.get_function_address("fma_loop"))

    def gflops(self, count: int = _ROUNDS) -> float:
        """GFLOP/s of float32 in one run of `count` rounds, some milliseconds."""
        seconds = _seconds([lambda: self._function(count, 0.1)] * self.threads)
        return 2 * _CHAINS * self.lanes * count * self.threads / seconds / 1e9


class MultiplyLoop:
    """A loop of only multiply-adds of registers, of elements of a type, run on each of `threads` threads.

    It takes the widest instructions that this x86-64 has for the type; `find` gives None if there are none.
    """

    def __init__(self, multiply: _Multiply, threads: int = 1) -> None:
        self._operations, self._threads = multiply.operations * _SUMS, threads
        self._engine = engine_of(multiply.assembly())
        signature = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_char_p)
        self._function = signature(self._engine.get_function_address("loop"))

    @staticmethod
    def find(kind: str, threads: int = 1) -> MultiplyLoop | None:
        """The loop for an element type: "float64", "float32", "float16", "bfloat16" or "int8"."""
        features = Target("llvm").features
        found = next((each for each in _MULTIPLIES.get(kind, ()) if each.feature in features), None)
        return None if found is None else MultiplyLoop(found, threads)

    def gflops(self, operations: int = _LOOP_OPERATIONS, clock: Callable[[], float] = time.perf_counter) -> float:
        """Billions of operations (two for each product) per second, in a run of about so many on each thread.

        `clock` may be another one for a single thread, `time.thread_time`.
        """
        rounds = max(operations // self._operations, 1)
        work = [lambda: self._function(rounds, _WHOLE_TILES)] * self._threads
        return self._operations * rounds * self._threads / _seconds(work, clock) / 1e9


class StreamingCopy:
    """A copy of `nbytes` bytes, partitioned among `threads` threads."""

    def __init__(self, threads: int = 1, nbytes: int = _COPY_BYTES) -> None:
        source = np.ones(nbytes // 4, dtype=np.float32)
        self._nbytes = source.nbytes
        target = np.zeros_like(source)
        self._shares = list(zip(np.array_split(target, threads), np.array_split(source, threads), strict=True))

    def gbs(self) -> float:
        """GB/s read plus written in one run."""
        copies = [lambda t=target, s=source: np.copyto(t, s) for target, source in self._shares]
        return 2 * self._nbytes / _seconds(copies) / 1e9


def _seconds(works: Sequence[Callable[[], object]], clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds until all of `works`, each on a thread of its own, have finished; of one by `clock`."""
    if len(works) == 1:
        start = clock()
        works[0]()
        return clock() - start
    together = threading.Barrier(len(works) + 1)

    def run(work: Callable[[], object]) -> None:
        together.wait()
        work()

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    together.wait()
    start = time.perf_counter()
    for thread in threads:
        thread.join()
    return time.perf_counter() - start


class CeilingMeter:
    """Accumulates samples of the ceilings for `threads` threads; `ceilings` returns the medians.

    The peaks of products of `multiplied` element types are measured where there are instructions for them.
    """

    def __init__(self, threads: int = 1, multiplied: Iterable[str] = ()) -> None:
        self._loop, self._copy = FmaLoop(threads), StreamingCopy(threads)
        kinds = sorted({instructions_for(kind) for kind in multiplied} - {"", "float32"})
        found = {kind: MultiplyLoop.find(kind, threads) for kind in kinds}
        self._others = {kind: loop for kind, loop in found.items() if loop is not None}
        self._gflops: list[float] = []
        self._gbs: list[float] = []
        self._of_others: dict[str, list[float]] = {kind: [] for kind in self._others}
        self.sample(1)
        for samples in (self._gflops, self._gbs, *self._of_others.values()):
            samples.clear()  # the first ones warm up

    def sample(self, times: int = 3) -> None:
        """Measure the ceilings `times` times."""
        self._gflops += [self._loop.gflops() for _ in range(times)]
        for kind, loop in self._others.items():
            self._of_others[kind] += [loop.gflops() for _ in range(times)]
        self._gbs += [self._copy.gbs() for _ in range(times)]

    @property
    def ceilings(self) -> Ceilings:
        """The medians of all samples so far."""
        others = {kind: statistics.median(samples) for kind, samples in self._of_others.items()}
        return Ceilings(statistics.median(self._gflops), statistics.median(self._gbs), others)
