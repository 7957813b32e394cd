"""`osscl run`, `stream`, `runs` and `list`: start runs, show their streams, list runs and names."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from osscl.cli.options import (
    Address,
    Data,
    Device,
    EngineName,
    GpuShare,
    MaxMinutes,
    Out,
    SharedDevice,
    ShareReferences,
    Track,
    watch_for,
)
from osscl.cli.specs import (
    Changes,
    Flags,
    ScheduleName,
    SpecFile,
    StreamFile,
    read_stream_file,
    seeds_of,
    spec_from_file,
    spec_of,
    with_scenario_options,
)
from osscl.errors import SpecError, UserError, unknown
from osscl.text import printable, printable_lines

if TYPE_CHECKING:
    from osscl.runs.checkpoint import Options
    from osscl.runs.engine import Engine
    from osscl.runs.kept import Kept
    from osscl.runs.record import RunRecord
    from osscl.runs.spec import RunSpec
    from osscl.stream.build import Stream


@with_scenario_options
def run(
    scenario: Flags,
    method: Annotated[str | None, typer.Option(help="A method; see `osscl list`. Default: ursl.")] = None,
    schedule: ScheduleName = None,
    seed: Annotated[int | None, typer.Option(min=0, help="One seed. Default: 0.", show_default=False)] = None,
    seeds: Annotated[str | None, typer.Option(help="Several seeds: 0-2 or 0,3,5.")] = None,
    spec_file: SpecFile = None,
    stream_file: StreamFile = None,
    changes: Changes = None,
    device: Device = "auto",
    data: Data = None,
    out: Out = Path("runs"),
    max_minutes: MaxMinutes = None,
    share_references: ShareReferences = True,
    shared_device: SharedDevice = False,
    engine: EngineName = "local",
    address: Address = None,
    gpu_share: GpuShare = None,
    track: Track = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the spec and its id, then stop.")] = False,
    full: Annotated[bool, typer.Option("--full", help="With --dry-run: show every field.")] = False,
) -> None:  # fmt: skip
    """Train and evaluate a method; one run per seed. Repeat the command to resume an interrupted run."""
    from osscl.cli.show import print_ids, print_spec
    from osscl.runs.checkpoint import Options
    from osscl.runs.engine import Engine
    from osscl.runs.spec import with_seed

    if full and not dry_run:
        raise SpecError("--full requires --dry-run")
    chosen = seeds_of(seed, seeds)
    manifest = read_stream_file(stream_file, {**scenario, "seed": seed, "seeds": seeds})
    if spec_file is not None:
        base = spec_from_file(spec_file, {**scenario, "method": method, "schedule": schedule, "set": changes})
        chosen = [base.seed] if seed is None and seeds is None else chosen
    else:
        made = None if manifest is None else manifest["scenario"]
        base = spec_of(scenario, method, schedule, changes or [], made)
        chosen = chosen if manifest is None else [manifest["seed"]]
    specs = [with_seed(base, one) for one in chosen]
    options = Options(out, data, device, max_minutes, share_references=share_references, shared_device=shared_device)
    where = Engine(engine, address, gpu_share)
    if not dry_run:
        _run_all(specs, options, where, track, manifest)
        return
    specs = _with_stream(specs, manifest, options, where)[0]
    print_spec(specs, full=full)
    print_ids(specs, out)


def _run_all(
    specs: "list[RunSpec]", options: "Options", engine: "Engine", track: str | None, manifest: dict[str, Any] | None
) -> None:
    from osscl.cli.show import announce, comparison, console, final_words, quoted
    from osscl.device import pick_device
    from osscl.runs.engine import refuse_missing_data, run_one, run_specs
    from osscl.runs.spec import display_name

    if engine.name == "local":
        pick_device(options.device)  # refuse a wrong one before anything is printed
    specs, stream = _with_stream(specs, manifest, options, engine)
    places = {spec.id: f" ({i} of {len(specs)})" for i, spec in enumerate(specs, 1)} if len(specs) > 1 else {}

    def title(spec: "RunSpec") -> str:
        return f"{display_name(spec)} on {spec.scenario.main}, seed {spec.seed}{places.get(spec.id, '')}"

    watch = watch_for(engine, options, track, title)
    refuse_missing_data(specs, options)
    announce(specs, options.out)
    records: Iterable[RunRecord] = (
        run_specs(specs, options, engine, watch)
        if stream is None
        else [run_one(specs[0], options, watch, stream)]
    )  # fmt: skip
    finished = []
    for record in records:
        finished.append(record)
        console().print(comparison([(record.configuration, record)]))
        typer.echo(f"Try it: {quoted('osscl', 'predict', options.out / record.id)}")
    if len(finished) > 1:
        typer.echo(final_words(finished))


def _with_stream(
    specs: "list[RunSpec]", manifest: dict[str, Any] | None, options: "Options", engine: "Engine"
) -> "tuple[list[RunSpec], Stream | None]":
    """The specs, and the stream if it was read from a file; the spec stores a digest of rows other than the default."""
    from dataclasses import replace

    from osscl.device import pick_device
    from osscl.runs.run import load_banks
    from osscl.stream.build import build_stream
    from osscl.stream.manifest import from_manifest, rows_digest, to_manifest

    if manifest is None:
        return specs, None
    if engine.name != "local":
        raise SpecError("--stream requires --engine local")
    spec = specs[0]
    banks = load_banks(spec, options.data, pick_device(options.device))
    stream = from_manifest(manifest, banks)
    if (stream.spec, stream.seed) != (spec.scenario, spec.seed):
        raise SpecError("the scenario or seed of the stream file differs from the spec")
    digest = rows_digest(to_manifest(stream))
    if spec.stream is None and digest != rows_digest(to_manifest(build_stream(spec.scenario, banks, spec.seed))):
        spec = replace(spec, stream=digest)
    return [spec], stream


@with_scenario_options
def stream(
    scenario: Flags,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the stream.")] = 0,
    changes: Changes = None,
    data: Data = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the stream to this file.")] = None,
) -> None:
    """Show a stream step by step; --out writes it to a file for `osscl run --stream`."""
    from osscl.cli.show import console, new_table
    from osscl.device import pick_device
    from osscl.runs.run import load_banks
    from osscl.runs.spec import with_seed
    from osscl.storage import refuse_to_overwrite
    from osscl.stream.build import build_stream
    from osscl.stream.manifest import rows_digest, to_manifest, write_manifest

    for change in changes or []:
        if not change.strip().startswith("scenario."):
            raise SpecError(f"a stream has only scenario fields: remove --set {change}")
    spec = with_seed(spec_of(scenario, None, None, changes or []), seed)
    refuse_to_overwrite(out)
    made = build_stream(spec.scenario, load_banks(spec, data, pick_device("cpu")), seed)
    manifest = to_manifest(made)
    shown = new_table("step", "new classes", "labels", "unlabelled", "seen", "unseen", "foreign")
    for t, rows in enumerate(made.steps):
        truth = made.truth(t)
        kinds = [str(int(kind.sum())) for kind in (truth.seen, truth.unseen, truth.foreign)]
        names = ", ".join(made.main.class_names[c] for c in rows.new_classes)
        shown.add_row(str(t + 1), names, str(len(rows.labeled)), str(len(rows.unlabeled)), *kinds)
    console().print(shown)
    kind = "validation" if made.validation else "test"
    typer.echo(f"rows: {rows_digest(manifest)}; accuracy is measured on {len(made.held_out)} {kind} images")
    if out is not None:
        write_manifest(out, manifest)
        typer.echo(f"written to {out}")


def runs(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of run folders or records.")] = Path("runs"),
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print a Markdown table, with all seeds of a run in one row.")
    ] = False,
    schedule: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Only runs of these schedules, separated by commas.")
    ] = None,
) -> None:
    """List finished and unfinished runs, and the commands that resume them."""
    from osscl.runs.kept import Kept, record_files

    if not folder.is_dir():
        raise UserError(f"{folder} not found; give the folder used as --out")
    files = record_files(folder)
    begun = [file for file in sorted(folder.glob("*/spec.json")) if not _record_beside(file).exists()]
    kept = Kept("listed", files)
    if not markdown and not begun and (listed := _kept_runs(files, kept)):
        _show_runs(_of_schedules(listed, schedule), {}, folder)  # without importing torch
    else:
        _read_and_show_runs(folder, files, begun, kept, schedule, markdown)


@dataclass(frozen=True)
class ListedRun:
    """A run as it is listed, and the name of its schedule."""

    title: str
    shows_hash: bool  # in the method's label
    schedule: str
    id: str
    final: str
    forgetting: str
    minutes: str


def _kept_runs(files: Sequence[Path], kept: "Kept") -> list[ListedRun]:
    """The runs in these files as listed before; none if a file has changed since, or if a run occurs twice."""
    texts = [kept.get(file) for file in files]
    found = [ListedRun(**json.loads(text)) for text in texts if text is not None]
    return found if len({one.id for one in found}) == len(files) else []


def _read_and_show_runs(
    folder: Path, files: Sequence[Path], begun: Sequence[Path], kept: "Kept", schedule: str | None, markdown: bool
) -> None:
    from osscl.report.chapters import headline_table
    from osscl.report.formats import to_markdown
    from osscl.runs.index import distinct_records, read_files
    from osscl.runs.kept import stamp_of

    stamps = {file: stamp_of(file) for file in files if kept.is_used and file.exists()}
    found = list(read_files(files))
    records, problems = distinct_records(found)
    for problem in problems:
        typer.echo(f"skipped: {printable(problem)}", err=True)
    unfinished = {file: _read_spec(file) for file in begun}
    specs = [*(record.spec for record in records), *(spec for spec in unfinished.values() if spec is not None)]
    wanted = _known_schedules(schedule, {spec.schedule.name for spec in specs})
    if wanted is not None:
        unfinished = {file: spec for file, spec in unfinished.items() if spec and spec.schedule.name in wanted}
    if markdown:
        shown = [record for record in records if wanted is None or record.spec.schedule.name in wanted]
        typer.echo(printable_lines(to_markdown(headline_table(shown))), nl=False)
        return
    listed = _listed_runs(records)
    if len(found) == len(records):  # each file has a record of its own
        for (file, _), one in zip(found, listed, strict=True):
            kept.add(file, stamps.get(file, ""), json.dumps(asdict(one)))
        kept.write()
    _show_runs([one for one in listed if wanted is None or one.schedule in wanted], unfinished, folder)


def _listed_runs(records: "Sequence[RunRecord]") -> list[ListedRun]:
    from osscl.cli.show import number
    from osscl.report.naming import method_label, setting_words

    def fields(record: "RunRecord") -> tuple[object, ...]:
        return record.configuration, record.spec.method, record.spec.schedule

    named = {fields(record): record for record in records}  # a label takes a millisecond
    labels = {key: method_label(record) for key, record in named.items()}
    settings = {scenario: setting_words(scenario) for scenario in {record.spec.scenario for record in records}}
    return [
        ListedRun(
            _title(settings[spec.scenario], str(method), spec), method.hash is not None, spec.schedule.name, record.id,
            f"{number(record.final)} {record.evaluated_on}", number(record.forgetting), number(record.minutes),
        )
        for record in records
        for spec, method in [(record.spec, labels[fields(record)])]
    ]  # fmt: skip


def _show_runs(listed: Sequence[ListedRun], unfinished: "Mapping[Path, RunSpec | None]", folder: Path) -> None:
    from osscl.cli.show import DASH, console, new_table

    if not listed and not unfinished:
        typer.echo(f"no runs in {printable(str(folder))}")
        return
    shown = new_table("run", "final %", "forgetting", "minutes")
    for one in listed:
        shown.add_row(f"{one.title}\n{one.id}", one.final, one.forgetting, one.minutes)
    states = {file: _state(file.parent) for file in unfinished}
    for file, spec in unfinished.items():
        shown.add_row(f"{_unfinished_title(spec)}\n{file.parent.name}", states[file], DASH, DASH)
    console().print(shown)
    if any(one.shows_hash for one in listed):
        typer.echo("A hash after a name means that several fields differ or that the method is user-defined.")
    for file, spec in unfinished.items():
        if states[file] == "unfinished":
            typer.echo(f"resume: {_resume_command(file, spec, folder)}")


def _record_beside(file: Path) -> Path:
    return file.parent / f"{file.parent.name}.json"


def _state(folder: Path) -> str:
    """`diverged` if only a diverged checkpoint is left, since the same command would diverge again."""
    from osscl.storage import is_locked

    if is_locked(folder):
        return "running"
    diverged = any(folder.glob("checkpoint.diverged*")) and not any(folder.glob("checkpoint.safetensors"))
    return "diverged" if diverged else "unfinished"


def _of_schedules(listed: Sequence[ListedRun], names: str | None) -> list[ListedRun]:
    wanted = _known_schedules(names, {one.schedule for one in listed})
    return [one for one in listed if wanted is None or one.schedule in wanted]


def _known_schedules(names: str | None, known: set[str]) -> set[str] | None:
    """The requested schedules; None for all."""
    if names is None:
        return None
    wanted = {name.strip() for name in names.split(",")}
    if known and (missing := wanted - known):
        raise unknown("schedule", min(missing), sorted(known))
    return wanted


def _read_spec(file: Path) -> "RunSpec | None":
    from osscl.runs.spec import is_misplaced, spec_from_plain

    try:
        spec = spec_from_plain(json.loads(file.read_text(encoding="utf-8")), recorded=True)
        return None if is_misplaced(spec, file) else spec
    except (OSError, ValueError, RecursionError, UserError):
        return None


def _title(setting: str, method: str, spec: "RunSpec") -> str:
    return f"{setting}: {method}, {spec.schedule.name}, seed {spec.seed}"


def _unfinished_title(spec: "RunSpec | None") -> str:
    from osscl.report.naming import setting_words
    from osscl.runs.spec import display_name

    return "damaged spec" if spec is None else _title(setting_words(spec.scenario), display_name(spec), spec)


def _resume_command(file: Path, spec: "RunSpec | None", folder: Path) -> str:
    from osscl.cli.show import quoted
    from osscl.runs.spec import ForeignConfig

    if spec is None:
        return printable(f"repeat the command that started it, since {file} is damaged")
    if isinstance(spec.method, ForeignConfig):
        return printable(f"in Python, osscl.run(spec, method=...) with the class of {spec.type}: {file.parent.name}")
    rows = ["--stream", "FILE"] if spec.stream is not None else []
    return printable(quoted("osscl", "run", "--spec", file, *rows, "--out", folder))


def list_names() -> None:
    """List the names that other commands take: experiments, methods, schedules, data sets."""
    import textwrap

    from osscl.data.benchmarks import DATASETS
    from osscl.methods import CONFIGURATIONS
    from osscl.methods.base import SCHEDULES
    from osscl.runs.spec import EXPERIMENTS
    from osscl.stream.scenario import Regime
    from osscl.vision.backbones import BACKBONES

    typer.echo(
        f"{len(EXPERIMENTS)} experiments, {len(CONFIGURATIONS)} methods, {len(SCHEDULES)} schedules, "
        f"{len(DATASETS)} data sets.\n\nExperiments (osscl run NAME):"
    )
    for name, scenario in EXPERIMENTS.items():
        count = f"{scenario.labels_per_class} labels/class"
        share = f"P={scenario.labeled_fraction:g}" if scenario.labeled_fraction else count
        world = " + ".join((scenario.main, *scenario.peripheral))
        typer.echo(f"  {name:<17} {world:<22} {share}, memory {scenario.memory}, {scenario.steps} steps")
    for title, names in {
        "Methods (--method)": CONFIGURATIONS, "Schedules (--schedule)": SCHEDULES, "Data sets": DATASETS,
        "Regimes (--regime)": get_args(Regime), "Backbones": BACKBONES,
    }.items():  # fmt: skip
        lines = textwrap.wrap(", ".join(names), 76, break_on_hyphens=False)
        typer.echo("\n  ".join([f"{title}:", *lines]))
    typer.echo("Fields (--set): osscl run NAME --dry-run --full\nTables, figures and limitations: osscl table list")
