"""Records in results/ stay readable and keep their ids when later versions add fields."""

import errno
import json
import os
import re
from pathlib import Path

import pytest

from osscl.data.benchmarks import load_bank
from osscl.errors import DataError, SpecError
from osscl.report.chapters import headline_table
from osscl.report.formats import to_markdown
from osscl.report.naming import method_label
from osscl.runs.record import read_record, record_to_plain, write_record
from osscl.runs.spec import spec_from_plain
from osscl.stream.build import build_stream
from refusals import naming

KEPT = sorted(
    path
    for path in (Path(__file__).parents[2] / "results").rglob("*.json")
    if path.parent.name not in ("bench", "studies")
)


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_a_kept_record_keeps_its_id_and_names_no_folder(path):
    record = read_record(path)
    assert record.spec.id == record.id == path.stem
    assert " /" not in record.made_by.command  # no folder of the machine that made it


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_a_kept_record_loses_nothing_when_read(path):
    stored, again = json.loads(path.read_text()), json.loads(json.dumps(record_to_plain(read_record(path))))
    stored.pop("digest", None)  # verified on reading; version 0.1 wrote none
    # Fields that were added later.
    stored["made_by"] = {"shared_device": False, "earlier": [], **stored["made_by"]}
    for step in stored["steps"]:
        step.setdefault("known", None)
        for judged in ("gate", "known"):
            if step[judged] is not None:
                step[judged].setdefault("fpr95_unknown", None)
        step["phases"] = [{"shared": False, **phase} for phase in step["phases"]]
    assert {key: again[key] for key in stored if key != "spec"} == {key: stored[key] for key in stored if key != "spec"}


def test_there_are_kept_records_and_old_ones_lack_fpr95_of_unknown_images():
    gates = [step.gate for step in read_record(KEPT[0]).steps if step.gate is not None]
    assert all(gate.fpr95_unknown is None for gate in gates)


def test_a_run_of_a_users_method_is_shown_and_compared_like_any_other(typed, tmp_path):
    record = read_record(KEPT[0])
    plain_record = record_to_plain(record)
    plain_record["spec"]["method"] = {"type": "replay", "rate": 0.1, "net": {"width": 3}}
    plain_record["configuration"] = "replay*"
    path = tmp_path / "replay.json"
    path.write_text(json.dumps(plain_record))
    read = read_record(path)
    assert read.spec.type == "replay" and record_to_plain(read)["spec"] == plain_record["spec"]
    assert re.fullmatch("replay [0-9a-f]{6}", str(method_label(read)))
    assert "replay" in to_markdown(headline_table([read, record]))
    note = "A hash after a name"
    assert note in typed("runs", tmp_path)[1] and note not in typed("runs", KEPT[0].parent)[1]
    with pytest.raises(SpecError, match=naming("type", "replay")):
        spec_from_plain(plain_record["spec"])


def _edited(record, path, change):
    """The record with one value replaced or removed; `path` leads to it."""
    changed = json.loads(json.dumps(record_to_plain(record)))
    *above, last = path
    place = changed
    for key in above:
        place = place[key]
    place[last] = change(place[last])
    return changed


CONTRADICTIONS = [
    (("id",), lambda value: value[:-1] + ("0" if value[-1] != "0" else "1")),
    (("spec", "seed"), lambda value: value + 1),
    (("final",), lambda value: value + 1),
    (("average",), lambda value: value - 1),
    (("average",), lambda value: None),
    (("forgetting",), lambda value: -value - 1),
    (("backward_transfer",), lambda value: value + 0.01),
    (("overall", 0), lambda value: 100.5),
    (("overall", 1), lambda value: value / 2),
    (("accuracy", 1, 0), lambda value: -1.0),
    (("accuracy", -1, 0), lambda value: 100 - value),
    (("accuracy", 1, 1), lambda value: value / 2),
    (("confusion", 0, 0), lambda value: value + 1),
    (("confusion", 0), lambda row: [row[1], row[0], *row[2:]]),
    (("confusion", 0), lambda row: [-1, row[0] + 1 + row[1], *row[2:]]),
    (("evaluated_rows",), lambda value: value + 1),
    (("evaluated_on",), lambda value: "validation"),
    (("overall",), lambda overall: overall[:-1]),
    (("accuracy",), lambda accuracy: accuracy[::-1]),
    (("confusion",), lambda confusion: confusion[1:]),
    (("class_order",), lambda order: order[1:]),
    (("class_order", 0), lambda value: 99),
    (("class_order",), lambda order: [order[1], *order[1:]]),
    (("steps", 0, "new_classes", 0), lambda value: 99),
    (("content",), lambda value: {}),
    (("steps", 1, "labeled"), lambda value: -1),
    (("steps", 1, "unlabeled"), lambda value: value + 1),
    (("steps", 1, "phases", 0, "seconds"), lambda value: -1.0),
    (("steps", 1, "gate", "recall"), lambda value: 1.5),
    (("steps", 1, "gate", "auroc_seen"), lambda value: -0.1),
    (("steps", 1, "gate", "pass_rates", "foreign"), lambda value: 2.0),
    (("steps", 1, "gate", "passed"), lambda value: -1),
    (("steps", 1, "gate", "pseudo_labeled"), lambda value: 10**9),
    (("steps", 1, "gate", "histograms", "seen", 3), lambda value: value + 1),
    (("steps", 1, "known", "auroc"), lambda value: 7.0),
    (("made_by", "seconds"), lambda value: -1.0),
    (("made_by", "sessions"), lambda value: 0),
]


@pytest.mark.parametrize(
    ("path", "change"), CONTRADICTIONS, ids=[f"{i}-{case[0][-1]}" for i, case in enumerate(CONTRADICTIONS)]
)
def test_a_record_that_contradicts_itself_is_refused_in_one_line(path, change, tmp_path):
    record = next(one for one in map(read_record, KEPT) if one.steps[1].gate and one.steps[1].known)
    file = tmp_path / "edited.json"
    file.write_text(json.dumps(_edited(record, path, change)))
    with pytest.raises(DataError, match=naming(file)) as refused:
        read_record(file)
    assert "\n" not in str(refused.value)


def test_a_record_of_a_users_method_is_checked_but_for_the_hash_in_its_id(tmp_path):
    record, file = read_record(KEPT[0]), tmp_path / "replay.json"
    written = record_to_plain(record)
    written["spec"]["method"] = {"type": "replay", "rate": 0.1}
    file.write_text(json.dumps(written))
    assert read_record(file).spec.type == "replay"
    for field, value in {"id": record.id.replace("-s0-", "-s1-"), "final": record.final + 1}.items():
        file.write_text(json.dumps({**written, field: value}))
        with pytest.raises(DataError):
            read_record(file)


def test_a_record_is_read_from_the_folder_of_its_run(tmp_path, monkeypatch):
    record = read_record(KEPT[0])
    folder = tmp_path / record.id
    write_record(record, folder / f"{record.id}.json")
    (tmp_path / "linked").symlink_to(folder)
    monkeypatch.chdir(folder)
    assert (
        read_record(folder)
        == read_record(str(folder))
        == read_record(tmp_path / "linked")
        == read_record(".")
        == record
    )
    with pytest.raises(DataError, match=naming(tmp_path / f"{tmp_path.name}.json", os.strerror(errno.ENOENT))):
        read_record(tmp_path)


@pytest.mark.parametrize("seed", [0, 5])
def test_a_recorded_stream_is_what_its_spec_makes_today(seed):
    """A seed still gives the same pixels, classes and order of rows."""
    demo = [read_record(path) for path in KEPT if path.parent.name == "demo"]
    record = next(one for one in demo if one.configuration == "ursl" and one.spec.seed == seed)
    names = record.spec.scenario.main, *record.spec.scenario.peripheral
    banks = {name: load_bank(name, Path()) for name in names}
    stream = build_stream(record.spec.scenario, banks, seed)
    assert {name: bank.content for name, bank in banks.items()} == record.content
    assert tuple(c for rows in stream.steps for c in rows.new_classes) == record.class_order
    for step, rows in zip(record.steps, stream.steps, strict=True):
        first = {(names[int(k)], int(row)) for k, row in zip(rows.sources[:8], rows.unlabeled[:8], strict=True)}
        assert first <= {*step.gate.let_in, *step.gate.kept_out}  # the first eight of each kind


def test_a_refusal_stays_short_however_long_a_value_is(tmp_path):
    data = record_to_plain(read_record(KEPT[0]))
    data["spec"]["schedule"] |= {"name": "a" * 5000}
    file = tmp_path / "record.json"
    file.write_text(json.dumps(data))
    with pytest.raises(DataError) as error:
        read_record(file)
    assert len(str(error.value)) < 1000
