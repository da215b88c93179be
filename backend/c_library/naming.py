"""Names, texts and sizes of a graph in C."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from relayc.backend.runtime.errors import ArgumentError
from relayc.backend.runtime.sizes import Size

__all__ = ["check_name", "comment", "enumerators", "quoted", "size_code", "usual_name"]

_FUNCTIONS = {"+": "add", "-": "sub", "*": "mul", "//": "div", "%": "mod", "min": "min", "max": "max"}
_RESERVED = frozenset({
    "alignas", "alignof", "auto", "bool", "break", "case", "catch", "char", "class", "const", "constexpr", "continue",
    "default", "delete", "do", "double", "else", "enum", "explicit", "export", "extern", "false", "float", "for",
    "friend", "goto", "if", "inline", "int", "long", "main", "mutable", "namespace", "new", "operator", "private",
    "protected", "public", "register", "restrict", "return", "short", "signed", "sizeof", "static", "struct", "switch",
    "template", "this", "throw", "true", "try", "typedef", "typename", "union", "unsigned", "using", "virtual", "void",
    "volatile", "while",
})  # fmt: skip
"""Words that C or C++ give a meaning of their own."""
_OF_THE_SYSTEM = frozenset({"c", "dl", "gcc", "m", "pthread", "rt", "sem", "timer"})
"""Names of libraries that programs are linked with, and prefixes of functions such as timer_create."""
_MOST_LETTERS = 60


def check_name(name: str) -> str:
    """`name`, which prefixes the functions of a library. Raises `ArgumentError` unless C can have such names."""
    if re.fullmatch(r"[a-zA-Z][a-zA-Z0-9_]*", name) is None or not _is_free(name) or len(name) > _MOST_LETTERS:
        raise ArgumentError(
            f"name={name!r}; expected a C identifier of at most {_MOST_LETTERS} letters, digits and underscores that "
            "begins with a letter and is neither a keyword nor the system's, such as 'resnet50'"
        )
    return name


def usual_name(model: str) -> str:
    """The name of the library of a model that is called `model`."""
    name = re.sub(r"[^a-zA-Z0-9]+", "_", model).strip("_").lower()[:_MOST_LETTERS]
    return name if name and name[0].isalpha() and _is_free(name) else f"model_{name}".strip("_")


def _is_free(name: str) -> bool:
    return name not in _RESERVED and name not in _OF_THE_SYSTEM


def enumerators(prefix: str, names: Iterable[str]) -> list[str]:
    """An identifier for each of `names`, all different."""
    made: list[str] = []
    for position, name in enumerate(names):
        word = prefix + re.sub(r"[^A-Z0-9]+", "_", name.upper()).strip("_")
        made.append(f"{word}_{position}" if word == prefix or word in made or word == f"{prefix}COUNT" else word)
    return made


def quoted(text: str) -> str:
    """A string literal."""
    return '"' + "".join([_in_literal(byte) for byte in text.encode()]) + '"'


def _in_literal(byte: int) -> str:
    plain = 32 <= byte < 127 and byte not in b'"\\?'
    return chr(byte) if plain else f"\\{byte:03o}"


def comment(text: str) -> str:
    """Text that may stand in a comment: in one line, and not ending it."""
    return "".join([c if c.isprintable() else "?" for c in text]).replace("*/", "* /").replace("/*", "/ *")


def size_code(size: Size, names: Mapping[str, str]) -> str:
    """The C expression of a size, of type int64_t; `names` are those of the size variables."""
    if isinstance(size, int):
        return str(size) if abs(size) < 1 << 31 else f"INT64_C({size})"
    if isinstance(size, str):
        return names[size]
    op, a, b = size
    return f"size_{_FUNCTIONS[op]}({size_code(a, names)}, {size_code(b, names)})"
