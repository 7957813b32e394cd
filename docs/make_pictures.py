"""Make the drawings and numbers of docs/concepts.md: `python docs/make_pictures.py [method]`.

Writes docs/_static/method.svg, the report's drawing in the colours of the site. Without `method`, trains URSL on the
first three steps of the demo's stream as well, about 40 seconds of one CPU core, and writes docs/_static/one-step.svg
and the text between the marks in docs/concepts.md.
"""

import base64
import io
import re
import sys
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from osscl import metrics
from osscl.data.images import Labeled
from osscl.methods import method_class
from osscl.methods.base import GateReport, Runtime
from osscl.report.page import page_part
from osscl.runs.evaluate import evaluate
from osscl.runs.run import load_banks, setting_of
from osscl.runs.spec import RunSpec, demo_specs
from osscl.stream.build import Step, Truth, build_stream

DOCS = Path(__file__).parent
PICTURE = DOCS / "_static" / "one-step.svg"
DRAWING = DOCS / "_static" / "method.svg"
PAGE = DOCS / "concepts.md"
BEGIN, END = "<!-- pictures: python docs/make_pictures.py -->", "<!-- end of pictures -->"
SEED, STEPS = 0, 3
SHOWN = 200  # unlabelled images in the picture
WIDTH, TOP, AXIS, HEIGHT = 740, 100, 430, 472
TILE, PER_ROW, BINS = 16, 25, 45
SPRITE = 10  # 8 x 8 pixels and a margin
STYLE = """<style>
.drawing { font: 14px system-ui, "Noto Sans", sans-serif; --ink: var(--pst-color-text-base, #7a828e);
  --soft: var(--pst-color-text-muted, #7a828e); --halo: var(--pst-color-background, transparent);
  --reference: var(--step-met, #2a9d5c); --learner: var(--step-in, #2f81d7); --gate: var(--step-sure, #d9730d);
  --head: var(--step-head, #8e59c4); }
.drawing text { fill: var(--ink); }
.drawing .name { text-anchor: middle; font-weight: 700; font-size: 21px; }
.drawing .words { text-anchor: middle; font-size: 15.5px; fill: var(--soft); }
.drawing .s { font-size: 70%; }
.drawing rect { fill: none; stroke: var(--soft); stroke-width: 1.5; }
.drawing .data rect { stroke-dasharray: 5 4; }
.drawing .net rect, .drawing .gate rect { fill-opacity: .14; stroke-width: 2; }
.drawing .reference rect { fill: var(--reference); stroke: var(--reference); }
.drawing .learner rect, .drawing .past rect { fill: var(--learner); stroke: var(--learner); }
.drawing .past rect { fill-opacity: .06; }
.drawing .gate rect { fill: var(--gate); stroke: var(--gate); }
.drawing .head rect { fill: var(--head); stroke: var(--head); }
.drawing .arrow { fill: none; stroke: var(--soft); stroke-width: 1.8; }
.drawing marker path { fill: var(--soft); }
.drawing .flow { font-size: 15.5px; paint-order: stroke; stroke: var(--halo);
  stroke-width: 5px; stroke-linejoin: round; }
.drawing .loss { font-weight: 700; font-size: 17.5px; fill: var(--pst-color-primary, #7a828e); }
.drawing .end { text-anchor: end; }
</style>
"""


@dataclass(frozen=True)
class OneStep:
    """What is known about the last of the steps, before and after it was learned."""

    spec: RunSpec
    step: Step
    truth: Truth
    memory: Labeled  # M as it was during the step
    labeled_scores: Tensor  # S of T_t and M
    gate: GateReport
    before: tuple[float, ...]  # % on the classes of each earlier step
    after: tuple[float, ...]
    overall: tuple[float, float]  # % over all classes seen, before and after
    tested: tuple[int, ...]  # test images of the classes of each step

    @property
    def in_t_hat(self) -> Tensor:
        new = self.gate.pseudo_labels.new_tensor(self.step.new_classes)
        return self.gate.confident & ~torch.isin(self.gate.pseudo_labels, new)


def learn_one_step() -> OneStep:
    """Train URSL up to the step that is shown."""
    torch.set_num_threads(1)
    spec = demo_specs(SEED)["URSL"]
    stream = build_stream(spec.scenario, load_banks(spec, None, torch.device("cpu")), SEED)
    agent = method_class(spec.method)(spec.method, setting_of(spec, stream), Runtime())
    accuracy, overall, memory = [], [], agent.memory.labeled
    for t in range(STEPS):
        memory = agent.memory.labeled
        report = agent.learn(stream.step(t))
        by_step, total, *_ = evaluate(agent, stream, t)
        accuracy.append(by_step)
        overall.append(total)
    assert report.gate is not None and report.gate.used
    tested = tuple(len(stream.evaluation(t).labels) for t in range(STEPS))
    return OneStep(
        spec, stream.step(t), stream.truth(t), memory, agent.gate.labeled_scores, report.gate,
        accuracy[-2], accuracy[-1], (overall[-2], overall[-1]), tested,
    )  # fmt: skip


# ----- the picture


def picture(one: OneStep) -> str:
    """The step as an SVG whose tiles can stand in a grid or above their score; page.css moves them."""
    rows = torch.randperm(len(one.step.unlabeled), generator=torch.Generator().manual_seed(SEED))[:SHOWN]
    labeled = torch.cat((one.step.labeled.images, one.memory.images))
    sprite = torch.cat((labeled, one.step.unlabeled[rows]))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="one-step" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{SHOWN} unlabelled images of one step, placed by score, with both thresholds">',
        f"<style>{STYLE}</style>",
        f'<defs><image id="digits" width="{SPRITE}" height="{SPRITE * len(sprite)}" href="{_png(sprite)}"/></defs>',
        *_labeled_strip(one),
        *_axis(one),
        *_tiles(one, rows, len(labeled)),
        *_legend(),
        "</svg>\n",
    ]
    return "\n".join(parts)


def _png(images: Tensor) -> str:
    """The images below each other, as a data address; their edges are repeated, so that none shines into the next."""
    padded = F.pad(images.float(), (1, 1, 1, 1), mode="replicate").byte()
    file = io.BytesIO()
    Image.fromarray(padded[:, 0].reshape(-1, SPRITE).numpy()).save(file, "png", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def _image(sprite_row: int) -> str:
    view = f'viewBox="1 {SPRITE * sprite_row + 1} {SPRITE - 2} {SPRITE - 2}"'
    return f'<svg x="1" y="1" width="{TILE - 2}" height="{TILE - 2}" {view}><use href="#digits"/></svg>'


def _labeled_strip(one: OneStep) -> Iterable[str]:
    x = 34.0
    row = 0
    for name, count in (("T", len(one.step.labeled.labels)), ("M", len(one.memory.labels))):
        low = '<tspan class="low" dy="4">t</tspan>' if name == "T" else ""
        yield f'<text x="{x - 10:g}" y="27" class="name end">{name}{low}</text>'
        for _ in range(count):
            yield f'<g transform="translate({x:g} 6) scale(1.85)">{_image(row)}</g>'
            x, row = x + 31, row + 1
        x += 52
    yield '<text x="0" y="62" class="name">U<tspan class="low" dy="4">t</tspan></text>'
    yield f'<text x="24" y="62">{SHOWN} of its {len(one.step.unlabeled)} images</text>'


def _bin_of(score: float) -> int:
    return min(BINS - 1, max(0, int((score + 0.2) / 1.2 * BINS)))


def _across(score: float) -> float:
    """Where a score lies on the axis."""
    return 10 + (score + 0.2) / 1.2 * BINS * TILE


def _axis(one: OneStep) -> Iterable[str]:
    yield '<g class="axis">'
    yield f'<path d="M10 {AXIS}H{10 + BINS * TILE}"/>'
    for tick in (-0.2, 0.0, 0.2, 0.4, 0.6, 0.8, 1.0):
        anchor = {-0.2: " start", 1.0: " end"}.get(tick, " middle")
        x = _across(tick)
        yield f'<path d="M{x:.0f} {AXIS}v5"/><text class="tick{anchor}" x="{x:.0f}" y="{AXIS + 19}">{tick:.1f}</text>'
    words = "score S(x): largest cosine to a prototype"
    yield f'<text class="middle" x="{_across(0.4):.0f}" y="{AXIS + 37}">{words}</text>'
    yield "</g>"
    marks = (("id", one.gate.threshold, "end", -5), ("pl", one.gate.pseudo_threshold, "start", 5))
    yield '<g class="thresholds">'
    for name, score, anchor, dx in marks:
        x = _across(score)
        yield f'<path d="M{x:.1f} {TOP - 8}V{AXIS}"/>'
        yield (
            f'<text class="{anchor}" x="{x + dx:.1f}" y="{TOP + 12}">τ<tspan class="low" dy="4">{name}</tspan>'
            f'<tspan dy="-4"> {score:.2f}</tspan></text>'
        )
    yield "</g>"


def _tiles(one: OneStep, rows: Tensor, first: int) -> Iterable[str]:
    height = [0] * BINS
    place = {}
    for row in rows[one.gate.scores[rows].argsort()].tolist():
        column = _bin_of(float(one.gate.scores[row]))
        place[row] = (10 + TILE * column, AXIS - TILE * (height[column] + 1) - 1)
        height[column] += 1
    assert AXIS - TILE * max(height) > TOP, "the columns are too high for the picture"
    for i, row in enumerate(rows.tolist()):
        grid = (10 + 29 * (i % PER_ROW), TOP - 12 + 36 * (i // PER_ROW))
        kinds = " ".join(_kinds(one, row))
        where = f"--gx:{grid[0]}px;--gy:{grid[1]}px;--sx:{place[row][0]}px;--sy:{place[row][1]}px"
        title = f"<title>S = {float(one.gate.scores[row]):.2f}</title>"
        frame = f'<rect width="{TILE}" height="{TILE}" rx="2"/>'
        yield f'<g class="tile {kinds}" style="{where}">{title}{frame}{_image(first + i)}</g>'


def _kinds(one: OneStep, row: int) -> Iterable[str]:
    yield "met" if one.truth.seen[row] else "later" if one.truth.unseen[row] else "foreign"
    if one.gate.passed[row]:
        yield "u-hat"
    if one.in_t_hat[row]:
        yield "t-hat"


def _legend() -> Iterable[str]:
    entries = {
        "gate": (("u-hat", "Û"), ("u-hat t-hat", "Û and T̂"), ("out", "rejected")),
        "truth": (("met", "class seen"), ("later", "class to come"), ("foreign", "letter")),
    }
    for name, kinds in entries.items():
        yield f'<g class="legend {name}">'
        for i, (kind, words) in enumerate(kinds):
            x = 12 + i * 230
            yield f'<g class="key {kind}"><rect x="{x}" y="76" width="16" height="16" rx="2"/></g>'
            yield f'<text x="{x + 24}" y="89">{words}</text>'
        yield "</g>"


# Colours come from the page where there is one; opened alone, the picture shows what was accepted.
STYLE = """
.one-step { font: 14px system-ui, "Noto Sans", sans-serif; --ink: var(--pst-color-text-base, #7a828e);
  --in: var(--step-in, #2f81d7); --sure: var(--step-sure, #d9730d); --met: var(--step-met, #2a9d5c); }
.one-step text { fill: var(--ink); }
.one-step .name { font-weight: 700; font-size: 17px; }
.one-step .low { font-size: 70%; }
.one-step .middle { text-anchor: middle; }
.one-step .end { text-anchor: end; }
.one-step .axis path, .one-step .thresholds path { fill: none; stroke: var(--ink); }
.one-step .thresholds path { stroke-dasharray: 5 4; stroke-width: 1.5; }
.one-step .tick { font-size: 12px; }
.one-step .tile { transform: translate(var(--sx), var(--sy)); }
.one-step rect { fill: none; stroke: none; stroke-width: 2.5; }
.one-step .out rect, .one-step .key.foreign rect { fill: #000; stroke: var(--ink); stroke-width: 1; opacity: .4; }
.one-step .tile:not(.u-hat) { opacity: .35; }
.one-step .u-hat rect { stroke: var(--in); }
.one-step .t-hat rect { stroke: var(--sure); stroke-width: 4; }
.one-step .key.met rect { stroke: var(--met); }
.one-step .key.later rect { stroke: var(--ink); stroke-dasharray: 3 2; }
.one-step .truth { display: none; }
"""


# ----- the text


def text(one: OneStep) -> str:
    """The numbered explanation, with the numbers of this run."""
    alt = f"{SHOWN} unlabelled images of one step, placed by score, with both thresholds"
    items = "\n".join(_wrapped(f"{i}. {words}") for i, words in enumerate(_explanation(one), start=1))
    run = f"method `ursl`, schedule `{one.spec.schedule.name}`, seed {one.spec.seed}, n = 1 run"
    made = f"Created by `python docs/make_pictures.py`: {run}. Another CPU model gives slightly different numbers."
    return f"{BEGIN}\n![{alt}](_static/one-step.svg)\n\n{items}\n\n{_table(one)}\n\n{made}\n{END}"


def _wrapped(item: str) -> str:
    return textwrap.fill(item, 118, subsequent_indent="   ", break_on_hyphens=False)


def _explanation(one: OneStep) -> Iterable[str]:
    step, gate, truth = one.step, one.gate, one.truth
    new, past = " and ".join(map(str, step.new_classes)), len(set(one.memory.labels.tolist()))
    yield (
        f"**Images arrive.** Step {STEPS} brings the digits {new}, with {one.spec.scenario.labels_per_class} labelled "
        f"images each (T_t). The memory M holds {len(one.memory.labels)} labelled images of the {past} digits seen "
        f"before. U_t has {len(step.unlabeled)} images without labels; nothing says which of them show digits."
    )
    yield (
        "**Scores.** The reference network learns from U_t without labels. The mean embedding of each class in T_t and "
        "M is its prototype, and the score of an image is its largest cosine to a prototype."
    )
    scores, (eta_id, eta_pl) = one.labeled_scores, one.spec.method.gate.eta
    yield (
        f"**Thresholds.** The labelled images themselves score {scores.mean():.2f} on average (standard "
        f"deviation {scores.std():.2f}, which the demo uses instead of the variance). With η = {eta_id:g} and "
        f"{eta_pl:g} this gives τ_id = {gate.threshold:.2f} and τ_pl = {gate.pseudo_threshold:.2f}."
    )
    passed, seen = int(gate.passed.sum()), int(truth.seen.sum())
    yield (
        f"**The gate decides.** {passed} of {len(step.unlabeled)} images are accepted, with scores above τ_id: "
        f"these are Û. {int(gate.confident.sum())} are also above τ_pl, and {gate.used} of those are nearest to a "
        "class of an earlier step: these are T̂. In L_sup they are negatives of the new classes, and L_TD keeps their "
        "relations."
    )
    right = int((gate.pseudo_labels == truth.labels)[one.in_t_hat].sum())
    found = int((gate.passed & truth.seen).sum())
    yield (
        f"**The truth.** Only the evaluation knows it: U_t has {seen} digits of classes seen, "
        f"{int(truth.unseen.sum())} of later classes and {int(truth.foreign.sum())} letters. Of the images in Û, "
        f"{found} show a class seen (precision {found / passed:.2f}, recall {found / seen:.2f}; AUROC of the score "
        f"{metrics.auroc(gate.scores, truth.seen):.3f}). {right} of the {gate.used} pseudo-labels of T̂ are correct."
    )
    yield (
        f"**The learner learns.** Accuracy in % on the {sum(one.tested)} test images of the classes seen, before and "
        "after the step:"
    )


def _table(one: OneStep) -> str:
    columns = [f"classes of step {t + 1}" for t in range(STEPS)]
    before = [*(f"{value:.1f}" for value in one.before), "—"]
    lines = [
        f"| | {' | '.join(columns)} | all seen |",
        f"|---|{'---|' * (STEPS + 1)}",
        f"| before | {' | '.join(before)} | {one.overall[0]:.1f} |",
        f"| after | {' | '.join(f'{value:.1f}' for value in one.after)} | {one.overall[1]:.1f} |",
    ]
    return "\n".join("   " + line for line in lines)


def method_drawing() -> str:
    """The report's drawing of the method, as a separate file in the colours of the site."""
    tag, rest = str(page_part("method.svg")).split("\n", 1)
    return tag.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ') + "\n" + STYLE + rest


def main(names: list[str]) -> None:
    DRAWING.write_text(method_drawing(), encoding="utf-8")
    print(f"wrote {DRAWING.relative_to(DOCS.parent)}")
    if names == ["method"]:
        return
    one = learn_one_step()
    PICTURE.write_text(picture(one), encoding="utf-8")
    page = PAGE.read_text(encoding="utf-8")
    block = text(one)
    PAGE.write_text(re.sub(f"{re.escape(BEGIN)}.*?{re.escape(END)}", lambda _: block, page, flags=re.DOTALL), "utf-8")
    print(f"wrote {PICTURE.relative_to(DOCS.parent)} and the block in {PAGE.relative_to(DOCS.parent)}")


if __name__ == "__main__":
    main(sys.argv[1:])
