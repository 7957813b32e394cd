"""The report: one self-contained HTML file, as a function of records; also the numbers that its script draws."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from itertools import chain, count
from pathlib import Path
from statistics import fmean
from typing import Any

from markupsafe import Markup
from scipy.special import stdtrit  # importing scipy.stats takes half a second

from osscl import __version__
from osscl.config import content_id, plain
from osscl.data.images import ImageBank
from osscl.methods import CONFIGURATIONS
from osscl.metrics import drops
from osscl.report.chapters import Chapter, Entry, chapters_of, conclusion, opening
from osscl.report.formats import ResultTable, environment, to_html
from osscl.report.naming import METHOD_WORDS, change_in_words, device_words, row_words, setting_words
from osscl.report.paper_comparison import PaperComparison
from osscl.report.thumbnails import Strip, StripImages, Tile, strips_of
from osscl.runs.record import GateRecord, RunRecord
from osscl.runs.spec import spec_to_plain
from osscl.text import counted

DEMO_MARK = '<meta name="osscl-report" content="demo">'  # the demo may overwrite a page that has it
STORY = {"result": "Result", "steps": "Steps", "forgetting": "Forgetting", "gate": "Gate"}
DETAILS = {
    "scores": "Scores", "pictures": "Images", "known": "Known or unknown", "confusion": "Confusion",
    "matrix": "By step", "time": "Time", "ablations": "Ablations",
}  # fmt: skip
METHOD_STEPS = (
    ("Reference", "UR_t learns from all unlabelled images of the step, U_t, without labels: L_SSL, here NT-Xent."),
    ("Gate", "Prototypes of the classes seen come from T_t and M in the reference's space. An unlabelled image whose "
     "score S(x) is above τ_id is accepted: it enters Û, and above τ_pl, if it looks like a past class, T̂ as well."),
    ("Learner", "SL_t learns from labels and T̂ by L_sup, is kept close to its past SL_t−1 by L_TD, and follows the "
     "reference on labels and Û by L_KD."),
    ("Head", "A linear head on the learner's features, trained on T_t and M, names the class. In ursl-plus, which is "
     "ours, the learner starts as the reference, and half of the prediction comes from a head on UR_t."),
    ("Memory", "M keeps equally many labelled images of every class seen. Unlabelled images are never kept."),
)  # fmt: skip


def build_page(
    records: Sequence[RunRecord],
    banks: Mapping[str, ImageBank] | None = None,
    paper: PaperComparison | None = None,
    title: str = "Continual learning in an open world",
    demo: bool = False,
    refresh: int = 0,
) -> str:
    """The page. `banks`: data sets for pictures and class names; `refresh`: seconds after which it reloads itself."""
    data = payload(records, banks or {})
    chapters = data["chapters"]
    rows = [row for chapter in chapters for row in chapter["rows"]]
    methods, variants = ({row["name"] for row in rows if row["named"] is named} for named in (True, False))
    settings = {chapter["key"] for chapter in chapters}
    numbers = ((len(records), "run"), (len(methods), "method"), (len(variants), "variant"), (len(settings), "setting"))
    sections = STORY | DETAILS | ({"paper": "Paper"} if paper and (paper.tables or paper.values) else {})
    sections |= {"claims": "Claims"} if paper and paper.claims else {}
    return environment().get_template("page.html").render(
        title=title,
        demo=demo,
        demo_mark=Markup(DEMO_MARK),
        refresh=refresh,
        counts=", ".join(counted(number, word) for number, word in numbers if number),
        rows={name: row_words(name) for name in dict.fromkeys((*METHOD_WORDS, *CONFIGURATIONS)) if name in methods},
        sections=(sections | {"method": "Method", "runs": "Runs"}).items(),
        conclusion=chapters[data["opening"]]["conclusion"],
        paper=paper,
        split=_split,
        table_html=lambda table: Markup(to_html(table, "cards")),
        method_steps=METHOD_STEPS,
        drawing=page_part("method.svg"),
        css=page_part("page.css"),
        charts=page_part("charts.js"),
        theme=page_part("theme.js"),
        script=page_part("page.js"),
        data=data,
        version=__version__,
        records=len(records),
    )  # fmt: skip


def _split(table: ResultTable) -> tuple[ResultTable, ResultTable]:
    """Rows with a number of ours, and those without under a separate title."""
    measured, missing = table.split_measured()
    return measured, replace(missing.without_empty_columns(), title=f"{table.title}: rows without our number")


def is_demo_page(path: Path) -> bool:
    """Whether a file is a page that the demo wrote."""
    try:
        with path.open(encoding="utf-8") as file:
            return DEMO_MARK in file.read(2000)
    except (OSError, UnicodeDecodeError):
        return False


def page_part(name: str) -> Markup:
    """A style sheet, script or drawing of the report's pages."""
    return Markup(files("osscl.report").joinpath(name).read_text(encoding="utf-8"))


Json = dict[str, Any]
Numbers = list[float | None]

# Name, meaning, and how it is read from a step; each is drawn in a separate small figure.
Reading = tuple[str, str, Callable[[Any], float | None]]
FPR95 = "share of other images accepted at the threshold that accepts 95 % of images of classes seen; lower is better"
FPR95_UNKNOWN = (
    "as in OpenOOD: share of images of classes seen that is rejected at the threshold that rejects 95 % of other "
    "images; lower is better"
)
GATE: tuple[Reading, ...] = (
    ("AUROC, seen", "score of classes seen so far against the rest of U_t", lambda gate: gate.auroc_seen),
    ("AUROC, main set", "score of the main set against foreign sets", lambda gate: gate.auroc_related),
    ("Precision, seen", "share of the accepted images that show a class seen so far", lambda gate: gate.precision_seen),
    ("Precision, main set", "share of the accepted images that belong to the main set", lambda gate: gate.precision),
    (
        "Pseudo-labels",
        "share of correct pseudo-labels among confident images of classes seen so far",
        lambda gate: gate.pseudo_accuracy,
    ),
    (
        "Accepted: seen",
        "share of images of classes seen so far that is accepted",
        lambda gate: gate.pass_rates.get("seen"),
    ),
    (
        "Accepted: unseen",
        "share of images of later classes that is accepted",
        lambda gate: gate.pass_rates.get("unseen"),
    ),
    ("Accepted: foreign", "share of foreign images that is accepted", lambda gate: gate.pass_rates.get("foreign")),
    ("FPR95", FPR95, lambda gate: gate.fpr95),
    ("FPR95, OpenOOD", FPR95_UNKNOWN, lambda gate: gate.fpr95_unknown),
)
KNOWN: tuple[Reading, ...] = (
    ("Known: AUROC", "score of classes seen against later classes and foreign sets", lambda known: known.auroc),
    ("Known: seen", "share of held-out images of classes seen that looks known", lambda known: known.recall),
    ("Known: foreign", "share of foreign images that looks known", lambda known: known.foreign),
    ("Known: FPR95", FPR95, lambda known: known.fpr95),
    ("Known: FPR95, OpenOOD", FPR95_UNKNOWN, lambda known: known.fpr95_unknown),
)


def payload(records: Sequence[RunRecord], banks: Mapping[str, ImageBank]) -> Json:
    """Everything the script needs, independent of the order of the records."""
    chapters = chapters_of(records)
    pictures = strips_of([entry.first for chapter in chapters for entry in chapter.entries if entry.gated], banks)
    most = max(len(entry.runs) for chapter in chapters for entry in chapter.entries)
    return {
        "chapters": _with_unique_schedules([chapter_numbers(chapter, banks, pictures) for chapter in chapters]),
        "opening": chapters.index(opening(chapters)),
        "gate": {name: words for name, words, _ in GATE},
        "known": {name: words for name, words, _ in KNOWN},
        "sprites": [{"uri": s.uri, "across": s.across, "down": s.down} for s in pictures.sprites],
        # Student's t for two-sided 95 % intervals, by degrees of freedom from 1.
        "t95": [round(float(stdtrit(freedom, 0.975)), 4) for freedom in range(1, max(2, most))],
    }


def _with_unique_schedules(chapters: Sequence[Json]) -> list[Json]:
    """Schedules that share a name in one setting get a number, because each chapter has its own address."""
    pairs = [(one["key"], one["schedule"]) for one in chapters]
    again = [pairs[:i].count(pair) for i, pair in enumerate(pairs)]
    return [
        one | {"schedule": f"{one['schedule']} ({count + 1})"} if count else one
        for one, count in zip(chapters, again, strict=True)
    ]


def chapter_numbers(chapter: Chapter, banks: Mapping[str, ImageBank], pictures: StripImages) -> Json:
    scenario, bank = chapter.first.spec.scenario, banks.get(chapter.first.spec.scenario.main)
    names = unique_slugs([entry.name for entry in chapter.entries])
    keys = dict(zip(map(id, chapter.entries), names, strict=True))
    return {
        "key": slug(setting_words(scenario)),
        "label": chapter.setting,
        "schedule": chapter.first.spec.schedule.name,
        "scheduleId": content_id(chapter.first.spec.schedule, 6),
        "trained": chapter.schedule_words,
        "facts": chapter.facts,
        "on": chapter.first.evaluated_on,
        "conclusion": conclusion(chapter),
        "steps": scenario.steps,
        "classes": list(bank.class_names) if bank else None,
        "highlighted": [keys[id(entry)] for entry in chapter.highlighted],
        "rows": [
            {
                "key": keys[id(entry)],
                "baseline": chapter.is_baseline(entry),
                **entry_numbers(entry, pictures),
                **_ablation(chapter, entry, keys),
            }
            for entry in chapter.entries
        ],
    }


def entry_numbers(entry: Entry, pictures: StripImages) -> Json:
    """One method: what is compared by seed, and what is shown for the lowest seed."""
    first = entry.first
    timed = [run for run in entry.runs if run.made_by.timed]
    tests = [_test_id(run) for run in entry.runs]
    return {
        "name": entry.name,
        "named": entry.configuration is not None,
        "seeds": [run.spec.seed for run in entry.runs],
        "streams": _stream_ids(entry, tests),
        "tests": tests,
        "updates": entry.updates,
        "final": [round(run.final, 6) for run in entry.runs],
        "forgetting": [_rounded(run.forgetting, 6) for run in entry.runs],
        "overall": [[round(value, 6) for value in run.overall] for run in entry.runs],
        "dropped": _mean_drops(entry.runs),
        "matrix": _mean_matrix(entry.runs),
        "published": entry.published,
        "gate": _over_steps(entry, "gate", GATE),
        "known": _over_steps(entry, "known", KNOWN),
        "scores": [_scores(step.gate, step.unlabeled) if step.gate else None for step in first.steps],
        "strip": _strip(pictures.strips[first.id]) if entry.gated else None,
        "order": first.class_order,
        "met": [len(step.new_classes) for step in first.steps],
        "confusion": first.confusion,
        "phases": _phase_minutes(timed),
        "kept": [run.memory_bytes for run in entry.runs if run.memory_bytes is not None],
        "minutes": [_rounded(run.minutes, 6) for run in timed],
        "peak": [run.made_by.peak_memory for run in entry.runs],
        "runs": [_made(run) for run in entry.runs],
        "spec": spec_to_plain(first.spec),
    }  # fmt: skip


def _ablation(chapter: Chapter, entry: Entry, keys: Mapping[int, str]) -> Json:
    found = chapter.base_of(entry)
    if found is None:
        return {"base": None}
    words = ", ".join(change_in_words(*change) for change in found[1].items())
    return {"base": keys[id(found[0])], "changes": found[1], "changed": words}


def _test_id(run: RunRecord) -> str:
    """A key that is equal for runs with the same classes in the same order, tested on the same images."""
    main = run.content.get(run.spec.scenario.main)
    return content_id((run.class_order, run.evaluated_on, run.evaluated_rows, run.spec.stream, main), 6)


def _stream_ids(entry: Entry, tests: Sequence[str]) -> list[str]:
    """A key that is equal for runs with the same images in every step: their differences can be paired."""
    stream = content_id(replace(entry.first.spec.scenario, memory=0))
    pairs = zip(entry.runs, tests, strict=True)
    return [content_id((stream, run.spec.seed, test, sorted(run.content.items())), 6) for run, test in pairs]


def _over_steps(entry: Entry, part: str, readings: Sequence[Reading]) -> Json:
    """By name of the reading and by seed, a value or None for each step; readings without any value are left out."""
    found: dict[str, list[Numbers]] = {}
    parts = [[getattr(step, part) for step in run.steps] for run in entry.runs]
    for name, _, read in readings:
        values = [[None if one is None else read(one) for one in run] for run in parts]
        by_seed = [[None if value is None else round(value, 4) for value in run] for run in values]
        if any(value is not None for run in by_seed for value in run):
            found[name] = by_seed
    return found


def _scores(gate: GateRecord, unlabeled: int) -> Json:
    return {
        "accept": round(gate.threshold, 4),
        "pseudo": round(gate.pseudo_threshold, 4),
        "accepted": gate.passed,
        "labeled": gate.pseudo_labeled,
        "of": unlabeled,
        "counts": gate.histograms,
    }


def _strip(strip: Strip) -> Json:
    rows = {row.step: [_tiles(row.let_in), _tiles(row.kept_out)] for row in strip.rows}
    return {"rows": rows, "missing": "data" if strip.without_data else "room" if strip.left_out else None}


def _tiles(tiles: Sequence[Tile]) -> list[Json]:
    return [
        {"kind": tile.kind, "words": tile.words}
        | ({} if tile.sprite is None else {"sprite": tile.sprite.number, "place": tile.place})
        for tile in tiles
    ]


def _mean_matrix(runs: Sequence[RunRecord]) -> list[list[float]]:
    """Accuracy after step t (row) on the classes of step k (column), mean over seeds."""
    steps = range(len(runs[0].accuracy))
    return [[round(fmean(run.accuracy[t][k] for run in runs), 4) for k in range(t + 1)] for t in steps]


def _mean_drops(runs: Sequence[RunRecord]) -> list[float]:
    """Points lost on the classes of each step but the last, mean over seeds."""
    return [round(fmean(lost), 4) for lost in zip(*(drops(run.accuracy) for run in runs), strict=True)]


def _phase_minutes(runs: Sequence[RunRecord]) -> dict[str, float]:
    """Mean over the runs of the minutes of each phase over all steps."""
    total: dict[str, float] = {}
    for run in runs:
        for phase in (phase for step in run.steps for phase in step.phases):
            total[phase.name] = total.get(phase.name, 0.0) + phase.seconds / 60 / len(runs)
    return {name: round(minutes, 6) for name, minutes in total.items()}


def _made(run: RunRecord) -> Json:
    made = plain(run.made_by)
    parts = [f"{part.commit} on {part.device}, torch {part.torch}" for part in run.made_by.earlier]
    data = {f"content of {name}": digest for name, digest in run.content.items()}
    return {
        "id": run.id,
        **made,
        "device": device_words(made["device"]),
        "earlier": "; ".join(parts) or None,
        "timed": run.made_by.timed,
        **data,
    }


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)


def slug(text: str) -> str:
    """Letters, digits and dashes, for addresses."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def unique_slugs(names: Sequence[str]) -> list[str]:
    """A slug of each name, with a number where another name has it already."""
    found: list[str] = []
    for name in names:
        one = slug(name) or "row"
        numbered = (f"{one}-{number}" for number in count(1))
        found.append(next(made for made in chain([one], numbered) if made not in found))
    return found
