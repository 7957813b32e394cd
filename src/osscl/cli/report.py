"""`osscl report`: records as one page, or as the headline table."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from osscl.errors import DataError, UserError, require_known
from osscl.text import counted, printable

if TYPE_CHECKING:
    from osscl.data.images import ImageBank
    from osscl.runs.record import RunRecord

PAGE = "html"
FORMAT = "html: the page; markdown, csv, latex: its headline table (for the others: osscl table, osscl claims)."
POLL = 2.0  # seconds between checks for changed records
RELOAD = 10  # seconds after which a watched page reloads itself


def report(
    places: Annotated[
        list[Path], typer.Argument(metavar="DIR|FILE", help="Folders of records, record files, or an agent.")
    ],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Output file. Default: report.html; tables are printed.")
    ] = None,
    form: Annotated[str, typer.Option("--format", help=FORMAT)] = PAGE,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file named by --out.")] = False,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Data folder, for pictures. Default: $OSSCL_DATA, else data/ in the user's cache folder.",
        ),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Rebuild the page as runs finish, until Ctrl-C; an open page reloads.")
    ] = False,
) -> None:
    """Write one HTML page about records, or about an agent; or print the headline table of records."""
    from osscl.report.formats import RENDERERS
    from osscl.runs.kept import collection_paused

    form = "markdown" if form == "md" else form
    require_known("format", form, (PAGE, *RENDERERS))
    if watch and form != PAGE:
        raise UserError("--watch requires --format html")
    refuse_missing(places)
    target = Path("report.html") if out is None and form == PAGE else out
    if target is not None and target.exists() and (target.is_dir() or not force):
        raise UserError(f"{target} exists; choose another --out" + ("" if target.is_dir() else " or add --force"))
    if len(places) == 1 and is_agent(places[0]):
        if form != PAGE or watch:
            raise UserError("--format and --watch do not apply to the report of an agent")
        assert target is not None
        write_agent_page(places[0], target)
        return
    if watch:
        assert target is not None
        watch_records(places, target, data)
        return
    with collection_paused():
        if form == PAGE:
            assert target is not None
            write_page(records_in(places), target, data)
        else:
            print_headline(places, target, form)


def print_headline(places: Sequence[Path], target: Path | None, form: str) -> None:
    """Print the headline table of records, or write it to a file if one is given."""
    from osscl.report.chapters import headline_table
    from osscl.report.formats import RENDERERS
    from osscl.storage import write_text

    text = RENDERERS[form](headline_table(records_in(places)))
    if target is None:
        typer.echo(text, nl=False)
        return
    write_text(target, text)
    typer.echo(f"Wrote {target}")


def write_page(records: "Sequence[RunRecord]", target: Path, data: Path | None, refresh: int = 0) -> None:
    from osscl.report.page import build_page
    from osscl.report.paper_comparison import compare_with_paper
    from osscl.storage import write_text

    page = build_page(records, banks_of(records, data), compare_with_paper(records), refresh=refresh)
    write_text(target, page)
    many = counted(len(records), "record")
    typer.echo(f"Wrote {target}: {many}, {len(page.encode()) / 1e6:.1f} MB")


def is_agent(place: Path) -> bool:
    """Whether a folder holds an agent and no records."""
    from osscl.agent.store import model_file
    from osscl.runs.kept import record_files

    return place.is_dir() and model_file(place).exists() and not record_files(place)


def write_agent_page(folder: Path, target: Path) -> None:
    from osscl.agent.store import model_file, require_agent
    from osscl.report.agent_page import build_agent_page
    from osscl.runs.model import read_entry
    from osscl.storage import write_text

    entry = require_agent(read_entry(folder), model_file(folder))
    write_text(target, build_agent_page(entry, folder.resolve().name))
    typer.echo(f"Wrote {target}")


def watch_records(places: Sequence[Path], target: Path, data: Path | None) -> None:
    """Write the page whenever a record appears or changes; the version written at Ctrl-C no longer reloads itself."""
    seen: object = None
    records: list[RunRecord] = []
    try:
        while True:
            if (now := fingerprint_of_records(places)) != seen:
                seen = now
                if now:
                    records = records_in(places)
                    write_page(records, target, data, RELOAD)
                else:
                    typer.echo("Waiting for the first record. Press Ctrl-C to stop.")
            time.sleep(POLL)
    except KeyboardInterrupt:
        if records:
            write_page(records, target, data)


def fingerprint_of_records(places: Sequence[Path]) -> list[tuple[str, int, int]]:
    """Name, time and size of every file that may be a record."""
    from osscl.runs.kept import record_files

    files = [path for place in places for path in (record_files(place) if place.is_dir() else [place])]
    stats = [(path, path.stat()) for path in files if path.exists()]
    return [(str(path), stat.st_mtime_ns, stat.st_size) for path, stat in stats]


def refuse_missing(places: Sequence[Path]) -> None:
    for place in places:
        if not place.exists():
            raise UserError(f"{place} does not exist: expected a record file, a folder of records, or an agent")


def records_in(places: Sequence[Path]) -> "list[RunRecord]":
    """Every readable record in these folders and files, once; the others are reported and skipped."""
    from osscl.runs.index import read_records
    from osscl.runs.record import read_record

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
            typer.echo(f"skipped: {printable(problem)}", err=True)
        for record in records:
            first = found.setdefault(record.id, record)
            if first is not record and first != record:
                typer.echo(f"skipped: another record of {printable(f'{record.id} in {place}')}", err=True)
    if not found:
        raise UserError(f"no record of a finished run in {', '.join(map(str, places))}")
    return list(found.values())


def banks_of(records: "Sequence[RunRecord]", data: Path | None) -> "dict[str, ImageBank]":
    """The data sets that the records name and that are present; pictures of the others are left out."""
    from osscl.data.benchmarks import load_bank
    from osscl.places import cache_dir, data_dir

    banks: dict[str, ImageBank] = {}
    for name in sorted({name for record in records for name in record.content}):
        try:
            banks[name] = load_bank(name, data_dir(data), cache_dir())
        except UserError:
            continue  # missing or incomplete: the page says that there is no picture
    return banks
