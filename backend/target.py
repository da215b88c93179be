"""Target: what a program is compiled for, as a table of named attributes.

A target has a *kind* ("llvm", "c", "cuda", ...), which names its code generator ("target.build.<kind>") and the kind of
device its code runs on, and the attributes that the kind declares. It can be written three ways::

    Target("llvm -mcpu=skylake-avx512 -num-cores=8")
    Target({"kind": "llvm", "mcpu": "skylake-avx512", "num-cores": 8})
    Target('{"kind": "llvm", "mcpu": "skylake-avx512", "num-cores": 8}')

Underscores in the names of options stand for dashes, as in TVM's `max_num_threads`.

The parser of a kind makes defaults explicit, so that a target holds explicit values only: printed on one machine it
means the same on another. Schedules and code generators read the target and never a live device. TVM: `tvm.target`.

A new kind is added from outside, without editing this file::

    register_target_kind("npu", device="npu").add_attr_option("lanes", int, 8).set_default_keys(["npu"])
"""

from __future__ import annotations

import difflib
import importlib
import json
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from relayc.backend.runtime.device import Device, device as find_device
from relayc.te.errors import CompileError

__all__ = ["AttrOption", "CacheBytes", "Target", "TargetAttrs", "TargetError", "TargetKind", "list_target_kinds",
           "register_target_kind", "target_kind"]  # fmt: skip

Attrs = dict[str, Any]


class TargetError(CompileError):
    """A target has an unknown kind or option, or an invalid option value."""


class CacheBytes(NamedTuple):
    """Data cache sizes in bytes: L1 and L2 of one core, shared L3. 0 where there is none."""

    l1: int
    l2: int
    l3: int


@dataclass(frozen=True, slots=True)
class AttrOption:
    """One option of a kind: `type` is str, int, float, bool or list (of str); `default` None leaves it to the parser.

    A `derived` option can't be set: the parser computes it from the others, and the forms of a target omit it.
    """

    name: str
    type: type
    default: Any = None
    doc: str = ""
    derived: bool = False

    def read(self, text: str) -> Any:
        """The value of `text` in the string form of a target."""
        if self.type is list:
            return [part.strip() for part in text.split(",") if part.strip()]
        if self.type is bool:
            if text.lower() in ("1", "true", ""):
                return True
            if text.lower() in ("0", "false"):
                return False
            raise TargetError(f"option -{self.name} is {text!r}; expected true or false")
        try:
            return self.type(text)
        except ValueError:
            expected = self.type.__name__
            raise TargetError(f"option -{self.name} is {text!r}; expected a value of type {expected}") from None

    def check(self, value: Any) -> Any:
        """`value` itself, with any sequence of strings converted to a list. Raises TargetError for another type."""
        if self.type is list and isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
            return list(value)
        if self.type is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        fits = isinstance(value, self.type) and self.type is not list
        if fits and (self.type is bool or not isinstance(value, bool)):
            return value
        expected = "list of str" if self.type is list else self.type.__name__
        raise TargetError(f"option {self.name!r} is {value!r}; expected a value of type {expected}")


_COMMON_OPTIONS = (
    AttrOption("keys", list, doc="what schedules are looked up by, most specific first"),
    AttrOption("libs", list, doc="external libraries that may implement operators"),
    AttrOption("model", str, doc="name of the hardware, for people and tuning records"),
    AttrOption("host", str, doc="target of the code that launches this one's"),
)


@dataclass(slots=True)
class TargetKind:
    """A kind of target: its name, the kind of device its code runs on, its options. Made by `register_target_kind`."""

    name: str
    device: str
    default_keys: tuple[str, ...] = ()
    options: dict[str, AttrOption] = field(default_factory=lambda: {o.name: o for o in _COMMON_OPTIONS})
    _parser: Callable[[Attrs], Attrs] | None = None
    _device_query: Callable[[Device], Attrs] | None = None

    def add_attr_option(
        self, name: str, type: type, default: Any = None, doc: str = "", *, derived: bool = False
    ) -> TargetKind:
        """Declare an option (see `AttrOption`); returns the kind itself, so that calls chain."""
        if self.declared(name) is not None:
            raise TargetError(f"target kind {self.name!r} has an option {name!r} already")
        self.options[name] = AttrOption(name, type, default, doc, derived)
        return self

    def set_default_keys(self, keys: Iterable[str]) -> TargetKind:
        """Keys that every target of this kind has, after its explicit ones."""
        self.default_keys = tuple(keys)
        return self

    def set_parser(self, parser: Callable[[Attrs], Attrs]) -> TargetKind:
        """`parser` maps the attributes passed, defaults included, to all attributes; it must be idempotent."""
        self._parser = parser
        return self

    def set_device_query(self, query: Callable[[Device], Attrs]) -> TargetKind:
        """`query` reads attributes off a live device, for `Target.from_device`."""
        self._device_query = query
        return self

    def query(self, device: Device) -> Attrs:
        """The attributes that a live device reports for a target of this kind."""
        return self._device_query(device) if self._device_query is not None else {}

    def declared(self, name: str) -> AttrOption | None:
        """The option called `name`, with dashes or underscores; None if there is none."""
        variants = (name, name.replace("_", "-"), name.replace("-", "_"))
        return next((self.options[s] for s in variants if s in self.options), None)

    def option(self, name: str) -> AttrOption:
        """The option called `name`, with dashes or underscores. Raises TargetError listing the known ones."""
        found = self.declared(name)
        if found is None:
            close = difflib.get_close_matches(name, self.options, n=1)
            hint = f" (did you mean {close[0]!r}?)" if close else ""
            known = ", ".join(sorted(self.options))
            raise TargetError(f"target kind {self.name!r} has no option {name!r}{hint}; known are: {known}")
        return found

    def resolve(self, passed: Mapping[str, Any]) -> Attrs:
        """The checked attributes with defaults and the parser's results; None values are dropped."""
        attrs = {name: o.default for name, o in self.options.items() if o.default is not None}
        checked: Attrs = {}
        for name, value in passed.items():
            option = self.option(name)
            if option.derived:
                raise TargetError(f"option {name!r} of target kind {self.name!r} follows from others; leave it out")
            if option.name in checked:
                raise TargetError(f"a target of kind {self.name!r} gives option {option.name!r} twice")
            checked[option.name] = option.check(value)
        attrs |= checked
        if self._parser is not None:
            attrs = {n: self.option(n).check(v) for n, v in self._parser(attrs).items() if v is not None}
        return attrs


_kinds: dict[str, TargetKind] = {}
_PROVIDERS = {
    "c": "relayc.backend.c.target",
    "cuda": "relayc.backend.cuda.target",
    "interp": "relayc.backend.interp.target",
    "llvm": "relayc.backend.llvm.target",
}
"""Kind -> module that registers it when imported, for the built-in kinds, at first use."""
_HARDWARE = {"cpu": "llvm", "x86": "llvm", "x86_64": "llvm", "host": "llvm", "gpu": "cuda", "nvidia": "cuda"}
"""Names of hardware that users may take for kinds, for errors: the kind that compiles for it."""


def register_target_kind(name: str, device: str) -> TargetKind:
    """Register a kind of target whose code runs on devices of kind `device`; add options to the returned kind.

    Raises TargetError when the name is taken. TVM: TVM_REGISTER_TARGET_KIND.
    """
    if name in _kinds:
        raise TargetError(f"target kind {name!r} is registered already, for device {_kinds[name].device!r}")
    _kinds[name] = TargetKind(name, device)
    return _kinds[name]


def list_target_kinds() -> list[str]:
    """Names of all known kinds, sorted; built-in kinds are not imported for it."""
    return sorted({*_kinds, *_PROVIDERS})


def target_kind(name: str) -> TargetKind:
    """The kind called `name`, its module imported if needed.

    Raises TargetError for an unknown kind and for one whose package is not installed.
    """
    if name not in _kinds and name in _PROVIDERS:
        try:
            importlib.import_module(_PROVIDERS[name])
        except ImportError as error:
            raise TargetError(f"target kind {name!r} can't be used here: {error}") from error
    if name not in _kinds:
        close = [_HARDWARE[name]] if name in _HARDWARE else difflib.get_close_matches(name, list_target_kinds(), n=1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        raise TargetError(f"unknown target kind {name!r}{hint}; known are: {', '.join(list_target_kinds())}")
    return _kinds[name]


class TargetAttrs(Mapping[str, Any]):
    """The attributes of a target by option name, with dashes or underscores: read-only."""

    __slots__ = ("_kind", "_values")

    def __init__(self, kind: TargetKind, values: Attrs) -> None:
        self._kind = kind
        self._values = values

    def __getitem__(self, name: str) -> Any:
        if name in self._values:
            return self._values[name]
        option = self._kind.declared(name)
        return self._values[name if option is None else option.name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return repr(self._values)


class Target:
    """What to compile for, in the forms that the module documentation describes. Immutable; equal targets hash alike.

    `kind` is a `TargetKind`, `keys` the names that schedules are looked up by, `attrs` every attribute by name, `host`
    the target of the launching code (None: this target itself launches). Raises TargetError for an invalid target.
    """

    __slots__ = ("_json", "_tokens", "attrs", "host", "keys", "kind")

    kind: TargetKind
    attrs: Mapping[str, Any]
    keys: tuple[str, ...]
    host: Target | None

    _current: ClassVar[ContextVar[Target | None]] = ContextVar("relayc_target", default=None)

    def __init__(self, target: str | Mapping[str, Any] | Target, host: str | Mapping[str, Any] | Target | None = None):
        passed = _as_dict(target)
        self.kind = target_kind(passed.pop("kind"))
        own_host = passed.pop("host", None)
        host = own_host if host is None else host
        keys = self.kind.option("keys").check(passed.pop("keys", []))
        self.keys = tuple(dict.fromkeys((*keys, *self.kind.default_keys)))
        self.attrs = TargetAttrs(self.kind, self.kind.resolve(passed))
        self.host = None if host is None else Target(host)
        self._json = json.dumps(self.to_dict(), sort_keys=True)
        self._tokens: list[Token[Target | None]] = []

    # -- what schedules and code generators read

    def get(self, name: str, default: Any = None) -> Any:
        """The attribute `name`, or `default` when this target has none."""
        return self.attrs.get(name, default)

    @property
    def device_kind(self) -> str:
        """The kind of device that code for this target runs on."""
        return self.kind.device

    @property
    def mcpu(self) -> str:
        """The processor's name for the code generator, "" if there is none."""
        return self.get("mcpu", "")

    @property
    def features(self) -> frozenset[str]:
        """Instruction-set features, by LLVM's names: "avx2", "fma", "avx512f", ..."""
        return frozenset(self.get("features", ()))

    @property
    def has_fma(self) -> bool:
        """Does the target have a vector fused multiply-add?"""
        return not self.features.isdisjoint(("fma", "neon"))

    @property
    def vector_bytes(self) -> int:
        """Width of a vector register in bytes."""
        return self.get("vector-bytes", 16)

    @property
    def vector_registers(self) -> int:
        """Number of vector registers."""
        return self.get("vector-registers", 16)

    @property
    def num_cores(self) -> int:
        """Cores that run a parallel loop."""
        return self.get("num-cores", 1)

    @property
    def cache_bytes(self) -> CacheBytes:
        """Data cache sizes."""
        get = self.attrs.get
        return CacheBytes(get("l1-bytes", 32 << 10), get("l2-bytes", 512 << 10), get("l3-bytes", 0))

    @property
    def libs(self) -> tuple[str, ...]:
        """External libraries that may implement operators, by name."""
        return tuple(self.get("libs", ()))

    # -- forms

    def to_dict(self) -> dict[str, Any]:
        """The dictionary form; `Target(t.to_dict()) == t`."""
        form: dict[str, Any] = {"kind": self.kind.name, "keys": list(self.keys), **self._explicit()}
        if self.host is not None:
            form["host"] = self.host.to_dict()
        return form

    def _explicit(self) -> dict[str, Any]:
        return {name: value for name, value in self.attrs.items() if not self.kind.options[name].derived}

    def to_json(self) -> str:
        """The JSON form, one line, keys sorted; `Target(t.to_json()) == t`."""
        return self._json

    def __str__(self) -> str:
        """The string form, every attribute explicit; `Target(str(t)) == t`."""
        words = [self.kind.name, f"-keys={','.join(self.keys)}"]
        words += [f"-{name}={_spell(value)}" for name, value in sorted(self._explicit().items()) if value != []]
        if self.host is not None:
            words.append(f"-host={shlex.quote(str(self.host))}")
        return " ".join(words)

    def __repr__(self) -> str:
        return f"Target({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Target) and self._json == other._json

    def __hash__(self) -> int:
        return hash(self._json)

    def __reduce__(self) -> tuple[Any, ...]:
        return (Target, (self.to_json(),))

    def with_host(self, host: str | Mapping[str, Any] | Target) -> Target:
        """This target with `host` as the target of its launching code."""
        return Target(self, host)

    def with_attrs(self, **changes: Any) -> Target:
        """This target with attributes changed; underscores in names stand for dashes."""
        renamed = {self.kind.option(name).name: value for name, value in changes.items()}
        return Target({**self.to_dict(), **renamed})

    # -- the current target, live devices

    @staticmethod
    def current(allow_none: bool = True) -> Target | None:
        """The target of the innermost `with Target(...):`; without one None, or TargetError unless `allow_none`."""
        found = Target._current.get()
        if found is None and not allow_none:
            raise TargetError("no current target; give one, or enter `with Target(...):`")
        return found

    def __enter__(self) -> Target:
        self._tokens.append(Target._current.set(self))
        return self

    def __exit__(self, *exc_info: object) -> None:
        Target._current.reset(self._tokens.pop())

    @staticmethod
    def from_device(device: Device | str) -> Target:
        """The target that describes a device of this machine, with attributes queried from it ("cpu": the llvm
        kind)."""
        where = find_device(device)
        kind = target_kind({"cpu": "llvm"}.get(where.kind, where.kind))
        return Target({"kind": kind.name, **kind.query(where)})


def _spell(value: Any) -> str:
    text = ",".join(value) if isinstance(value, list) else str(value)
    return shlex.quote(text)


def _as_dict(target: Any) -> dict[str, Any]:
    """A target or any of its three forms as a new dictionary with a "kind"."""
    if isinstance(target, Target):
        return target.to_dict()
    if isinstance(target, str):
        text = target.strip()
        return _as_dict(_parse_json(text)) if text.startswith("{") else _parse_words(text)
    if isinstance(target, Mapping):
        if not isinstance(target.get("kind"), str):
            raise TargetError(f"target {dict(target)!r} has no kind; add \"kind\", one of: {_kinds_text()}")
        return dict(target)
    raise TargetError(f"a target is a string, a dictionary or a Target; got a {type(target).__name__}: {target!r}")


def _kinds_text() -> str:
    return ", ".join(list_target_kinds())


def _parse_json(text: str) -> Mapping[str, Any]:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TargetError(f"target {text!r:.200} looks like JSON and is not: {error}") from error


def _parse_words(text: str) -> dict[str, Any]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise TargetError(f"target {text!r} can't be split into words: {error}") from error
    if not words or words[0].startswith("-"):
        raise TargetError(f"target {text!r} has no kind; begin with one of: {_kinds_text()}")
    kind = target_kind(words[0])
    form: dict[str, Any] = {"kind": kind.name}
    for word in words[1:]:
        name, separator, value = word.lstrip("-").partition("=")
        if not word.startswith("-") or not name:
            raise TargetError(f"target {text!r}: {word!r} is not an option; options are written -name=value")
        option = kind.option(name)
        if not separator and option.type is not bool:
            raise TargetError(f"target {text!r}: option -{name} requires a value: -{name}=...")
        if option.name in form:
            raise TargetError(f"target {text!r} gives option -{name} twice")
        form[option.name] = option.read(value)
    return form
