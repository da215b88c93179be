"""The pass infrastructure: a pass is a value that maps a module to a module.

Write a pass as a frozen dataclass whose options are its fields and whose docstring is its contract::

    @dataclass(frozen=True)
    class FoldConstant(Pass):
        '''Calls whose arguments are all constants become constants.'''
        opt_level: ClassVar[int] = 2
        def run(self, module: IRModule, context: PassContext) -> IRModule: ...

`Sequential` runs passes in order under the current `PassContext`; an error names the pass and those before it.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar, Token
from dataclasses import dataclass
from inspect import isabstract
from typing import Any, ClassVar, TypeVar

from relayc.te.errors import CompileError
from relayc.te.ir.module import IRModule

__all__ = ["DumpInstrument", "Pass", "PassContext", "PassInstrument", "Sequential", "TimingInstrument"]


class PassInstrument:
    """Watches passes. Override what you need."""

    def should_run(self, pass_: Pass, module: IRModule) -> bool:
        """False skips the pass."""
        return True

    def before(self, pass_: Pass, module: IRModule) -> None:
        """Called with the module the pass is about to see."""

    def after(self, pass_: Pass, module: IRModule) -> None:
        """Called with the module the pass has made."""


class TimingInstrument(PassInstrument):
    """Seconds spent in each pass, by name; nested passes count in their parents too."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._started: list[float] = []

    def before(self, pass_: Pass, module: IRModule) -> None:
        self._started.append(time.perf_counter())

    def after(self, pass_: Pass, module: IRModule) -> None:
        spent = time.perf_counter() - self._started.pop()
        self.seconds[pass_.name] = self.seconds.get(pass_.name, 0.0) + spent


class DumpInstrument(PassInstrument):
    """Keeps the text of the module after the first pass and each that changed it: a list of (pass name, text)."""

    def __init__(self) -> None:
        self.dumps: list[tuple[str, str]] = []
        self._seen: IRModule | None = None

    def after(self, pass_: Pass, module: IRModule) -> None:
        if module is not self._seen:
            self.dumps.append((pass_.name, str(module)))
        self._seen = module


_T = TypeVar("_T")


def _all_of(what: str, values: Iterable[_T], kind: type[_T]) -> tuple[_T, ...]:
    """The argument `what` as a tuple. Raises CompileError unless it is a collection of `kind`."""
    if not isinstance(values, Iterable) or isinstance(values, str | bytes):
        raise CompileError(f"{what} is {values!r}; expected a list of {kind.__name__}")
    listed = tuple(values)
    wrong = [value for value in listed if not isinstance(value, kind)]
    if wrong:
        raise CompileError(f"{what} holds {wrong[0]!r}; expected a list of {kind.__name__}")
    return listed


def _names(what: str, names: Iterable[str]) -> frozenset[str]:
    return frozenset(_all_of(what, names, str))


@dataclass(frozen=True, slots=True)
class _Option:
    """A declared option; see `PassContext.declare_option`."""

    default: Any
    doc: str
    choices: tuple[Any, ...]
    types: tuple[type, ...]
    least: int

    @property
    def expected(self) -> str:
        """The legal values, for errors."""
        if self.choices:
            return f"one of {', '.join(map(str, filter(None, self.choices)))}"
        if int in self.types:
            return f"an integer of {self.least} or more"
        return " or ".join(["None" if t is type(None) else t.__name__ for t in self.types])

    def allows(self, value: Any) -> bool:
        """Is it a legal value?"""
        if self.choices:
            return isinstance(value, str) and value in self.choices
        if isinstance(value, bool):
            return bool in self.types or not self.types
        return not self.types or (isinstance(value, self.types) and (not isinstance(value, int) or value >= self.least))


LEVELS = range(5)
"""The optimisation levels."""


class PassContext:
    """Settings that passes read: optimisation level, forced and disabled passes, options, instruments.

    `config` holds options by name, such as ``{"relay.winograd": "off"}``. Options are declared with
    `PassContext.declare_option` beside the code that reads them. Raises CompileError for a level that there is not, an
    unknown option or one of another kind, and instruments and names of passes that are none.
    """

    _options: ClassVar[dict[str, _Option]] = {}

    def __init__(
        self,
        opt_level: int = 3,
        required_pass: Iterable[str] = (),
        disabled_pass: Iterable[str] = (),
        instruments: Iterable[PassInstrument] = (),
        config: Mapping[str, Any] | None = None,
    ) -> None:
        if isinstance(opt_level, bool) or not isinstance(opt_level, int) or opt_level not in LEVELS:
            raise CompileError(f"opt_level is {opt_level!r}; expected a number, {LEVELS[0]} to {LEVELS[-1]}")
        self.opt_level = opt_level
        self.required_pass = _names("required_pass", required_pass)
        self.disabled_pass = _names("disabled_pass", disabled_pass)
        self.instruments = _all_of("instruments", instruments, PassInstrument)
        if config is not None and not isinstance(config, Mapping):
            raise CompileError(f"config is {config!r}; expected a dictionary of options by name")
        self.config: dict[str, Any] = dict(config or {})
        for key, value in self.config.items():
            option = self._declared(key)
            if not option.allows(value):
                raise CompileError(f"option {key} is {value!r}; expected {option.expected}: {option.doc}")
        self._tokens: list[Token[PassContext]] = []

    @classmethod
    def declare_option(
        cls,
        key: str,
        default: Any,
        doc: str,
        *,
        choices: Sequence[str] = (),
        types: Sequence[type] = (),
        least: int = 0,
    ) -> None:
        """Make `key` a legal option with a default and one line of meaning.

        Its values are `choices` if there are any, else of one of `types`, by default that of the default; None has any.
        Integers are not below `least`.
        """
        known = types or ([] if default is None else [type(default)])
        cls._options[key] = _Option(default, doc, tuple(choices), tuple(known), least)

    @classmethod
    def list_options(cls) -> dict[str, tuple[Any, str]]:
        """Every declared option: name -> (default, meaning)."""
        return {key: (option.default, option.doc) for key, option in cls._options.items()}

    @classmethod
    def _declared(cls, key: str) -> _Option:
        if key not in cls._options:
            raise CompileError(f"unknown pass option {key!r}; known are: {', '.join(sorted(cls._options))}")
        return cls._options[key]

    def option(self, key: str) -> Any:
        """The value of a declared option in this context."""
        option = self._declared(key)
        return self.config.get(key, option.default)

    def enables(self, pass_: Pass) -> bool:
        """Does this context run the pass, by level and by the forced and disabled lists?"""
        if pass_.name in self.disabled_pass:
            return False
        return pass_.name in self.required_pass or self.opt_level >= pass_.opt_level

    def check_passes(self) -> None:
        """Raise CompileError unless every name in the forced and disabled lists is that of a pass."""
        known = _pass_names(Pass)
        for names in (self.required_pass, self.disabled_pass):
            if not names <= known:
                unknown = ", ".join(sorted(names - known))
                raise CompileError(f"no pass is named {unknown}; known are: {', '.join(sorted(known))}")

    @staticmethod
    def current() -> PassContext:
        """The innermost `with PassContext(...)`, or the default one."""
        return _current.get(_default)

    def __enter__(self) -> PassContext:
        self._tokens.append(_current.set(self))
        return self

    def __exit__(self, *exc_info: object) -> None:
        _current.reset(self._tokens.pop())


_default = PassContext()
_current: ContextVar[PassContext] = ContextVar("relayc_pass_context")


@dataclass(frozen=True)
class Pass(ABC):
    """A transformation of a module. Subclasses implement `run`; those with options are frozen dataclasses, too."""

    opt_level: ClassVar[int] = 0

    @property
    def name(self) -> str:
        """The name that contexts and instruments know the pass by: its class name."""
        return type(self).__name__

    @abstractmethod
    def run(self, module: IRModule, context: PassContext) -> IRModule:
        """The transformed module; the very same object when nothing changed."""

    def __call__(self, module: IRModule) -> IRModule:
        """Run under the current context: its level, lists and instruments apply."""
        context = PassContext.current()
        if not context.enables(self) or not all(i.should_run(self, module) for i in context.instruments):
            return module
        for instrument in context.instruments:
            instrument.before(self, module)
        result = self.run(module, context)
        for instrument in context.instruments:
            instrument.after(self, result)
        return result


def _pass_names(of: type[Pass]) -> set[str]:
    """The names of the classes below `of` that can be run."""
    found: set[str] = set()
    for child in of.__subclasses__():
        found |= _pass_names(child)
        if not isabstract(child):
            found.add(child.__name__)
    return found


@dataclass(frozen=True)
class Sequential(Pass):
    """Runs passes in order. An error leaving a pass carries a note with its name and the passes before it."""

    passes: tuple[Pass, ...]
    label: str = "Sequential"

    @property
    def name(self) -> str:
        return self.label

    def run(self, module: IRModule, context: PassContext) -> IRModule:
        done: list[str] = []
        for pass_ in self.passes:
            try:
                module = pass_(module)
            except Exception as error:
                error.add_note(f"in pass {pass_.name}, after: {', '.join(done) or 'none'}")
                raise
            done.append(pass_.name)
        return module
