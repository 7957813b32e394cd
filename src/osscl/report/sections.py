"""The sections of the page, each a function of records."""

import json
from collections.abc import Mapping, Sequence
from statistics import mean

from osscl.config import plain
from osscl.data.images import ImageBank
from osscl.methods.base import SMOKE
from osscl.report import tables
from osscl.report.beside import Beside
from osscl.report.chapters import Chapter, Entry
from osscl.report.confusion import confusion
from osscl.report.drawing import drawing, explanation
from osscl.report.figures import accuracy_curves, accuracy_matrix, forgetting_curves, keys_of
from osscl.report.formats import TableSection
from osscl.report.gate import gate_over_time, looks_known, pass_rates, score_histograms
from osscl.report.html import bar, cell, details, escape, figure, folding_table, legend, measured, titled_table
from osscl.report.naming import condition_words, method_name, setting_words, unusual_words
from osscl.report.tables import HEADLINE, grouped, headline, headline_row
from osscl.report.thumbnails import Sprite, Strip, Tile
from osscl.report.timing import time_by_phase, untimed_words
from osscl.runs.record import RunRecord
from osscl.runs.spec import describe_schedule, spec_to_plain

KINDS = {
    "seen": "of a class met", "unseen": "of a class to come", "main": "of the main set", "foreign": "of another set",
}  # fmt: skip
SMOKE_WORDS = "smoke: a few updates on a small network; it shows that things run, not how well"
TELLING = 3  # numbers of ours from which on a table of the paper says something
INSIDE = "Look inside: who is remembered, who is taken for whom, what looks known, what the gate did"
BARS = "A bar is our mean, the mark on it the paper's, of its full schedule."
NO_DATA = "What it let in and kept out: the data is not at hand; `osscl report --data DIR` would show the pictures."


def headline_section(records: Sequence[RunRecord]) -> str:
    """The headline table; a bar shows the accuracy, a mark on it the paper's."""
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in HEADLINE)
    body = "".join(_headline_row(runs) for runs in grouped(records))
    return (
        '<section id=headline><h2>Results</h2><div class="scroll card" tabindex=0 role=region aria-label="Results">'
        f"<table class=headline><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
        f"<p class=note>{escape(headline(records).note)} Every line names its schedule, its seeds and the rows that it "
        "was measured on. The mark on a bar is the paper's number. — : not there.</p></section>"
    )


def _headline_row(runs: Sequence[RunRecord]) -> str:
    theirs = tables.beside(runs[0])
    drawn = bar(mean(run.final for run in runs), theirs[0] if theirs else None)
    cells = []
    for column, text in zip(HEADLINE, headline_row(runs), strict=True):
        shown = f"<strong>{cell(text)}</strong>{drawn}" if column == "final %" else cell(text)
        cells.append(f'<td data-label="{escape(column)}">{shown}</td>')
    return f"<tr>{''.join(cells)}</tr>"


def method_section() -> str:
    return (
        "<section id=method><h2>The method</h2><div class=beside>"
        f"<div class=card>{drawing()}</div>{explanation()}</div></section>"
    )


def paper_section(beside: Beside) -> str:
    """A card a table; those with hardly a number of ours, and those that need no run, are lines to be opened."""
    scant = [one for one in beside.tables if len(measured(one)[0]) < TELLING]
    cards = [titled_table(one) for one in beside.tables if one not in scant]
    drawn = f"<div class=two>{''.join(figure(one, 3) for one in beside.figures)}</div>" if beside.figures else ""
    counted = {f"{one.title}: {len(measured(one)[0])} of {len(one.rows)} cells": one for one in scant}
    notes = " ".join([BARS] * bool(beside.tables) + [beside.note] * bool(beside.note))
    return (
        f"<section id=paper><h2>Beside the paper</h2><p class=note>{escape(notes)}</p>{''.join(cards)}"
        f"{_to_be_opened(f'Tables with fewer than {TELLING} numbers of ours', counted)}"
        f"{_to_be_opened('Tables that need no run', {one.title: one for one in beside.values})}{drawn}</section>"
    )


def _to_be_opened(title: str, folded: Mapping[str, TableSection]) -> str:
    lines = "".join(details(name, folding_table(one)) for name, one in folded.items())
    return f"<div class='card runs'><h3>{escape(title)}</h3>{lines}</div>" if folded else ""


def claims_section(claims: Sequence[TableSection]) -> str:
    """What the paper says of its method, and what the records say of that."""
    cards = "".join(f"<div class=card>{folding_table(one)}</div>" for one in claims)
    return f"<section id=claims><h2>The paper's claims</h2>{cards}</section>" if claims else ""


def chapter_section(
    chapter: Chapter, banks: Mapping[str, ImageBank], strips: Mapping[str, Strip], folded: bool = False
) -> str:
    """One setting: all methods together, then a look inside each, folded away where a page has many settings."""
    compared = [accuracy_curves(chapter), forgetting_curves(chapter)]
    drawn = "".join(figure(one, 3) for one in compared if one is not None)
    panels = "".join(_panel(chapter, i, entry, banks, strips) for i, entry in enumerate(chapter.entries))
    inside = f"<div class=panels>{_chooser(chapter)}{panels}</div>"
    return (
        f"<section id=setting-{chapter.number} class=legend-scope>{_chapter_title(chapter)}{_banner(chapter)}"
        f"{_facts(chapter)}{legend(keys_of(chapter))}<div class=two>{drawn}</div>{_timing(chapter)}"
        f"{details(INSIDE, inside, 'inside') if folded else inside}</section>"
    )


def _timing(chapter: Chapter) -> str:
    """The figure, or a line on why there is none."""
    drawn = time_by_phase(chapter)
    if drawn is not None:
        return figure(drawn, 3)
    why = untimed_words(chapter)
    return f"<p class=note>Time by phase is not drawn.{escape(why)}</p>" if why else ""


def _chapter_title(chapter: Chapter) -> str:
    spec = chapter.first.spec
    words = f"{condition_words(spec.scenario)}; schedule {spec.schedule.name}"
    return f"<h2>{escape(chapter.title)} <small>{escape(words)}</small></h2>"


def _banner(chapter: Chapter) -> str:
    if chapter.first.spec.schedule.name != SMOKE.name:
        return ""
    return f'<p><span class="badge open" style="white-space:normal">{escape(SMOKE_WORDS)}</span></p>'


def _facts(chapter: Chapter) -> str:
    """The setting in a line of small words."""
    scenario = chapter.first.spec.scenario
    share = scenario.labeled_fraction
    labels = f"P = {share:g} of the labels" if share else f"{scenario.labels_per_class} labels a class"
    facts = [
        f"schedule {chapter.schedule_words}",
        f"accuracy on {chapter.first.evaluated_rows:,} {chapter.rows_words}",
        labels,
        f"memory {scenario.memory}",
        f"{scenario.steps} steps, {scenario.classes} classes",
        unlabeled_words(chapter.first),
        *unusual_words(scenario),
        *([f"stream {chapter.first.spec.stream}"] if chapter.first.spec.stream else []),
    ]
    return f"<ul class=facts>{''.join(f'<li>{escape(fact)}</li>' for fact in facts)}</ul>"


def unlabeled_words(run: RunRecord) -> str:
    """The unlabelled rows of a step: as the scenario has them, or as many as there really were."""
    scenario, used = run.spec.scenario, [step.unlabeled for step in run.steps]
    related, unrelated = scenario.related or 0, scenario.unrelated or 0
    low, high = min(used), max(used)
    if low == high == related + unrelated * len(scenario.peripheral):
        return f"{related:,} rows of the main set and {unrelated:,} of each other set a step, unlabelled"
    cap = run.spec.schedule.row_cap
    capped = ", capped by the schedule" if cap is not None and high == cap else ""
    return f"{low:,}{f' to {high:,}' if high > low else ''} unlabelled rows a step{capped}"


def _chooser(chapter: Chapter) -> str:
    options = "".join(
        f'<option value="panel-{chapter.number}-{i}">{escape(entry.label)}</option>'
        for i, entry in enumerate(chapter.entries)
    )
    return f"<div class=chooser><label>Look inside <select>{options}</select></label></div>"


def _panel(
    chapter: Chapter, place: int, entry: Entry, banks: Mapping[str, ImageBank], strips: Mapping[str, Strip]
) -> str:
    """One method from inside: who is remembered, who is taken for whom, what looks known, and what its gate did."""
    bank = banks.get(entry.first.spec.scenario.main)
    drawn = [accuracy_matrix(chapter, entry), confusion(chapter, entry, bank.class_names if bank else None)]
    drawn += [looks_known(chapter, entry)] if entry.tells else []
    gate = ""
    if entry.gated:
        figures = [gate_over_time(chapter, entry), pass_rates(chapter, entry), score_histograms(chapter, entry)]
        strip = _strip(entry.first, strips[entry.first.id])
        gate = f"<h4 class=sub>The gate</h4><div class=two>{''.join(map(figure, figures))}</div>{strip}"
    return (
        f"<div class=panel id=panel-{chapter.number}-{place}><h3>{escape(entry.label)}</h3>"
        f"<div class=two>{''.join(map(figure, drawn))}</div>{gate}</div>"
    )


def sprites_style(sprites: Sequence[Sprite]) -> str:
    """The pictures of the page, each once."""
    rules = (
        f".{sprite.name}{{background-image:url({sprite.uri});"
        f"background-size:{100 * sprite.across}% {100 * sprite.down}%}}"
        for sprite in sprites
    )
    return f"<style>{''.join(rules)}</style>" if sprites else ""


def _strip(run: RunRecord, strip: Strip) -> str:
    """The first few rows of U_t that the gate let in and kept out, at each step."""
    if strip.without_data:
        return f"<p class=note>{escape(NO_DATA)}</p>"
    rows = "".join(
        f"<div><h5>step {row.step + 1}</h5>{_side('let in', row.let_in)}{_side('kept out', row.kept_out)}</div>"
        for row in strip.rows
    )
    kinds = [kind for kind in KINDS if any(tile.kind == kind for tile in strip.tiles)]
    marks = "".join(f'<li><span class="tile key {kind}"></span>{kind}: {KINDS[kind]}</li>' for kind in kinds)
    missing = "Pictures are left out: they may take 0.5 MB of a page." if strip.left_out else _without_pictures(strip)
    return (
        f"<section class='card strip'><h4>What it let in, what it kept out</h4><ul class=kinds>{marks}</ul>"
        f"<div class=rows>{rows}</div><p class=note>The first rows of each step's unlabelled images. "
        f"{escape(method_name(run))}, seed {run.spec.seed} (n=1), schedule {escape(run.spec.schedule.name)}. "
        f"{missing}</p></section>"
    )


def _without_pictures(strip: Strip) -> str:
    some = any(tile.sprite is None for tile in strip.tiles)
    return "Where there is no picture, the data was not at hand when the page was made." if some else ""


def _side(words: str, tiles: Sequence[Tile]) -> str:
    drawn = "".join(map(_tile, tiles)) or "<span class=missing>—</span>"
    return f"<div class=side><span class=words>{words}</span><span class=tiles>{drawn}</span></div>"


def _tile(tile: Tile) -> str:
    words = f'role=img aria-label="{escape(tile.words)}" title="{escape(tile.words)}"'
    if tile.sprite is None:
        return f'<span class="tile blank {tile.kind}" {words}></span>'
    down, across = divmod(tile.place, tile.sprite.across)
    left, top = 100 * across / max(1, tile.sprite.across - 1), 100 * down / max(1, tile.sprite.down - 1)
    return (
        f'<span class="tile {tile.kind} {tile.sprite.name}" {words} '
        f'style="background-position:{left:.4f}% {top:.4f}%"></span>'
    )


def runs_section(records: Sequence[RunRecord]) -> str:
    """How each run can be made again."""
    runs = [run for group in grouped(records) for run in group]
    shown = "".join(map(_run, runs))
    return f"<section id=runs><h2>How each run was made</h2><div class='card runs'>{shown}</div></section>"


def _run(run: RunRecord) -> str:
    made = {"id": run.id, **plain(run.made_by), "schedule": describe_schedule(run.spec), **_content(run)}
    made["seconds"] = made["seconds"] if run.made_by.timed else None
    parts = [f"{part.commit} on {part.device}, torch {part.torch}" for part in run.made_by.earlier]
    made["earlier"] = "; ".join(parts) or None
    facts = "".join(f"<dt>{escape(key)}</dt><dd>{escape('—' if v is None else v)}</dd>" for key, v in made.items())
    spec = escape(json.dumps(spec_to_plain(run.spec), indent=1, ensure_ascii=False))
    setting = f"{setting_words(run.spec.scenario)}, {run.spec.schedule.name}"
    title = f"{method_name(run)}: {setting}, seed {run.spec.seed}"
    inside = (
        f"<pre tabindex=0><code>{escape(run.made_by.command)}</code></pre><dl>{facts}</dl>"
        f"{details('Spec', f'<pre tabindex=0><code>{spec}</code></pre>')}"
    )
    return details(title, inside)


def _content(run: RunRecord) -> dict[str, str]:
    return {f"content of {name}": digest for name, digest in run.content.items()}
