from __future__ import annotations

import errno
import json
import logging
from pathlib import Path

import pytest

from relayc.backend.cache import default_cache
from relayc.backend.runtime.log import warn_once
from relayc.backend.target import Target
from relayc.relay.lowering import tuning_records as records
from relayc.relay.lowering.tuning_records import (
    Record,
    TuningRecords,
    current_records,
    default_records_path,
    graph_subject,
    processor,
)
from relayc.te.errors import CompileError
from relayc.te.ir import PassContext

TARGET = Target("llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=haswell -num-cores=2")


def record(subject: str, rows: int, target: str = str(TARGET), cpu: str | None = None) -> Record:
    return Record(target, processor() if cpu is None else cpu, subject, {"rows": rows}, {"rows": 6}, 1.0, 2.0, 1)


def test_a_kernel_s_record_gives_its_config(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "tuning.json"
    TuningRecords.of([record("f", 4), record("f", 8), record("g", 2)]).save(path)
    read = TuningRecords.load(path)
    assert (read.config(TARGET, "f").values, read.config(TARGET, "f").defaults) == ({"rows": 8}, {"rows": 6})
    assert read.config(TARGET, "h").values == {} and list(path.parent.glob(".tuning*")) == []


def test_records_of_other_targets_and_processors_are_not_used() -> None:
    other = Target("llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=haswell -num-cores=4")
    known = TuningRecords.of([record("f", 4, str(other)), record("f", 4, cpu="another one")])
    assert known.config(TARGET, "f").values == {} and known.config(other, "f").values == {"rows": 4}


def test_saving_keeps_what_others_wrote_meanwhile(tmp_path: Path) -> None:
    path = tmp_path / "tuning.json"
    mine, theirs = TuningRecords.of([record("f", 4)]), TuningRecords.of([record("g", 4)])
    mine.save(path)
    theirs.save(path)
    assert {r.subject for r in TuningRecords.load(path).records.values()} == {"f", "g"}


def test_parameters_of_passes_are_gathered() -> None:
    known = TuningRecords.of([record(graph_subject("a"), 4), record("f", 8)])
    assert known.graph_config(TARGET).values == {"rows": 4} and TuningRecords().graph_config(TARGET).values == {}


def with_field(**fields: object) -> bytes:
    return json.dumps({"format": 1, "records": [{**vars(record("f", 1)), **fields}]}).encode()


DAMAGED = [
    b"", b"[]", b'"text"', b'{"format": 1}', b'{"format": 9, "records": []}', b'{"format": 1, "records": [{"cpu": 1}]}',
    b"\xff\xfe", b"[" * 100_000, with_field(values="no"), with_field(values={"rows": [4]}), with_field(us=None),
]  # fmt: skip


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    warn_once.cache_clear()
    caplog.set_level(logging.WARNING)
    return caplog


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's own file, which does not exist yet."""
    monkeypatch.setenv("RELAYC_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()
    return tmp_path / "cache" / "tuning.json"


@pytest.mark.parametrize("text", DAMAGED)
def test_a_damaged_file_is_rejected(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "tuning.json"
    path.write_bytes(text)
    with pytest.raises(CompileError, match=r"tuning.json.* tune again"):
        TuningRecords.load(path)


@pytest.mark.parametrize("text", DAMAGED)
def test_the_user_s_own_file_is_ignored_if_damaged(own: Path, text: bytes, warnings: pytest.LogCaptureFixture) -> None:
    own.write_bytes(text)
    assert current_records().records == current_records().records == TuningRecords.load(own).records == {}
    (warning,) = warnings.records
    assert str(own) in warning.getMessage() and "delete it" in warning.getMessage()
    TuningRecords.of([record("f", 4)]).save(own)
    assert [r.subject for r in current_records().records.values()] == ["f"]
    assert own.with_name("tuning.json.damaged").read_bytes() == text


def test_a_folder_in_place_of_the_file(own: Path, warnings: pytest.LogCaptureFixture) -> None:
    own.mkdir()
    assert current_records().records == {} and current_records().records == {} and len(warnings.records) == 1
    with PassContext(config={"relay.tuning.records": str(own.parent)}), pytest.raises(CompileError, match="can't read"):
        current_records()
    TuningRecords.of([record("f", 4)]).save(own)
    assert [r.subject for r in current_records().records.values()] == ["f"]


def test_an_unreadable_file(own: Path, warnings: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> bytes:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    own.write_text("{}")
    monkeypatch.setattr(records, "read_private", refuse)
    assert current_records().records == {}
    assert "Permission denied" in warnings.records[0].getMessage()


@pytest.mark.parametrize("which", ["folder", "file"])
def test_what_another_user_may_have_written_is_ignored(
    own: Path, which: str, warnings: pytest.LogCaptureFixture
) -> None:
    TuningRecords.of([record("f", 4)]).save(own)
    (own.parent if which == "folder" else own).chmod(0o666 | 0o100)
    assert current_records().records == {} and current_records().records == {}
    assert len(warnings.records) == 1 and "may be written by group or others" in warnings.records[0].getMessage()
    assert default_records_path() == (None if which == "folder" else own)
    with PassContext(config={"relay.tuning.records": "off"}):
        assert current_records().records == {} and len(warnings.records) == 1


def test_builds_read_the_file_named_else_the_user_s_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert default_cache() is None and default_records_path() is None and not current_records().records
    named, own = tmp_path / "named.json", tmp_path / "cache" / "tuning.json"
    TuningRecords.of([record("named", 4)]).save(named)
    TuningRecords.of([record("own", 4)]).save(own)
    monkeypatch.setenv("RELAYC_CACHE_DIR", str(own.parent))

    def subjects() -> list[str]:
        return [r.subject for r in current_records().records.values()]

    assert subjects() == ["own"]
    with PassContext(config={"relay.tuning.records": str(named)}):
        assert subjects() == ["named"]
        with TuningRecords():
            assert subjects() == []
    with PassContext(config={"relay.tuning.records": "off"}):
        assert subjects() == []
    with PassContext(config={"relay.tuning.records": str(tmp_path / "none.json")}), pytest.raises(CompileError):
        subjects()
    TuningRecords.of([record("later", 4)]).save(own)
    assert subjects() == ["later", "own"] or subjects() == ["own", "later"]
    assert str(own) in {str(path) for path in records._read}
