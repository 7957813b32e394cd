"""`osscl claims`: what the paper says of its method, held against the records."""

from pathlib import Path
from typing import Annotated

import typer

from osscl.cli import wanted as ask
from osscl.cli.table import show_section

HELP = "Records of one schedule alone, trials too. By default all but trials: smoke, demo, and the demo's data."
Only = Annotated[str | None, typer.Option("--schedule", help=HELP)]


def claims(
    schedule: Only = None,
    format: ask.Format = "text",
    results: ask.Results = None,
    out: ask.Out = Path("runs"),
) -> None:
    """Check the paper's comparative claims over recorded pairs on identical streams; nothing is run."""
    from osscl.experiments.spec import schedule as schedule_of
    from osscl.report import verdicts

    ask.known_format(format)
    wanted = None if schedule is None else schedule_of(schedule)
    records = ask.recorded_in(results, out).records
    kept = {id: record for id, record in records.items() if wanted is None or record.spec.schedule == wanted}
    show_section(verdicts.section(kept, trials=wanted is not None), format)
