"""The main results: a row per setting and method, the controls beside their methods, and what is kept in megabytes."""

from dataclasses import replace
from pathlib import Path

from osscl.methods.base import PAPER
from osscl.paper.plan import known_records
from osscl.paper.tables import MAIN
from osscl.report.paper_comparison import main_results, megabytes_kept

RECORDS = known_records([Path(__file__).parents[2] / "results" / "h200"])[0]


def rows_of(records):
    table = main_results(MAIN, records, PAPER, [0, 1, 2])
    names = [column.name for column in table.columns]
    return {row[:2]: dict(zip(names, row, strict=True)) for row in table.rows}


def test_unrecorded_cells_are_missing_and_one_seed_is_shown_as_one():
    rows = rows_of(RECORDS)
    assert str(rows["cifar100-p05", "ursl"]["ours"]).endswith("(n=1)")
    assert ("cifar100-p05", "ursl-plus") not in rows  # recorded runs keep more than the memory's bytes
    assert rows["cifar100-p10", "ursl"]["ours"] is None  # the paper has a number
    assert rows["cifar100-p05", "ursl-plus-unlimited"]["ours"].value > 0
    assert all(rows[row]["paper"] is None for row in rows if row[1].startswith("ursl-plus"))
    assert str(rows["cifar10-p01", "ursl"]["paper"]) == "58.2 ± 0.8"


def test_our_head_on_another_methods_network_is_a_separate_row():
    (id,) = [cell.spec(PAPER, 0).id for cell in MAIN.cells if cell.name == "cifar100-p05/dm"]
    dm = replace(RECORDS[id], other_heads={"our head": 31.5}, memory_bytes=1_536_000)
    rows = rows_of({**RECORDS, id: dm})
    assert rows["cifar100-p05", "dm"]["ours"].value == dm.final != 31.5
    assert rows["cifar100-p05", "dm + our head"]["ours"].value == 31.5
    assert rows["cifar100-p05", "dm + our head"]["paper"] is None
    assert ("cifar100-p05", "gd + our head") not in rows


def test_cells_with_neither_our_number_nor_the_papers_are_named_below_the_table():
    (note,) = [note for note in main_results(MAIN, RECORDS, PAPER, [0, 1, 2]).notes if note.startswith("Not run yet: ")]
    assert "gd + our head (cifar100-p05)" in note
    assert "ursl-plus (cifar100-p05, cifar100-p10, cifar10-p01, cifar10-p10)" in note and "; ursl (" not in note


def test_kept_is_a_mean_in_megabytes_only_where_every_record_says_so():
    record = next(iter(RECORDS.values()))
    some = [replace(record, memory_bytes=count) for count in (1_000_000, 2_000_000)]
    assert str(megabytes_kept(some)) == "1.50 MB"
    assert megabytes_kept([*some, replace(record, memory_bytes=None)]) is None and megabytes_kept([]) is None
