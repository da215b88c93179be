"""The file of tuning records: schedule parameters found by measuring, by processor and kernel.

One JSON object: ``{"format": 1, "records": [...]}``, a record as in `Record`. A record applies if target, processor and
subject match exactly, and each of its values as long as the cost model's default has not changed. The file is replaced
as a whole, so that readers never see a partial one; concurrent additions of others are kept.

Builds read the file that the option ``relay.tuning.records`` of the `PassContext` names; by default the user's own,
which `relayc tune` writes to: ``tuning.json`` in the cache folder. "off" reads none. A file that is named has to be
readable and whole; the user's own counts as absent otherwise, or if another user may have written it, and a warning
says so once: nobody asked for it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from contextvars import ContextVar, Token
from dataclasses import asdict, dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar

from relayc.backend.cache import default_cache
from relayc.backend.private_files import is_private, read_private
from relayc.backend.runtime.device import cpu
from relayc.backend.runtime.files import replacing
from relayc.backend.runtime.log import warn_once
from relayc.backend.target import Target
from relayc.te.errors import CompileError
from relayc.te.ir import PassContext
from relayc.topi.tuning import Config, Value

__all__ = ["Record", "TuningRecords", "current_records", "default_records_path"]

_FORMAT = 1
_GRAPH = "graph: "
"""The prefix of subjects that are parameters of graph passes; all others are the texts of fused functions."""

PassContext.declare_option(
    "relay.tuning.records", None, 'file of tuning records that builds use; None: the user\'s own; "off": none',
    types=(str, PathLike, type(None)),
)


@dataclass(frozen=True)
class Record:
    """Parameters of one subject, a kernel or a pass, that were faster than the cost model's.

    `values` by name, empty if a search found nothing better, and the cost model's `defaults` of all parameters tried;
    microseconds with each, on `threads` threads.
    """

    target: str
    cpu: str
    subject: str
    values: dict[str, Value]
    defaults: dict[str, Value]
    us: float
    default_us: float
    threads: int


@dataclass
class TuningRecords:
    """Records by target, processor and subject; lookups are for one target on this processor.

    As a context manager it overrides the options of the builds inside.
    """

    records: dict[tuple[str, str, str], Record] = field(default_factory=dict)
    _tokens: list[Token[TuningRecords | None]] = field(default_factory=list, repr=False, compare=False)

    _current: ClassVar[ContextVar[TuningRecords | None]] = ContextVar("relayc_records", default=None)

    def __enter__(self) -> TuningRecords:
        self._tokens.append(TuningRecords._current.set(self))
        return self

    def __exit__(self, *exc_info: object) -> None:
        TuningRecords._current.reset(self._tokens.pop())

    @staticmethod
    def load(path: Path) -> TuningRecords:
        """The records of a file; none if there is no such file.

        Raises CompileError for one that can't be read or is damaged, unless it is the user's own: that one gives a
        warning, once, and no records.
        """
        own = path == default_records_path()
        try:
            return _parsed(path, read_private(path) if own else path.read_bytes())
        except FileNotFoundError:
            return TuningRecords()
        except OSError as error:
            fault = CompileError(f"{path}: can't read tuning records: {error.strerror or error}; mend or delete it")
        except CompileError as error:
            fault = error
        if not own:
            raise fault
        warn_once(f"no tuning records are used: {fault}")
        return TuningRecords()

    @staticmethod
    def of(records: Iterable[Record]) -> TuningRecords:
        """A collection of records; the last of each subject counts."""
        return TuningRecords({(r.target, r.cpu, r.subject): r for r in records})

    def save(self, path: Path) -> None:
        """Write the records to a file atomically, merged with those already in it.

        The user's own file is kept as ``tuning.json.damaged`` if no records can be read from it. Raises CompileError
        for another damaged file, and OSError if the file can't be written.
        """
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        from filelock import FileLock  # 7 ms, for a process that tunes

        with FileLock(f"{path}.lock"):
            found = TuningRecords.load(path).records
            if not found and path.exists():
                with suppress(OSError):
                    path.replace(f"{path}.damaged")
            known = {**found, **self.records}
            records = [asdict(record) for _, record in sorted(known.items())]
            text = json.dumps({"format": _FORMAT, "records": records}, indent=1)
            with replacing(path, durable=True, private=True) as file:
                file.write(text.encode())

    def add(self, record: Record) -> None:
        """Add a record, replacing an older one of its subject."""
        self.records[record.target, record.cpu, record.subject] = record

    def find(self, target: Target, subject: str) -> Record | None:
        """The record of a subject on this processor, if there is one."""
        return self.records.get((str(target), processor(), subject)) if self.records else None

    def config(self, target: Target, subject: str) -> Config:
        """The parameters of a kernel: those of its record, or the cost model's."""
        record = self.find(target, subject)
        return Config() if record is None else Config(record.values, record.defaults)

    def graph_config(self, target: Target) -> Config:
        """The parameters of graph passes that were found."""
        values: dict[str, Value] = {}
        defaults: dict[str, Value] = {}
        here = (str(target), processor()) if self.records else None
        for (of, on, subject), record in self.records.items():
            if (of, on) == here and subject.startswith(_GRAPH):
                values.update(record.values)
                defaults.update(record.defaults)
        return Config(values, defaults)


def graph_subject(name: str) -> str:
    """The subject of a parameter of graph passes."""
    return _GRAPH + name


def processor() -> str:
    """The name of this machine's processor."""
    return cpu().device_name or "unknown"


def default_records_path() -> Path | None:
    """The default file of `relay.tune`; None if the cache is disabled, or others may write to its folder."""
    cache = default_cache()
    return cache.tuning_records if cache is not None and is_private(cache.folder) else None


_read: dict[Path, tuple[tuple[int, int], TuningRecords]] = {}
"""The files read so far, with their modification times and sizes."""


def current_records() -> TuningRecords:
    """The records of the innermost context, those that the current `PassContext` names, or the user's own.

    Raises CompileError for a file that is named and missing or damaged.
    """
    entered = TuningRecords._current.get()
    if entered is not None:
        return entered
    option = PassContext.current().option("relay.tuning.records")
    if option == "off":
        return TuningRecords()
    path = default_records_path() if option is None else Path(option)
    if path is None:
        return TuningRecords()
    try:
        stat = path.stat()
    except OSError as error:
        if option is None:
            return TuningRecords()
        raise CompileError(f"relay.tuning.records names {path}, which can't be read: {error}") from error
    state = stat.st_mtime_ns, stat.st_size
    if path not in _read or _read[path][0] != state:
        _read[path] = state, TuningRecords.load(path)
    return _read[path][1]


def _parsed(path: Path, text: bytes) -> TuningRecords:
    """The records in the contents of a file. Raises CompileError for anything else."""
    try:
        whole = json.loads(text.decode())
        if whole["format"] != _FORMAT:
            found = f"tuning records of format {whole['format']}; expected {_FORMAT}"
            raise CompileError(f"{path}: {found}: delete it and tune again")
        return TuningRecords.of(map(_checked, whole["records"]))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise CompileError(f"{path}: no file of tuning records ({error!r}); delete it and tune again") from error


def _checked(entry: Any) -> Record:
    record = Record(**entry)
    strings, tables = (record.target, record.cpu, record.subject), (record.values, record.defaults)
    numbers = (record.us, record.default_us, record.threads)
    if (
        not all(isinstance(text, str) for text in strings)
        or not all(isinstance(table, dict) for table in tables)
        or not all(isinstance(value, int | str) for table in tables for value in table.values())
        or not all(isinstance(number, int | float) for number in numbers)
    ):
        raise TypeError(f"record of {record.subject!r} has fields of wrong types")
    return record
