"""Random changes of artifacts, whose hashes are made right again. Imports only what loads a model."""

from __future__ import annotations

import hashlib
import json
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from relayc.backend.runtime import GraphModule, RelaycError, device
from relayc.backend.runtime.artifact import CompiledModel
from relayc.backend.runtime.container import Section, digest

_MAGIC_BYTES = 12
"""Bytes of an artifact before the size of its manifest."""


class Artifact:
    """An artifact taken apart: its manifest, and the contents of its sections."""

    def __init__(self, data: bytes) -> None:
        end = 64 + int.from_bytes(data[12:16], "little")
        self.head, self.manifest = data[:_MAGIC_BYTES], json.loads(data[64:end])
        self.parts: list[bytes] = []
        for section in self.manifest["sections"]:
            end += -end % section["align"]
            self.parts.append(data[end : end + section["size"]])
            end += section["size"]

    def to_bytes(self, seal: bool) -> bytes:
        """The file, with all hashes made anew; the seals of the code as well if `seal`."""
        sections = self.manifest["sections"]
        for part, section in zip(self.parts, sections, strict=True):
            section.update(Section([part], section["align"]).record)
        if seal:
            made = digest({**self.manifest, "sections": sections[-1:]})
            self.parts[:-1] = [made + part[len(made) :] for part in self.parts[:-1]]
            for part, section in zip(self.parts, sections, strict=True):
                section.update(Section([part], section["align"]).record)
        text = json.dumps(self.manifest).encode()
        out = self.head + len(text).to_bytes(4, "little") + hashlib.sha256(text).digest() + bytes(16) + text
        for part, section in zip(self.parts, sections, strict=True):
            out += bytes(-len(out) % section["align"]) + part
        return out


# -- random changes


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths to all values in a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*path, key)
        yield from places(inner, (*path, key))


def at(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


NUMBERS = (0, 1, -1, 2, 7, 64, 1 << 31, 1 << 40, (1 << 62) + 1, 1 << 63, 1 << 70)
OTHERS = (None, True, -1, 1.5, "", "arena", [], {}, [[]], ["+", 1, 2], "n")


def change(json_value: dict[str, Any], rng: random.Random) -> None:
    """Change a few values: by a little, by one from elsewhere, by one of another type, or drop them."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        paths = list(places(json_value))
        path = rng.choice(paths)
        holder, old = at(json_value, path[:-1]), at(json_value, path)
        kind = rng.random()
        if kind < 0.1:
            holder.pop(path[-1])
        elif kind < 0.2:
            holder[path[-1]] = rng.choice(OTHERS)
        elif kind < 0.6 and type(old) is int:
            holder[path[-1]] = rng.choice((*NUMBERS, old + 1, old - 1, old * 2, old // 2, old + 64, old - 64))
        elif kind < 0.6 and isinstance(old, list):
            holder[path[-1]] = rng.choice(([], old + old, old[::-1], old[:-1], [*old, 0]))
        else:
            holder[path[-1]] = json.loads(json.dumps(at(json_value, rng.choice(paths))))


def change_manifest(artifact: Artifact, rng: random.Random) -> None:
    fields = {key: value for key, value in artifact.manifest.items() if key != "sections"}
    change(fields, rng)
    artifact.manifest = {**fields, "sections": artifact.manifest["sections"]}


def change_header(artifact: Artifact, rng: random.Random) -> None:
    """Change the header of the code (behind a seal of 32 bytes, magic and size) or of the weights (behind a size)."""
    number = rng.randrange(2)
    part, begin = artifact.parts[number], (48, 8)[number]
    end = begin + int.from_bytes(part[begin - 8 : begin], "little")
    header = json.loads(part[begin:end])
    if header:
        change(header, rng)
    text = json.dumps(header).encode()
    artifact.parts[number] = part[: begin - 8] + len(text).to_bytes(8, "little") + text + part[end:]


def change_code(artifact: Artifact, rng: random.Random) -> None:
    """Change bytes of the object files, and the hashes that the module's header has of them."""
    part = artifact.parts[0]
    begin = 48 + int.from_bytes(part[40:48], "little")
    header, code = json.loads(part[48:begin]), bytearray(part[begin:])
    for _ in range(rng.choice((1, 1, 2, 4))):
        place = rng.randrange(len(code))
        code[place] = rng.choice((code[place] ^ 1 << rng.randrange(8), 0, 127, 255))
    start = 0
    for described in [*header["parts"], header["pool"]]:
        described["sha256"] = hashlib.sha256(code[start : start + described["size"]]).hexdigest()
        start += described["size"]
    text = json.dumps(header).encode()
    artifact.parts[0] = part[:40] + len(text).to_bytes(8, "little") + text + bytes(code)


CHANGES: dict[str, Callable[[Artifact, random.Random], None]] = {
    "manifest": change_manifest, "header": change_header, "code": change_code,
}  # fmt: skip


def outcomes(data: bytes, kind: str, seal: bool, count: int) -> Counter[str]:
    """What becomes of an artifact, changed in so many ways, when it is loaded and an executor is made, but not run."""
    found = Counter[str]()
    for seed in range(count):
        artifact = Artifact(data)
        before = digest(artifact.manifest)
        CHANGES[kind](artifact, random.Random(seed))
        if kind == "manifest" and digest(artifact.manifest) == before:
            continue
        try:
            model = CompiledModel.from_bytes(artifact.to_bytes(seal), "full")
            GraphModule(model["default"](device("cpu", 0)), 1)
            found["loaded"] += 1
        except RelaycError:
            found["refused"] += 1
    return found


if __name__ == "__main__":
    found = {
        f"{Path(path).name} {kind}": outcomes(Path(path).read_bytes(), kind, True, int(sys.argv[1]))
        for path in sys.argv[2:]
        for kind in CHANGES
    }
    print(json.dumps(found))
