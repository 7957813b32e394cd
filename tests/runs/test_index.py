"""The index of records gives what the files hold, whatever happens to it, and never outlives a change of a file."""

import multiprocessing
import os
import pickle
import signal
import sqlite3
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from osscl.errors import DataError
from osscl.runs import index, kept
from osscl.runs.index import read_records
from osscl.runs.record import read_record, write_record
from osscl.runs.spec import with_seed

KEPT = sorted((Path(__file__).parents[2] / "results" / "demo").glob("*.json"))
GATED = next(record for record in map(read_record, KEPT) if record.steps[0].gate)


def written(folder, seeds):
    for seed in seeds:
        spec = with_seed(GATED.spec, seed)
        file = folder / f"{spec.id}.json"
        write_record(replace(GATED, spec=spec, id=spec.id), file)
        os.utime(file, (1, 1))  # long ago
    return sorted(folder.glob("*.json"))


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.setenv("OSSCL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(kept, "MANY", 1)
    return written(tmp_path / "runs", range(4))


def found(files):
    return dict(index.read_files(files))


def test_an_indexed_record_equals_the_one_that_is_parsed(files, monkeypatch):
    first = found(files)
    with monkeypatch.context() as patched:
        patched.setattr(index, "read_record", None)  # must not be needed
        second = found(files)
    for path in files:
        assert first[path] == second[path] == read_record(path)
        assert second[path].spec.id == first[path].spec.id and second[path].minutes == first[path].minutes
        assert pickle.loads(pickle.dumps(second[path])) == first[path]
    with pytest.raises(AttributeError):
        _ = second[files[0]].no_such_field


def test_a_changed_file_is_parsed_again_even_with_its_old_size_and_time(files):
    found(files)
    before, size = read_record(files[1]), files[1].stat().st_size
    made_by = replace(before.made_by, device=before.made_by.device.swapcase())
    write_record(replace(before, made_by=made_by), files[1])
    assert files[1].stat().st_size == size
    os.utime(files[1], (1, 1))
    files[2].write_text("{")
    files[3].unlink()
    now = found(files)
    assert now[files[1]].made_by == made_by
    assert isinstance(now[files[2]], DataError) and isinstance(now[files[3]], DataError)


def test_a_file_written_a_moment_ago_is_not_indexed(files):
    os.utime(files[0], (time.time(), time.time()))
    found(files)
    with sqlite3.connect(kept.index_file()) as database:
        assert database.execute("SELECT count(*) FROM records").fetchone() == (3,)


@pytest.mark.parametrize("damage", ["flips", "cut", "text", "other table", "folder"])
def test_a_damaged_index_changes_no_record(files, damage):
    expected = found(files)
    file = kept.index_file()
    content = bytearray(file.read_bytes())
    for place in range(0, len(content), 97) if damage == "flips" else ():
        content[place] ^= 4
    file.unlink()
    if damage == "folder":
        file.mkdir()
    elif damage == "other table":
        with sqlite3.connect(file) as database:
            database.execute("CREATE TABLE records (other INTEGER)")
    else:
        file.write_bytes({"flips": content, "cut": content[:5000], "text": b"no database"}[damage])
    for _ in range(2):
        assert found(files) == expected


def test_single_flipped_bytes_of_an_index_change_no_record(files):
    expected = found(files)
    file = kept.index_file()
    content = file.read_bytes()
    for place in range(50, len(content), len(content) // 60):
        file.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        assert found(files) == expected


def _read_often(folder, times):
    for _ in range(times):
        records, problems = read_records(folder)
        assert not problems and len(records) >= 4


def test_several_processes_write_and_read_records_at_once(files):
    folder = files[0].parent
    context = multiprocessing.get_context("fork")
    readers = [context.Process(target=_read_often, args=(folder, 10)) for _ in range(2)]
    writers = [context.Process(target=written, args=(folder, range(first, first + 8))) for first in (10, 20)]
    for process in readers + writers:
        process.start()
    for process in readers + writers:
        process.join(60)
    assert [process.exitcode for process in readers + writers] == [0] * 4
    records, problems = read_records(folder)
    assert len(records) == 20 and not problems
    assert read_records(folder)[0] == records == [read_record(file) for file in sorted(folder.glob("*.json"))]


def _killed_while_writing(files, moment):
    """Index the files, and die before the given statement of the transaction."""

    class Dying(sqlite3.Connection):
        def executemany(self, statement, rows):
            if statement.startswith(moment):
                super().executemany(statement, list(rows)[:2] if moment == "INSERT" else rows)
                os.kill(os.getpid(), signal.SIGKILL)
            return super().executemany(statement, rows)

    connect = sqlite3.connect
    sqlite3.connect = lambda file, **options: connect(file, factory=Dying, **options)
    found(files)


@pytest.mark.parametrize("moment", ["DELETE", "INSERT"])
@pytest.mark.parametrize("begun", [False, True])
def test_a_writer_that_is_killed_leaves_an_index_that_works(files, moment, begun):
    if begun:
        found(files[:2])
    process = multiprocessing.get_context("fork").Process(target=_killed_while_writing, args=(files, moment))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    expected = {file: read_record(file) for file in files}
    assert found(files) == expected
    with sqlite3.connect(kept.index_file()) as database:
        assert database.execute("SELECT count(*) FROM records").fetchone() == (4,)
    assert found(files) == expected


@pytest.mark.parametrize("begun", [False, True])
def test_a_locked_index_only_costs_time(files, monkeypatch, begun):
    monkeypatch.setattr(kept, "PATIENCE", 0.1)
    if begun:
        found(files[:2])
    file = kept.index_file()
    file.parent.mkdir(exist_ok=True)
    database = sqlite3.connect(file, isolation_level=None)
    database.execute("BEGIN EXCLUSIVE")
    assert found(files) == {one: read_record(one) for one in files}
    database.execute("ROLLBACK")
    database.close()
    assert found(files) == {one: read_record(one) for one in files}
    with sqlite3.connect(file) as database:
        assert database.execute("SELECT count(*) FROM records").fetchone() == (4,)


def test_an_index_that_cannot_be_written_only_costs_time(files, monkeypatch):
    place = kept.index_file().parent
    place.parent.mkdir(exist_ok=True)
    place.write_text("a file where the folder should be")
    assert found(files) == {one: read_record(one) for one in files}
    assert place.read_text().startswith("a file")


def test_an_answer_is_kept_until_the_question_or_a_file_changes(files, tmp_path):
    def ask(question="how many", about=files):
        return kept.KeptAnswer(question, about).get()

    assert ask() is None
    kept.KeptAnswer("how many", files).put("four")
    assert ask() == "four" and ask("how few") is None and ask(about=files[:3]) is None
    found(files)  # writes another table of the same file
    assert ask() == "four"
    os.utime(files[2], (2, 2))
    assert ask() is None
    os.utime(files[2], (1, 1))
    assert ask() is None  # the time of the change is another one
    kept.KeptAnswer("how many", files).put("four again")
    assert ask() == "four again"
    files[2].unlink()
    kept.KeptAnswer("how many", files).put("three?")  # a file of which nothing is known any more
    assert ask() is None


def test_an_answer_is_not_kept_if_a_file_changes_while_it_is_made(files):
    asked = kept.KeptAnswer("how many", files)
    os.utime(files[0], (2, 2))
    asked.put("four")
    os.utime(files[1], (time.time(), time.time()))
    kept.KeptAnswer("how many", files).put("four")  # written a moment ago
    assert kept.KeptAnswer("how many", files).get() is None


def test_a_file_that_vanishes_before_it_is_checked_is_not_kept(files, monkeypatch):
    asked, entries = kept.KeptAnswer("how many", files), kept.Kept("listed", files)
    stamp, still = kept.stamp_of(files[0]), kept.stamp_of

    def removed_afterwards(path):
        found = still(path)
        path.unlink(missing_ok=True)
        return found

    monkeypatch.setattr(kept, "stamp_of", removed_afterwards)
    asked.put("four")
    monkeypatch.setattr(kept, "stamp_of", still)
    entries.add(files[0], stamp, "text")
    assert entries.get(files[0]) is None
    monkeypatch.setattr(kept, "_is_settled", lambda path: True)
    entries.add(files[0], stamp, "text")
    entries.write()
    assert not kept.index_file().exists()


def test_a_damaged_answer_is_not_given(files):
    kept.KeptAnswer("how many", files).put("four")
    with sqlite3.connect(kept.index_file()) as database:
        database.execute("UPDATE answers SET text = 'five'")
    database.close()
    assert kept.KeptAnswer("how many", files).get() is None


def test_table_list_answers_from_the_index_without_torch_and_notices_a_record(tmp_path, monkeypatch):
    monkeypatch.setenv("OSSCL_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "records"
    for source in sorted((Path(__file__).parents[2] / "results" / "h200").glob("ursl-*.json"))[:3]:
        folder.mkdir(exist_ok=True)
        (folder / source.name).write_bytes(source.read_bytes())
        os.utime(folder / source.name, (1, 1))
    code = "from osscl.runs import kept; kept.MANY = 1; import sys; from osscl.cli import main; import atexit; "
    code += "atexit.register(lambda: print('torch' in sys.modules, file=sys.stderr)); main()"

    def listed(*more):
        told = [sys.executable, "-c", code, "table", "list", "--results", str(folder), "--seeds", "0", *more]
        done = subprocess.run(told, cwd=tmp_path, capture_output=True, text=True, check=True)
        return done.stdout, done.stderr.splitlines()[-1]

    first, again = listed(), listed()
    assert first[0] == again[0] and (first[1], again[1]) == ("True", "False")
    assert listed("--schedule", "short")[0] != first[0]
    some = next(folder.iterdir())
    some.rename(tmp_path / "away.json")
    fewer = listed()
    assert fewer[1] == "True" and fewer[0] != first[0]
    (folder / some.name).write_text("{")
    os.utime(folder / some.name, (1, 1))
    assert [listed()[1] for _ in range(2)] == ["True", "True"]  # a damaged record is named every time
