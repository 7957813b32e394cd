"""Sorting: known pictures by class, unknown ones in groups; nothing is moved, lost or overwritten."""

import csv
import os
import re
import time
from base64 import b64decode
from dataclasses import replace
from io import BytesIO
from pathlib import Path, PurePosixPath
from urllib.parse import unquote

import numpy as np
import pytest
from PIL import Image

from osscl.agent.sorting import (
    MOST_SHOWN,
    ShownPicture,
    SortedPicture,
    _without_clashes,
    as_folder_name,
    class_folder_names,
    contact_sheet,
    place_pictures,
    rank,
)
from osscl.data.benchmarks import load_bank
from osscl.errors import DataError, UserError
from osscl.storage import new_folder
from refusals import naming

GREY = ["--size", "8", "--grey", "--device", "cpu", "--memory", "20", "--augmentation", "glyphs"]


def test_clashing_names_get_a_number():
    cat, dog = PurePosixPath("cat"), PurePosixPath("dog")
    names = ["a.png", "A.png", "a.png", "a-2.png", ".hidden", ".hidden"]
    found = _without_clashes([cat, cat, dog, cat, cat, cat], names)
    assert found == ["a.png", "A-2.png", "a.png", "a-2-2.png", ".hidden", ".hidden-2"]
    longest = "é" * 125 + ".jpg"  # 254 bytes
    again = _without_clashes([cat, cat], [longest, longest])[1]
    assert again.endswith("é-2.jpg") and len(again.encode()) <= 255


def test_any_class_name_becomes_a_distinct_folder():
    assert as_folder_name("a/b\\c") == "a_b_c" and as_folder_name("..") == "_.." and as_folder_name(" ") == "_"
    assert class_folder_names(["cat"]) == {"cat": "cat", None: "unknown"}
    odd = ["a/b", "a:b", "Unknown", "index.html", "²"]
    assert [*class_folder_names(odd).values()] == ["a_b", "a_b-2", "Unknown", "index.html-2", "²", "unknown-2"]


def test_a_contact_sheet_escapes_text_and_limits_pictures():
    path = PurePosixPath("a&b", "<x> #1.png")
    picture = ShownPicture(path, "<i>", '"', Path("nowhere"))
    page = contact_sheet("Q&A", ["a < b"], {"a&b": [picture] * (MOST_SHOWN + 1)}, {"a&b": MOST_SHOWN + 1})
    assert "<i>" not in page and "a &lt; b" in page and "Q&amp;A" in page and f"the first {MOST_SHOWN} shown" in page
    assert 'src="a%26b/%3Cx%3E%20%231.png"' in page and page.count("<img") == MOST_SHOWN


@pytest.mark.parametrize("name", ["a.ppm", "a.tiff", "a.png", "16bit.png"])
def test_thumbnails_show_every_format(tmp_path, name):
    if name.startswith("16"):
        Image.fromarray(np.full((40, 60), 30000, np.uint16)).save(tmp_path / name)
    else:
        Image.new("RGB", (60, 40), "red").save(tmp_path / name)
    thumbnail = ShownPicture(PurePosixPath(name), "", "", tmp_path / name).thumbnail
    shown = Image.open(BytesIO(b64decode(thumbnail.partition(",")[2])))
    assert shown.format == "JPEG" and shown.size == (128, 128)


def test_many_equal_names_are_numbered_in_linear_time():
    started = time.monotonic()
    names = _without_clashes([PurePosixPath("cat")] * 50_000, ["a.png"] * 50_000)
    assert len({*names}) == 50_000 and time.monotonic() - started < 20


@pytest.fixture(scope="module")
def shelf(tmp_path_factory):
    """An agent that has learned two digits, and a folder of pictures of four, some in folders below."""
    from typer.testing import CliRunner

    from osscl.cli import app

    place, digits = tmp_path_factory.mktemp("shelf"), load_bank("digits")
    for part, classes, rows in (("week1", (0, 1), slice(8)), ("pile", range(4), slice(8, 40))):
        for c in classes:
            folder = place / part / str(c)
            folder.mkdir(parents=True)
            found = digits.train.images[digits.train.labels == c][rows]
            for i, image in enumerate(found):
                Image.fromarray(image[0].numpy()).save(folder / f"{i}.png")
    changes = [
        "--set",
        "reference.min_updates=0",
        "--set",
        "reference.epochs_first=8",
        "--set",
        "learner.min_updates=40",
    ]
    taught = ["fit", place / "agent", "--labeled", place / "week1", "--unlabeled", place / "pile", "--schedule", "demo"]
    result = CliRunner().invoke(app, [str(word) for word in [*taught, *changes, *GREY]])
    assert result.exit_code == 0, result.output
    return place


def test_every_picture_is_copied_once_and_none_is_moved(typed, shelf, tmp_path):
    before = {path: path.read_bytes() for path in (shelf / "pile").rglob("*.png")}
    into = tmp_path / "sorted"
    code, shown, _ = typed("sort", shelf / "agent", shelf / "pile", "--into", into, "--device", "cpu")
    assert code == 0 and "unknown/group-1" in shown and "open:" in shown and "osscl update" in shown
    assert {path: path.read_bytes() for path in (shelf / "pile").rglob("*.png")} == before
    copies = sorted(path.read_bytes() for path in into.rglob("*.png"))
    assert copies == sorted(before.values())
    rows = list(csv.DictReader((into / "sorted.csv").open()))
    assert {row["file"] for row in rows} == {str(path) for path in before}
    for row in rows:
        assert (into / row["sorted_as"]).read_bytes() == before[Path(row["file"])]
        assert row["sorted_as"].startswith("unknown/group-" if row["looks_known"] == "false" else f"{row['class']}/")


def test_unlearned_classes_are_mostly_unknown_and_grouped(typed, shelf, tmp_path):
    into = tmp_path / "sorted"
    typed("sort", shelf / "agent", shelf / "pile", "--into", into, "--groups", "2", "--device", "cpu")
    rows = list(csv.DictReader((into / "sorted.csv").open()))
    of_digit = {c: [row for row in rows if Path(row["file"]).parent.name == c] for c in "0123"}
    unknown = {c: sum(row["looks_known"] == "false" for row in found) / len(found) for c, found in of_digit.items()}
    assert min(unknown["2"], unknown["3"]) > max(unknown["0"], unknown["1"])
    fullest = {c: max(sum(f"group-{g}/" in row["sorted_as"] for row in of_digit[c]) for g in (1, 2)) for c in "23"}
    assert all(fullest[c] > 0.7 * unknown[c] * len(of_digit[c]) for c in "23")


def test_the_page_shows_existing_files(typed, shelf, tmp_path):
    into = tmp_path / "sorted"
    typed("sort", shelf / "agent", shelf / "pile" / "2", "--into", into, "--link", "--device", "cpu")
    page = (into / "index.html").read_text()
    addresses = re.findall(r'href="(.*?)"', page)
    assert len(addresses) == 32 and all((into / unquote(address)).is_file() for address in addresses)
    assert page.count("data:image/jpeg;base64,") == 32
    assert all(path.is_symlink() for path in into.rglob("*.png"))


def test_methods_without_a_known_score_sort_by_class(typed, shelf, tmp_path):
    typed("fit", tmp_path / "icarl", "--labeled", shelf / "week1", "--method", "icarl", "--schedule", "smoke", *GREY)
    typed("sort", tmp_path / "icarl", shelf / "pile", "--into", tmp_path / "sorted", "--device", "cpu")
    assert {path.name for path in (tmp_path / "sorted").iterdir() if path.is_dir()} <= {"0", "1"}
    assert "does not detect unknown pictures" in (tmp_path / "sorted" / "index.html").read_text()


def test_wrong_calls_are_refused_and_write_nothing(refuses, shelf, tmp_path):
    pile = shelf / "pile"
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    sort, new = ("sort", shelf / "agent", pile, "--into"), tmp_path / "new"
    for taken in (tmp_path / "full", tmp_path / "full" / "mine.txt"):
        refuses(*sort, taken, error=UserError, about=taken)
    refuses("sort", shelf / "agent", tmp_path / "no", "--into", new, error=DataError, about=tmp_path / "no")
    refuses("sort", shelf, pile, "--into", new, error=DataError, about=shelf)
    refuses(*sort, new, "--threshold", "nan", error=UserError, about="--threshold")
    for given in (pile, shelf / "agent"):
        refuses(*sort, given / "sorted", error=UserError, about=[given / "sorted", given])
    assert not (pile / "sorted").exists() and not (shelf / "agent" / "sorted").exists()
    assert not (tmp_path / "new").exists() and (tmp_path / "full" / "mine.txt").read_text() == "mine"


def test_missing_pictures_are_skipped(tmp_path):
    here = tmp_path / "here.png"
    here.write_bytes(b"a picture")
    places = [
        SortedPicture(tmp_path / name, PurePosixPath("cat", name), "cat", 1.0, None, None)
        for name in ("gone.png", "here.png")
    ]
    assert place_pictures(places, tmp_path / "new", link=False) == (places[1:], places[:1])
    assert (tmp_path / "new" / "sorted.csv").read_text().count("\n") == 2


def test_classes_come_before_groups_whatever_they_are_called():
    known = SortedPicture(Path("a"), PurePosixPath("group-x", "a"), "group-x", 0.9, 0.9, known=True)
    taught = replace(known, target=PurePosixPath("group-1", "a"), name="group-1")
    groups = [
        replace(known, target=PurePosixPath("unknown", f"group-{number + 1}", "a"), known=False, group=number)
        for number in (9, 0, 1)
    ]
    ordered = sorted([*groups, known, taught], key=rank)
    assert [str(picture.target.parent) for picture in ordered] == [
        "group-1", "group-x", "unknown/group-1", "unknown/group-2", "unknown/group-10"
    ]  # fmt: skip


def test_an_output_folder_is_complete_or_absent(tmp_path):
    with pytest.raises(UserError, match=naming(tmp_path / "new")), new_folder(tmp_path / "new") as draft:
        (draft / "cat").mkdir()
        (draft / "cat").mkdir()
    with pytest.raises(KeyboardInterrupt), new_folder(tmp_path / "new"):
        raise KeyboardInterrupt
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UserError, match=naming(tmp_path / "file" / "new")), new_folder(tmp_path / "file" / "new"):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_names_that_are_not_text_are_sorted(typed, shelf, tmp_path):
    picture = next((shelf / "pile" / "2").iterdir())
    odd = os.fsdecode(os.fsencode(str(tmp_path)) + b"/\xffbad.png")
    Path(odd).write_bytes(picture.read_bytes())
    code, _, _ = typed("sort", shelf / "agent", odd, "--into", tmp_path / "sorted", "--device", "cpu")
    assert code == 0 and "%FFbad.png" in (tmp_path / "sorted" / "index.html").read_text()


def test_one_file_under_two_names_is_sorted_once(typed, shelf, tmp_path):
    picture = next((shelf / "pile" / "2").iterdir())
    again = picture.parent / ".." / "2" / picture.name
    typed("sort", shelf / "agent", picture, again, "--into", tmp_path / "sorted", "--device", "cpu")
    assert len(list((tmp_path / "sorted").rglob("*.png"))) == 1


def test_an_unnamed_group_is_not_learned(typed, refuses, shelf, tmp_path):
    typed("sort", shelf / "agent", shelf / "pile", "--into", tmp_path / "sorted", "--device", "cpu")
    unknown = tmp_path / "sorted" / "unknown"
    refuses("update", shelf / "agent", "--labeled", unknown, error=UserError, about=["group-1", unknown])
