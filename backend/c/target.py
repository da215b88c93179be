"""The "c" target kind: portable C for CPUs, compiled by the system's compiler."""

from __future__ import annotations

from relayc.backend.cpu import add_cpu_options
from relayc.backend.target import register_target_kind

add_cpu_options(register_target_kind("c", device="cpu")).add_attr_option(
    "compiler", str, doc="the C compiler; by default the first of cc, gcc and clang on the search path"
).add_attr_option("opt-level", int, 3, "the compiler's -O level")
