"""`osscl report` and the report of the demo: what is written, what is refused, what is left alone."""

import json
import shutil
from pathlib import Path

import pytest

from osscl.errors import DataError, SpecError, UserError
from refusals import UsageError, refusal_of

RESULTS = Path(__file__).parents[2] / "results"


@pytest.fixture
def osscl(typed):
    return typed


@pytest.fixture
def refused(osscl):
    return refusal_of(osscl, after_notices=True)


def test_the_report_of_the_recorded_runs_is_one_file(osscl, tmp_path):
    code, shown, problems = osscl("report", RESULTS)
    assert (code, problems) == (0, "") and "Wrote report.html: " in shown
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")


def test_what_cannot_be_reported_is_refused_in_one_line(refused, tmp_path):
    (tmp_path / "empty").mkdir()
    refused("report", "nowhere", error=UserError, about="nowhere")
    (tmp_path / "report.html").write_text("mine")
    refused("report", "nowhere", error=UserError, about="nowhere")  # that one exists is told of folders that do
    (tmp_path / "report.html").unlink()
    refused("report", "empty", error=UserError, about="empty")
    refused("report", RESULTS, "--format", "pdf", error=SpecError, about=["pdf", "html", "markdown", "csv", "latex"])
    refused("report", error=UsageError, about="DIR|FILE")
    refused("report", RESULTS, "--out", "/proc/report.html", error=UserError, about="/proc/report.html")
    refused("report", RESULTS, "--out", "empty", "--force", error=UserError, about=["empty", "--out"])
    assert not list(tmp_path.glob("*.html"))


def test_a_users_file_is_overwritten_only_on_request(osscl, refused, tmp_path):
    (tmp_path / "mine.html").write_text("mine")
    refused("report", RESULTS, "--out", "mine.html", error=UserError, about=["mine.html", "--out", "--force"])
    assert (tmp_path / "mine.html").read_text() == "mine"
    assert osscl("report", RESULTS, "--out", "mine.html", "--force")[0] == 0
    assert (tmp_path / "mine.html").read_text() != "mine"


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b"\xff", b'{"format": "osscl record 1"}'])
def test_a_damaged_record_is_named_and_left_alone(osscl, tmp_path, damage):
    shutil.copytree(RESULTS / "h200", tmp_path / "runs")
    (spoiled, *others) = sorted((tmp_path / "runs").glob("*.json"))
    spoiled.write_bytes(damage)
    code, shown, problems = osscl("report", "runs", "--format", "csv")
    assert code == 0 and len(shown.splitlines()) == 1 + len(others)
    assert problems.startswith("skipped: ") and spoiled.name in problems and problems.count("\n") == 1
    assert spoiled.read_bytes() == damage


def test_a_record_that_does_not_fit_together_is_named(refused, tmp_path):
    kept = next((RESULTS / "h200").glob("*.json"))
    data = json.loads(kept.read_text())
    (tmp_path / "one.json").write_text(json.dumps({**data, "overall": data["overall"][1:]}))
    problem = refused("report", "one.json", error=DataError, about=["one.json", "overall"])
    assert problem.count("\n") == 1
    (tmp_path / "empty").mkdir()
    shown = refused("report", "one.json", "empty", error=UserError, about=["one.json", "empty"])
    assert shown.startswith(f"skipped: {problem.removeprefix('osscl: ')}")


def test_the_same_run_counts_once(osscl):
    once = osscl("report", RESULTS, "--format", "markdown")
    assert osscl("report", RESULTS, RESULTS / "h200", "--format", "md") == once


@pytest.mark.parametrize(
    ("form", "begin"),
    [
        ("markdown", "| setting |"),
        ("md", "| setting |"),
        ("csv", "setting,"),
        ("latex", r"\begin{tabular}"),
    ],
)
def test_tables_are_printed_or_written(osscl, tmp_path, form, begin):
    code, shown, _ = osscl("report", RESULTS, "--format", form)
    assert code == 0 and shown.startswith(begin) and "ursl-plus" in shown
    assert osscl("report", RESULTS, "--format", form, "--out", "tables.txt")[0] == 0
    assert (tmp_path / "tables.txt").read_text() == shown


def test_the_help_says_which_table_is_printed(osscl):
    shown = " ".join(osscl("report", "--help")[1].replace("│", " ").split())
    assert "latex: its headline table" in shown and "osscl table" in shown


def test_a_watched_report_follows_the_records_and_ends_as_a_plain_page(osscl, monkeypatch, tmp_path):
    (tmp_path / "runs").mkdir()
    page, files, seen = tmp_path / "report.html", sorted((RESULTS / "demo").glob("*.json")), []

    def pause(_):
        seen.append(page.read_text().count('osscl-refresh" content') if page.exists() else None)
        if len(seen) > 3:
            raise KeyboardInterrupt
        shutil.copy(files[len(seen)], tmp_path / "runs")

    monkeypatch.setattr("osscl.cli.report.time.sleep", pause)
    code, shown, _ = osscl("report", "runs", "--watch")
    assert code == 0 and seen == [None, 1, 1, 1] and page.read_text().count('osscl-refresh" content') == 0
    assert shown.startswith("Waiting for the first record") and shown.count("Wrote report.html") == 4


def test_only_a_page_can_be_watched(refused):
    refused("report", RESULTS, "--watch", "--format", "csv", error=UserError, about=["--watch", "--format html"])


def test_the_demo_ends_with_its_report_and_spares_other_files(osscl, tmp_path):
    code, shown, _ = osscl("demo", "--smallest", "--out", "runs")
    page = tmp_path / "runs" / "report.html"
    assert code == 0 and "runs/report.html (open" in shown
    assert page.stat().st_size < 500_000
    assert "The paper&#39;s tables and claims are left out: these runs are on the demo&#39;s data" in page.read_text()
    assert "data:image/png;base64," in page.read_text()  # digits and letters are always at hand
    page.write_text(page.read_text().replace("Digits among letters", "An older page"))
    assert osscl("demo", "--smallest", "--out", "runs")[0] == 0  # the runs are finished; the page is the demo's own
    assert "An older page" not in page.read_text()
    page.write_text("mine")
    code, shown, _ = osscl("demo", "--smallest", "--out", "runs")
    assert code == 0 and "not written: runs/report.html exists" in shown
    assert page.read_text() == "mine"
