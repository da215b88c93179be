"""The page of operators, made from the registry: `python -m relayc.frontends.onnx.operators_page > docs/operators.md`.
"""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from onnx import defs

from relayc.frontends.onnx.registry import Converter, find_converter, registered_operators
from relayc.frontends.onnx.unsupported_operators import UNSUPPORTED

__all__ = ["Operator", "operators", "page"]

_DOMAINS = ("", "ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training", "com.microsoft")

_FAMILIES = {
    "relayc.frontends.onnx.ops.sequence": "executor",
    "relayc.frontends.onnx.ops.optional": "executor",
    "relayc.frontends.onnx.ops.control": "executor",
    "relayc.frontends.onnx.ops.scan": "executor",
}
"""Where the operators of a family run that is not compiled."""

_PLACES = {
    "StringConcat": "host", "StringNormalizer": "host", "StringSplit": "host", "RegexFullMatch": "host",
    "Tokenizer": "host", "Cast": "compiled, strings: host", "CastLike": "compiled, strings: host",
    "Unique": "compiled, strings: host", "ZipMap": "compiled, maps: host",
}  # fmt: skip
"""Where operators run that read or make strings."""

_STRINGS = frozenset({"CategoryMapper", "Equal", "LabelEncoder", "OneHotEncoder", "TfIdfVectorizer"})
"""Other operators for which strings are shown: they are looked up, or compared."""

_GROUPS = (
    ("float", ("float16", "float", "double")), ("bfloat16", ("bfloat16",)),
    ("int", ("int8", "int16", "int32", "int64")), ("uint", ("uint8", "uint16", "uint32", "uint64")),
    ("bool", ("bool",)), ("string", ("string",)),
    ("float8", ("float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz", "float8e8m0")),
    ("int4", ("int4",)), ("uint4", ("uint4",)), ("float4", ("float4e2m1",)), ("int2", ("int2",)), ("uint2", ("uint2",)),
)  # fmt: skip
"""Element types that are shown by one word when an operator takes all of them."""

_INTRODUCTION = """\
# Operators

The operators that `from_onnx` converts, by domain. `python -m relayc.frontends.onnx.operators_page` generates this
page; a test
compares it with the code.

* **versions**: the opset versions of the operator that are converted, each with the semantics of that version.
* **runs**: "compiled" to a kernel or a part of one; "body": ONNX's function body is compiled; "host": strings are
  read or made in Python;
  "executor": subgraphs, sequences and optional values at run time, unless they are static.
* **types**: element types that ONNX allows for the first input (for a generator, the output), without complex ones,
  which are unsupported, and
  strings that are only copied. `float` is float16, float32 and float64, `int` and `uint` are 8 to 64 bits, `float8`
  all five formats.
"""


@dataclass(frozen=True)
class Operator:
    """An operator of ONNX or of onnxruntime, with the versions of it that the onnx package knows."""

    domain: str
    name: str
    schemas: tuple[Any, ...]

    @property
    def newest(self) -> Any:
        """The newest version that is not a deprecation; None where the package does not know the operator."""
        return next((schema for schema in reversed(self.schemas) if not schema.deprecated), None)

    @property
    def converter(self) -> Converter | None:
        """The converter of the newest version."""
        newest = self.newest
        return find_converter(self.domain, self.name, sys.maxsize if newest is None else newest.since_version)

    def is_handled(self, schema: Any) -> bool:
        """Is the version converted, by a converter or by its function body?"""
        if find_converter(self.domain, self.name, schema.since_version) is not None:
            return True
        return bool(schema.has_function or schema.has_context_dependent_function)

    @property
    def versions(self) -> list[int]:
        """Versions that are handled; none for a refused operator."""
        if not self.schemas:
            return [since for *key, since in registered_operators() if key == [self.domain, self.name]]
        return [s.since_version for s in self.schemas if not s.deprecated and self.is_handled(s)]

    @property
    def runs(self) -> str:
        convert = self.converter
        if convert is None:
            return "body" if self.versions else "refused"
        return _PLACES.get(self.name, _FAMILIES.get(convert.__module__, "compiled"))

    @property
    def types(self) -> str:
        schema = self.newest
        if schema is None or self.runs == "refused":
            return ""
        of = (schema.inputs or schema.outputs)[0]
        allowed = {name.removeprefix("tensor(").removesuffix(")") for name in of.types if name.startswith("tensor(")}
        shown: list[str] = []
        for group, members in _GROUPS:
            if group == "string" and "host" not in self.runs and self.name not in _STRINGS:
                continue
            present = [member for member in members if member in allowed]
            renamed = {"float": "float32", "double": "float64"}
            shown += [group] if len(present) == len(members) else [renamed.get(m, m) for m in present]
        return ", ".join(shown) if shown else "any" if of.types else ""

    @property
    def notes(self) -> str:
        """The first sentence of what the converter says of itself, or why the operator is refused."""
        if self.runs == "refused":
            return _sentence(UNSUPPORTED[self.domain, self.name])
        text = getattr(self.converter, "__doc__", None)
        note = _sentence(inspect.cleandoc(text)) if text and inspect.isfunction(self.converter) else ""
        return f"deprecated; {note}".rstrip("; ") if self.schemas and self.schemas[-1].deprecated else note


def _sentence(text: str) -> str:
    line = " ".join(text.split("\n\n")[0].split())
    return line.split(". ")[0].rstrip(".").replace("|", "\\|")


def operators() -> list[Operator]:
    """Every operator of the installed onnx package, and those of onnxruntime's domain that have a converter."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found: list[Any] = list(defs.get_all_schemas_with_history())
    ours = [(domain, name) for domain, name, _ in registered_operators() if domain in _DOMAINS]
    schemas: dict[tuple[str, str], list[Any]] = {key: [] for key in ours}
    for schema in found:
        schemas.setdefault(("" if schema.domain == "ai.onnx" else schema.domain, schema.name), []).append(schema)
    return [
        Operator(domain, name, tuple(sorted(versions, key=lambda s: s.since_version)))
        for (domain, name), versions in sorted(schemas.items())
    ]


def _rows(of: Sequence[Operator]) -> Iterator[str]:
    yield "| operator | versions | runs | types | notes |"
    yield "|---|---|---|---|---|"
    for each in of:
        versions = ", ".join(map(str, each.versions))
        yield f"| {each.name} | {versions} | {each.runs} | {each.types} | {each.notes} |".replace("  ", " ")


def page() -> str:
    """The page in Markdown."""
    every = operators()
    parts = [_INTRODUCTION]
    for domain in dict.fromkeys([*_DOMAINS, *[each.domain for each in every]]):
        here = [each for each in every if each.domain == domain]
        refused = sum(each.runs == "refused" for each in here)
        handled = len(here) - refused
        counted = f"{handled} operator{'s' * (handled != 1)}" + (f", {refused} refused" if refused else "")
        parts.append(f"## {domain or 'ai.onnx'}\n\n{counted}.\n\n" + "\n".join(_rows(here)) + "\n")
    return "\n".join(parts)


if __name__ == "__main__":
    sys.stdout.write(page())
