"""Names and texts from files act neither on the terminal nor on a spreadsheet, whatever command shows them."""

import csv
import json
import unicodedata
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from osscl.data.benchmarks import load_bank
from osscl.runs.record import read_record, write_record
from osscl.runs.spec import with_seed
from osscl.text import BIDIRECTIONAL

GREY = ["--schedule", "smoke", "--size", "8", "--grey", "--memory", "20"]
CPU = ["--device", "cpu"]
HOSTILE = "\x1b[31mred\x1b]0;title\x07\x9b2J\u202etxt\r\u2028\x08"
CLASSES = (f"=1+{HOSTILE}", f"+{HOSTILE}\nosscl: deleted")
KEPT = sorted((Path(__file__).parents[2] / "results" / "demo").glob("*.json"))


def acting(text):
    """The characters of a text, besides line breaks, that act on a terminal."""
    is_control = {letter for letter in text if unicodedata.category(letter) in ("Cc", "Cs", "Zl", "Zp")}
    return (is_control | (set(text) & BIDIRECTIONAL)) - {"\n"}


@pytest.fixture
def shows(typed):
    """Run a command and return its output, which must be harmless."""

    def run(*words):
        code, shown, errors = typed(*words)
        assert not acting(shown), f"{words[0]} prints {acting(shown)} in {shown!r}"
        assert not acting(errors), f"{words[0]} prints {acting(errors)} in {errors!r}"
        return code, shown, errors

    return run


@pytest.fixture
def photos(tmp_path):
    """Two classes of digits and a pile, in files and folders with hostile names."""
    digits, place = load_bank("digits"), tmp_path / f"photos{HOSTILE}"
    for c, name in enumerate(CLASSES):
        (place / "week" / name).mkdir(parents=True)
        for row in (digits.train.labels == c).nonzero().squeeze(1)[:4].tolist():
            Image.fromarray(digits.train.images[row, 0].numpy()).save(place / "week" / name / f"-{row}{HOSTILE}.png")
        (place / "week" / name / f"damaged{HOSTILE}.png").write_bytes(b"none")
    (place / "pile").mkdir()
    for row in range(12):
        Image.fromarray(digits.train.images[row, 0].numpy()).save(place / "pile" / f"@{row}{HOSTILE}.png")
    return place


def test_names_of_photos_and_classes(shows, photos, monkeypatch):
    agent, week, pile = photos / f"agent{HOSTILE}", photos / "week", photos / "pile"
    assert shows("fit", agent, "--labeled", week, "--unlabeled", pile, *GREY, *CPU)[0] == 0
    for words in (
        ("fit", agent, "--labeled", week, *GREY, *CPU),
        ("fit", photos / "other", "--labeled", pile, *GREY, *CPU),
        ("update", agent, "--labeled", week, *CPU),
        ("inspect", agent), ("inspect", agent, "--on", week, *CPU), ("inspect", agent, "--json"),
        ("predict", agent, week, *CPU), ("predict", agent, week, *CPU, "--format", "json"),
        ("predict", agent, week / HOSTILE, *CPU), ("predict", agent, *week.rglob("damaged*"), *CPU),
        ("sort", agent, pile, "--into", photos / f"sorted{HOSTILE}", *CPU),
        ("sort", agent, pile, "--into", photos / f"sorted{HOSTILE}", *CPU),
        ("rename", agent, HOSTILE, "b"), ("rename", agent, CLASSES[0], f"new{HOSTILE}"),
        ("relabel", agent, HOSTILE, "--as", HOSTILE), ("merge", agent, HOSTILE, CLASSES[1]), ("remove", agent, HOSTILE),
        ("back", agent, HOSTILE), ("back", agent), ("clean", agent),
        ("report", agent, "--out", photos / f"page{HOSTILE}.html"), ("export", agent, photos / f"exported{HOSTILE}"),
    ):  # fmt: skip
        shows(*words)
    monkeypatch.chdir(week.parent)  # names without a folder before them
    code, shown, _ = shows("predict", agent, *(file.name for file in photos.glob("*.png")), "pile", *CPU,
                           "--format", "csv")  # fmt: skip
    assert code == 0
    table = (photos / f"sorted{HOSTILE}" / "sorted.csv").read_text(encoding="utf-8")
    for text in (shown, table):
        names, *rows = csv.reader(text.splitlines() if text is shown else text.split("\n")[:-1])
        assert rows and "probability" in names
        cells = [cell for row in rows for cell in row]
        assert not [cell for cell in cells if cell.startswith(("=", "+", "-", "@")) and not is_number(cell)]


def is_number(text):
    try:
        return float(text) is not None
    except ValueError:
        return False


@pytest.fixture
def records(tmp_path):
    """Records of three seeds on two sides, and a damaged one; every text that a record may choose is hostile."""
    folder = tmp_path / f"runs{HOSTILE}"
    for number, kept in enumerate(KEPT[:2]):
        found = read_record(kept)
        made_by = replace(found.made_by, device=f"=2+3{HOSTILE}", command=HOSTILE, commit=HOSTILE)
        for seed in range(3):
            spec = with_seed(found.spec, seed)
            file = folder / f"side{number}" / f"{spec.id}{HOSTILE}.json"
            write_record(replace(found, spec=spec, id=spec.id, made_by=made_by, configuration=HOSTILE), file)
    (folder / f"damaged{HOSTILE}.json").write_text(json.dumps({"format": HOSTILE}))
    (folder / f"unfinished{HOSTILE}").mkdir()
    (folder / f"unfinished{HOSTILE}" / "spec.json").write_text("{")
    return folder


def test_texts_of_records(shows, records):
    table = ("table", "main", "--no-run", "--on", "demo", "--schedule", "demo", "--results", records)
    for words in (
        ("runs", records), ("runs", records, "--markdown"), ("runs", records, "--schedule", HOSTILE),
        ("runs", HOSTILE), ("table", "list", "--results", records), *((*table, "--format", name) for name in
        ("text", "markdown", "csv", "latex")), (*table, "--dry-run"), ("table", HOSTILE),
        ("claims", "--results", records, "--schedule", "demo"),
        ("compare", records / "side0", records / "side1"), ("compare", records, HOSTILE),
        *(("report", records, "--format", name) for name in ("markdown", "csv", "latex")),
        ("report", records, "--out", records / f"page{HOSTILE}.html"), ("report", records / HOSTILE),
        ("predict", records), ("run", HOSTILE), ("run", "digits", "--set", HOSTILE), ("run", "--spec", records / "x"),
        ("run", "digits", "--schedule", "smoke", "--dry-run", "--out", records), ("clean", records, "--dry-run"),
        ("data", "verify", HOSTILE), (HOSTILE,),
    ):  # fmt: skip
        shows(*words)


def test_text_that_starts_like_a_formula_is_not_one_in_a_table(shows, records):
    code, shown, _ = shows("report", records, "--format", "csv")
    assert code == 0 and "'=2+3" in shown
    assert any(is_number(cell) for row in csv.reader(shown.splitlines()) for cell in row)


@pytest.mark.filterwarnings("error")
def test_warnings_of_pillow_are_not_printed(shows, photos):
    """A picture over the limit at which Pillow warns, and a palette with transparent entries."""
    agent, odd = photos / "agent", photos / "odd"
    assert shows("fit", agent, "--labeled", photos / "week", *GREY, *CPU)[0] == 0
    odd.mkdir()
    palette = Image.new("P", (9, 9))
    palette.putpalette(range(240))
    palette.save(odd / "palette.png", transparency=bytes(range(80)))
    exif = b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\xff\xff\xff\xff\x01\0\0\0"  # ends too early
    Image.new("RGB", (9, 9)).save(odd / "metadata.jpg", exif=exif)
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patched:
        patched.setattr(Image, "MAX_IMAGE_PIXELS", 70)
        code, shown, errors = shows("predict", agent, odd, *CPU)
    assert code == 0 and "palette.png" in shown and "Warning" not in errors
