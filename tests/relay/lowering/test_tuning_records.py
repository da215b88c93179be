from __future__ import annotations

import json
from pathlib import Path

import pytest

from relayc.backend.cache import default_cache
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


@pytest.mark.parametrize(
    "text", ["", "[]", '{"format": 1}', '{"format": 9, "records": []}', '{"format": 1, "records": [{"cpu": 1}]}',
             json.dumps({"format": 1, "records": [{**vars(record("f", 1)), "values": "no"}]})]
)  # fmt: skip
def test_a_damaged_file_is_rejected(tmp_path: Path, text: str) -> None:
    path = tmp_path / "tuning.json"
    path.write_text(text)
    with pytest.raises(CompileError, match=r"tuning.json.* tune again"):
        TuningRecords.load(path)


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
