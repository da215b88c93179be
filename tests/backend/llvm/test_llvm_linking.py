"""Object files linked by our own linker and by LLVM's, with equal results."""

from __future__ import annotations

import ctypes
import gc
import math
import platform
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import llvmlite.binding as llvm
import pytest

from relayc.backend.llvm.elf import ElfImage
from relayc.backend.llvm.jit import JitImage, address_of, missing_features
from relayc.backend.llvm.linking import addresses_of, link, process_triple
from relayc.backend.llvm.object_file import MalformedObject, ObjectFile
from relayc.backend.runtime.errors import ModuleError

needs_elf = pytest.mark.skipif(
    (sys.platform, platform.machine()) != ("linux", "x86_64"), reason="our linker is for x86-64 on Linux"
)
IMAGES = [pytest.param(link, marks=needs_elf), JitImage]

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
    image = link([compiled(FIRST), compiled(SECOND)])
    code = image.address("look_up")
    pages = list(mapped())
    first = next(i for i, (span, _) in enumerate(pages) if code in span)
    assert [rights[:3] for _, rights in pages[first : first + 3]] == ["r-x", "r--", "rw-"]


@needs_elf
def test_memory_is_freed_with_the_image_unless_it_is_kept():
    images = [link([compiled("define i64 @seven() {\n  ret i64 7\n}")]) for _ in range(50)]
    pages = {image.address("seven") // 4096 for image in images}
    images[0].keep()
    kept = images[0].address("seven")
    images.clear()
    gc.collect()
    left = {page for page in pages for span, rights in mapped() if page * 4096 in span and rights[:3] == "r-x"}
    assert kept // 4096 in left and len(left) < 10


@needs_elf
def test_code_that_only_another_linker_could_link_is_refused():
    with pytest.raises(MalformedObject, match="expected those of position-independent code"):
        link([compiled(FIRST.replace("@other", "@llabs"), "static")])
    with pytest.raises(ModuleError, match="this code calls next, which neither the module nor the process has"):
        link([compiled(SECOND)])
    for code in (b"MZ" + bytes(100), b"\x7fELF"):
        with pytest.raises(MalformedObject, match="no ELF file of 64 bits"):
            link([code])


SECTIONS, SECTION, SYMBOL, RELOCATION = 0x28, 64, 24, 24
"""The place of the sections' place in an ELF header, and the sizes of records."""


def changed(code: bytes, at: int, form: str, value: int) -> bytes:
    changed = bytearray(code)
    struct.pack_into(f"<{form}", changed, at, value)
    return bytes(changed)


def header(code: bytes, number: int) -> int:
    """The place of a section's header."""
    (start,) = struct.unpack_from("<Q", code, SECTIONS)
    return start + SECTION * number


def of_type(code: bytes, kind: int) -> tuple[int, int]:
    """The first section of a type: its number and the place of its content."""
    sections = ObjectFile.read(code).sections
    number = next(i for i, section in enumerate(sections) if section.type == kind)
    return number, sections[number].offset


SYMBOLS, STRINGS, RELOCATIONS, ZEROS = 2, 3, 4, 8
CHANGES = {
    "no section headers": lambda c: changed(c, SECTIONS, "Q", len(c)),
    "section headers past the end of 64 bits": lambda c: changed(c, SECTIONS, "Q", (1 << 64) - 64),
    "another processor": lambda c: changed(c, 18, "H", 183),
    "no object but a program": lambda c: changed(c, 16, "H", 2),
    "a section of nearly 2^64 bytes": lambda c: changed(c, header(c, 2) + 32, "Q", (1 << 64) - 8),
    "a section at the end of 64 bits": lambda c: changed(c, header(c, 2) + 24, "Q", (1 << 64) - 8),
    "an alignment of 3": lambda c: changed(c, header(c, 2) + 48, "Q", 3),
    "an alignment of a terabyte": lambda c: changed(c, header(c, 2) + 48, "Q", 1 << 40),
    "zeros of 2^60 bytes": lambda c: changed(c, header(c, of_type(c, ZEROS)[0]) + 32, "Q", 1 << 60),
    "a link to no section": lambda c: changed(c, header(c, of_type(c, SYMBOLS)[0]) + 40, "I", 9999),
    "two symbol tables": lambda c: changed(c, header(c, 2) + 4, "I", SYMBOLS),
    "symbols of other sizes": lambda c: changed(c, header(c, of_type(c, SYMBOLS)[0]) + 56, "Q", 1),
    "a name outside of the names": lambda c: changed(c, of_type(c, SYMBOLS)[1] + SYMBOL, "I", 1 << 30),
    "names without an end": lambda c: changed(c, header(c, of_type(c, STRINGS)[0]) + 4, "I", 1),
    "a symbol outside of its section": lambda c: changed(c, of_type(c, SYMBOLS)[1] + 3 * SYMBOL + 8, "Q", 1 << 40),
    "a symbol longer than its section": lambda c: changed(c, of_type(c, SYMBOLS)[1] + 3 * SYMBOL + 16, "Q", 1 << 63),
    "a symbol of no section": lambda c: changed(c, of_type(c, SYMBOLS)[1] + 3 * SYMBOL + 6, "H", 0xFEFF),
    "a symbol of a reserved section": lambda c: changed(c, of_type(c, SYMBOLS)[1] + 3 * SYMBOL + 6, "H", 0xFFFF),
    "a relocation outside": lambda c: changed(c, of_type(c, RELOCATIONS)[1], "Q", (1 << 64) - 4),
    "a relocation of an unknown type": lambda c: changed(c, of_type(c, RELOCATIONS)[1] + 8, "I", 1 << 31),
    "a relocation by no symbol": lambda c: changed(c, of_type(c, RELOCATIONS)[1] + 12, "I", 1 << 31),
    "a relocation to far away": lambda c: changed(c, of_type(c, RELOCATIONS)[1] + 16, "q", -(1 << 63)),
    "relocations without addends": lambda c: changed(c, header(c, of_type(c, RELOCATIONS)[0]) + 4, "I", 9),
    "relocations of zeros": lambda c: changed(
        c, header(c, of_type(c, RELOCATIONS)[0]) + 44, "I", of_type(c, ZEROS)[0]
    ),
}  # fmt: skip


@needs_elf
@pytest.mark.parametrize("change", CHANGES)
def test_an_object_that_contradicts_itself_is_refused(change: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("relayc.backend.llvm.jit.JitImage", None)
    code = compiled(FIRST.replace("@other", "@llabs"))
    link([code])
    with pytest.raises(MalformedObject):
        link([CHANGES[change](code)])


FLIPS = """
import random, sys
from pathlib import Path
from relayc.backend.llvm.linking import link
from relayc.backend.llvm.object_file import ObjectFile
from relayc.backend.runtime import RelaycError

code = Path(sys.argv[1]).read_bytes()
tables = [range(64), range(int.from_bytes(code[0x28:0x30], "little"), len(code))]
tables += [range(s.offset, s.offset + s.size) for s in ObjectFile.read(code).sections if s.type in (2, 3, 4)]
refused = 0
for seed in range(int(sys.argv[2])):
    rng, other = random.Random(seed), bytearray(code)
    for _ in range(rng.choice((1, 1, 2, 3))):
        place = rng.choice(rng.choice(tables) if rng.random() < 0.8 else range(len(code)))
        other[place] = rng.choice((other[place] ^ 1 << rng.randrange(8), 0, 127, 128, 255))
    try:
        link([bytes(other)])
    except RelaycError:
        refused += 1
print(refused)
"""
"""Links an object with bytes changed, in its tables for the most part."""


@needs_elf
def test_linking_a_changed_object_never_ends_the_process(tmp_path: Path, request: pytest.FixtureRequest):
    count = 20_000 if request.config.getoption("all_combinations") else 1_000
    path = tmp_path / "object"
    path.write_bytes(compiled(FIRST.replace("@other", "@llabs")))
    command = [sys.executable, "-c", FLIPS, str(path), str(count)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert 0.3 * count < int(done.stdout) < 0.9 * count


def test_the_linker_is_chosen_by_the_machine(monkeypatch: pytest.MonkeyPatch):
    objects = [compiled(FIRST), compiled(SECOND)]
    assert function(link(objects), "next")() == 41
    monkeypatch.setattr(platform, "machine", lambda: "another")
    for system in (sys.platform, "another"):
        monkeypatch.setattr(sys, "platform", system)
        image = link(objects)
        assert isinstance(image, JitImage) and function(image, "next")() == 41


@needs_elf
def test_only_functions_are_looked_up():
    image = link([compiled("@seven = constant i64 7\ndefine i64 @one() {\n  ret i64 1\n}")])
    assert function(image, "one")() == 1
    for name in ("seven", "no_such_function"):
        with pytest.raises(KeyError):
            image.address(name)


def test_symbols_of_the_process():
    assert addresses_of(["memset"])["memset"] and address_of("memset") and not address_of("no_such_function_anywhere")
    with pytest.raises(ModuleError, match="calls _handle, no_such_function_anywhere, which neither"):
        addresses_of(["memset", "no_such_function_anywhere", "_handle"])
    assert missing_features(["no-such-feature"]) == []
