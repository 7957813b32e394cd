"""`osscl report`: records as one page, or as the headline table."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from osscl.errors import DataError, UserError, unknown

if TYPE_CHECKING:
    from osscl.data.images import ImageBank
    from osscl.runs.record import RunRecord

PAGE = "html"
FORMAT = "html: the page. markdown, csv, latex: its headline table; osscl table and osscl claims print the others so."


def report(
    places: Annotated[list[Path], typer.Argument(metavar="DIR|FILE...", help="Folders of records, or records.")],
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Else report.html; a table: the screen.")] = None,
    form: Annotated[str, typer.Option("--format", help=FORMAT)] = PAGE,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file that --out names.")] = False,
    data: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where data lies, for pictures; else $OSSCL_DATA, else the cache."),
    ] = None,
) -> None:  # fmt: skip
    """Make one page of records that opens from disk, or print its headline table."""
    from osscl.report.beside import beside_paper
    from osscl.report.formats import FORMATS, as_text
    from osscl.report.page import build_page
    from osscl.report.tables import headline
    from osscl.storage import write_text

    form = "markdown" if form == "md" else form
    if form not in (PAGE, *FORMATS):
        raise unknown("format", form, (PAGE, *FORMATS))
    refuse_missing(places)
    target = Path("report.html") if out is None and form == PAGE else out
    if target is not None and target.exists() and (target.is_dir() or not force):
        raise UserError(
            f"{target} exists; nothing is overwritten, give another --out" + ("" if target.is_dir() else " or --force")
        )
    records = records_in(places)
    if form == PAGE:
        text = build_page(records, banks_of(records, data), beside_paper(records))
    else:
        text = as_text([headline(records)], form)
    if target is None:
        typer.echo(text, nl=False)
        return
    write_text(target, text)
    typer.echo(f"{len(records)} records; written to {target} ({len(text.encode()) / 1e6:.1f} MB)")


def refuse_missing(places: Sequence[Path]) -> None:
    for place in places:
        if not place.exists():
            raise UserError(f"no file or folder {place}; give folders of records, or records")


def records_in(places: Sequence[Path]) -> "list[RunRecord]":
    """Every readable record in these folders and files, once; the others are named and left out."""
    from osscl.runs.record import read_record, read_records

    found: dict[str, RunRecord] = {}
    for place in places:
        records: list[RunRecord] = []
        problems: list[str] = []
        if place.is_dir():
            records, problems = read_records(place)
        else:
            try:
                records = [read_record(place)]
            except DataError as error:
                if len(places) == 1:
                    raise
                problems = [str(error)]
        for problem in problems:
            typer.echo(f"skipped: {problem}", err=True)
        for record in records:
            if found.setdefault(record.id, record) != record:
                typer.echo(f"skipped: another record of {record.id} in {place}", err=True)
    if not found:
        raise UserError(f"no record of a finished run in {', '.join(map(str, places))}")
    return list(found.values())


def banks_of(records: "Sequence[RunRecord]", data: Path | None) -> "dict[str, ImageBank]":
    """The data sets that the records name and that are at hand; pictures of the others are left out."""
    from osscl.data.benchmarks import load_bank
    from osscl.data.cache import cache_dir, data_dir

    banks: dict[str, ImageBank] = {}
    for name in sorted({name for record in records for name in record.content}):
        try:
            banks[name] = load_bank(name, data_dir(data), cache_dir())
        except UserError:
            continue  # not here, or not whole: the page says that there is no picture
    return banks
