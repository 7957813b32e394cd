"""Records kept in results/ stay readable, and their ids stay theirs, whatever later versions add."""

import json
import re
from pathlib import Path

import pytest

from osscl.data.benchmarks import load_bank
from osscl.errors import SpecError
from osscl.report.naming import method_name
from osscl.report.tables import markdown
from osscl.runs.record import read_record, record_to_plain
from osscl.runs.spec import spec_from_plain
from osscl.stream.build import build_stream

KEPT = sorted(
    path
    for path in (Path(__file__).parents[2] / "results").rglob("*.json")
    if path.parent.name not in ("bench", "studies")
)


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_a_kept_record_keeps_its_id(path):
    record = read_record(path)
    assert record.spec.id == record.id == path.stem


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_a_kept_record_loses_nothing_when_read(path):
    stored, again = json.loads(path.read_text()), json.loads(json.dumps(record_to_plain(read_record(path))))
    stored["made_by"].setdefault("shared_device", False)  # the first records do not say: each had its device alone
    stored["made_by"].setdefault("earlier", [])
    for step in stored["steps"]:
        step.setdefault("known", None)  # nor what looked known
        for phase in step["phases"]:
            phase.setdefault("shared", False)
    assert {key: again[key] for key in stored if key != "spec"} == {key: stored[key] for key in stored if key != "spec"}


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_a_kept_record_names_no_folder_of_the_machine_that_made_it(path):
    assert " /" not in read_record(path).made_by.command


def test_there_are_kept_records():
    assert KEPT


def test_a_run_of_a_method_elsewhere_is_shown_and_compared_like_any_other(tmp_path):
    record = read_record(KEPT[0])
    plain_record = record_to_plain(record)
    plain_record["spec"]["method"] = {"type": "replay", "rate": 0.1, "net": {"width": 3}}
    plain_record["configuration"] = "replay*"
    path = tmp_path / "replay.json"
    path.write_text(json.dumps(plain_record))
    read = read_record(path)
    assert read.spec.type == "replay" and record_to_plain(read)["spec"] == plain_record["spec"]
    assert re.fullmatch("replay [0-9a-f]{6}", method_name(read))
    assert "replay" in markdown([read, record])
    with pytest.raises(SpecError, match="unknown method type 'replay'"):
        spec_from_plain(plain_record["spec"])


@pytest.mark.parametrize("seed", [0, 5])
def test_a_recorded_stream_is_what_its_spec_makes_today(seed):
    """What a seed stands for does not change under the records: pixels, classes, and rows in their order."""
    demo = [read_record(path) for path in KEPT if path.parent.name == "demo"]
    record = next(one for one in demo if one.configuration == "ursl" and one.spec.seed == seed)
    names = record.spec.scenario.main, *record.spec.scenario.peripheral
    banks = {name: load_bank(name, Path()) for name in names}
    stream = build_stream(record.spec.scenario, banks, seed)
    assert {name: bank.content for name, bank in banks.items()} == record.content
    assert tuple(c for rows in stream.steps for c in rows.new_classes) == record.class_order
    for step, rows in zip(record.steps, stream.steps, strict=True):
        first = {(names[int(k)], int(row)) for k, row in zip(rows.sources[:8], rows.unlabeled[:8], strict=True)}
        assert first <= {*step.gate.let_in, *step.gate.kept_out}  # which name the first eight of either kind
