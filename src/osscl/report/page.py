"""The report: one HTML file that needs nothing else, as a function of records."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

from markupsafe import Markup

from osscl import __version__
from osscl.data.images import ImageBank
from osscl.report.formats import ResultTable, environment, to_html
from osscl.report.paper_comparison import PaperComparison
from osscl.report.payload import payload
from osscl.runs.record import RunRecord

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

ROWS = {
    "ursl": "the paper's method: a reference network, trained on everything unlabelled, and a gate choose the images "
    "that the learner may use",
    "ursl-as-printed": "the same with the optimisers that the paper prints",
    "ursl-plus": "our extension of ursl, within the bytes of the paper's memory",
    "ursl-plus-unlimited": "our extension of ursl, which keeps more than the paper's memory",
    "labels-only": "our ablation: ursl's learner on labels alone",
    "co2l": "contrastive continual learning, on labels alone",
    "co2l-authors": "the same as its authors run it",
    "co2l-j": "the same with a contrastive loss on unlabelled images beside it",
    "co2l-p": "the same after pre-training on unlabelled images",
    "gd": "global distillation: three teachers and confidence calibration",
    "dm": "DistillMatch: pseudo-labels behind a novelty detector",
    "gem": "gradient episodic memory, on labels alone",
    "gem-joint": "the same with joint batch statistics",
    "icarl": "incremental classifier and representation learning, on labels alone",
    "reference-only": "a yardstick: a head on the reference network, without a learner",
    "supervised": "a yardstick: the same network trained on all labels at once",
}


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
        counts=", ".join(f"{number} {word}{'s' * (number != 1)}" for number, word in numbers if number),
        rows={name: words for name, words in ROWS.items() if name in methods},
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
    """Rows with a number of ours, and those without under a title of their own."""
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
