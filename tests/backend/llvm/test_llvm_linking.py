"""Object files linked by our own linker and by LLVM's, with equal results."""

from __future__ import annotations

import ctypes
import gc
import math
import platform
import sys
from collections.abc import Iterator
from pathlib import Path

import llvmlite.binding as llvm
import pytest

from relayc.backend.llvm.elf import ElfImage, UnsupportedObject, process_symbol
from relayc.backend.llvm.jit import JitImage, has_symbol, missing_features
from relayc.backend.llvm.linking import link, process_triple

needs_elf = pytest.mark.skipif(
    (sys.platform, platform.machine()) != ("linux", "x86_64"), reason="our linker is for x86-64 on Linux"
)
IMAGES = [pytest.param(ElfImage, marks=needs_elf), JitImage]

FIRST = """
@table = internal constant [4 x double] [double 1.5, double 2.5, double 3.5, double 4.5]
@count = internal global i64 40
@zeros = internal global [3 x i64] zeroinitializer, align 64
@bent = internal constant [2 x ptr] [ptr @plus_one, ptr @plus_two]
declare double @erf(double)
declare i64 @other(i64)

define internal i64 @plus_one(i64 %x) {
  %r = add i64 %x, 1
  ret i64 %r
}
define internal i64 @plus_two(i64 %x) {
  %r = add i64 %x, 2
  ret i64 %r
}
define double @look_up(i64 %i) {
  %p = getelementptr [4 x double], ptr @table, i64 0, i64 %i
  %v = load double, ptr %p
  %r = call double @erf(double %v)
  ret double %r
}
define i64 @next() {
  %old = load i64, ptr @count
  %zero = load i64, ptr getelementptr ([3 x i64], ptr @zeros, i64 0, i64 1)
  %sum = add i64 %old, %zero
  %new = add i64 %sum, 1
  store i64 %new, ptr @count
  ret i64 %new
}
define i64 @choose(i64 %which, i64 %x) {
  %p = getelementptr [2 x ptr], ptr @bent, i64 0, i64 %which
  %f = load ptr, ptr %p
  %r = call i64 %f(i64 %x)
  ret i64 %r
}
define i64 @both(i64 %x) {
  %r = call i64 @other(i64 %x)
  ret i64 %r
}
define i64 @where() {
  %r = ptrtoint ptr @erf to i64
  ret i64 %r
}
"""
SECOND = """
declare i64 @next()
define i64 @other(i64 %x) {
  %n = call i64 @next()
  %r = mul i64 %x, %n
  ret i64 %r
}
"""


def compiled(text: str, reloc: str = "pic") -> bytes:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_triple(process_triple())
    return target.create_target_machine(reloc=reloc, codemodel="small").emit_object(llvm.parse_assembly(text))


def function(image: ElfImage | JitImage, name: str, result: type = ctypes.c_int64, *arguments: type):
    return ctypes.CFUNCTYPE(result, *arguments)(image.address(name))


@pytest.mark.parametrize("image_type", IMAGES)
def test_constants_data_and_calls_within_across_and_out_of_objects(image_type):
    image = image_type([compiled(FIRST), compiled(SECOND)])
    look_up = function(image, "look_up", ctypes.c_double, ctypes.c_int64)
    assert [look_up(i) for i in range(4)] == pytest.approx([math.erf(1.5 + i) for i in range(4)])
    counted = function(image, "next")
    assert [counted(), counted()] == [41, 42]
    choose = function(image, "choose", ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
    assert [choose(0, 10), choose(1, 10)] == [11, 12]
    assert function(image, "both", ctypes.c_int64, ctypes.c_int64)(10) == 430
    erf = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(function(image, "where")())
    assert erf(0.5) == pytest.approx(math.erf(0.5))


def mapped() -> Iterator[tuple[range, str]]:
    """The memory mappings of this process and their permissions, in order."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(part, 16) for part in line.split()[0].split("-"))
        yield range(start, end), line.split()[1]


@needs_elf
def test_code_is_not_writable_and_data_not_executable():
    image = ElfImage([compiled(FIRST), compiled(SECOND)])
    code = image.address("look_up")
    pages = list(mapped())
    first = next(i for i, (span, _) in enumerate(pages) if code in span)
    assert [rights[:3] for _, rights in pages[first : first + 3]] == ["r-x", "r--", "rw-"]


@needs_elf
def test_memory_is_freed_with_the_image_unless_it_is_kept():
    images = [ElfImage([compiled("define i64 @seven() {\n  ret i64 7\n}")]) for _ in range(50)]
    pages = {image.address("seven") // 4096 for image in images}
    images[0].keep()
    kept = images[0].address("seven")
    images.clear()
    gc.collect()
    left = {page for page in pages for span, rights in mapped() if page * 4096 in span and rights[:3] == "r-x"}
    assert kept // 4096 in left and len(left) < 10


@needs_elf
def test_objects_unsupported_by_our_linker_are_linked_by_llvm():
    absolute = compiled(FIRST.replace("@other", "@llabs"), "static")
    with pytest.raises(UnsupportedObject):
        ElfImage([absolute])
    with pytest.raises(UnsupportedObject, match="undefined symbols: next"):
        ElfImage([compiled(SECOND)])
    with pytest.raises(UnsupportedObject, match="no relocatable ELF"):
        ElfImage([b"MZ" + bytes(100)])
    with pytest.raises(UnsupportedObject, match="no relocatable ELF"):
        ElfImage([b"\x7fELF"])


def test_the_linker_is_chosen_by_the_objects(monkeypatch: pytest.MonkeyPatch):
    objects = [compiled(FIRST), compiled(SECOND)]
    assert function(link(objects), "next")() == 41
    monkeypatch.setattr(sys, "platform", "another")
    image = link(objects)
    assert isinstance(image, JitImage) and function(image, "next")() == 41


@needs_elf
def test_linking_falls_back_on_llvm(monkeypatch: pytest.MonkeyPatch):
    def refuse(objects: object) -> None:
        raise UnsupportedObject("not today")

    monkeypatch.setattr("relayc.backend.llvm.linking.ElfImage", refuse)
    assert isinstance(link([compiled(FIRST), compiled(SECOND)]), JitImage)


def test_symbols_of_the_process():
    assert process_symbol("memset") and process_symbol("no_such_function_anywhere") is None
    assert has_symbol("memset") and not has_symbol("no_such_function_anywhere")
    assert missing_features(["no-such-feature"]) == []
