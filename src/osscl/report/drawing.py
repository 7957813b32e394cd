"""The method as a drawing: networks, gate, memory and head, with the losses and data sets between them."""

import re

from osscl.report.html import escape, prose

STEPS = (
    ("Reference", "UR_t learns from all unlabelled images of the step, U_t, without labels: L_SSL, here NT-Xent."),
    (
        "Gate",
        "Prototypes of the classes met, from T_t and M in the reference's space. An unlabelled image whose score S(x) "
        "passes τ_id enters Û; past τ_pl, if it looks like a past class, it enters T̂ too.",
    ),
    (
        "Learner",
        "SL_t learns from labels and T̂ by L_sup, keeps what it was before by L_TD (its teacher is SL_t−1), and "
        "follows the reference on labels and Û by L_KD.",
    ),
    (
        "Head",
        "A linear head on the learner's features, fitted on T_t and M, names the class. "
        "In ursl-plus, which is ours, the learner starts as the reference, a head on UR_t has half of the say, and "
        "both heads learn from Û, too, and from what is kept of labels whose images have left M.",
    ),
    ("Memory", "M keeps equally many labelled images of every class met. Unlabelled images are never kept."),
)
WORDS = (
    "Drawing of the method. Unlabelled images U_t train the reference network by L_SSL. Labelled images T_t and the "
    "memory M give the gate its prototypes; it sorts U_t into T-hat and U-hat. The learner network is trained by L_sup "
    "on T_t, M and T-hat, by L_TD against its own past, and by L_KD against the reference on T_t, M and U-hat. A "
    "linear head on the learner names the class; M is updated at the end of the step."
)


def drawing() -> str:
    """The drawing as an SVG element that takes its colours from the page."""
    return (
        f'<svg class=drawing viewBox="0 0 600 578" role=img aria-label="{escape(WORDS)}">'
        '<defs><marker id=tip viewBox="0 0 10 10" refX=9 refY=5 markerWidth=7 markerHeight=7 orient=auto-start-reverse>'
        f'<path d="M0 0 10 5 0 10z"/></marker></defs>{"".join([*_flows(), *_data(), *_networks()])}</svg>'
    )


def explanation() -> str:
    """The same in five sentences."""
    return f"<ol class=steps>{''.join(f'<li><strong>{name}.</strong> {prose(text)}</li>' for name, text in STEPS)}</ol>"


def _data() -> list[str]:
    return [
        "<rect class=pair x=4 y=4 width=272 height=92 rx=14 />",
        _box(16, 16, 124, 68, "data", "T_t", "few labels"),
        _box(150, 16, 114, 68, "data", "M", "memory"),
        _box(376, 16, 220, 68, "data", "U_t", "no labels, a flood"),
        _box(316, 412, 126, 62, "data", "T̂", "like the past"),
        _box(454, 412, 142, 62, "data", "Û", "like a class met"),
    ]


def _networks() -> list[str]:
    return [
        _box(376, 150, 220, 68, "net reference", "UR_t", "reference network"),
        _box(346, 286, 250, 68, "gate", "gate", "S(x) against τ_id, τ_pl"),
        _box(4, 172, 160, 64, "net past", "SL_t−1", "its own past"),
        _box(4, 322, 210, 92, "net learner", "SL_t", "learner network"),
        _box(4, 504, 210, 70, "net head", "head", "names the class"),
    ]


def _flows() -> list[str]:
    return [
        _arrow("M456 84V148", "L_SSL, NT-Xent", 466, 123, "loss"),
        _arrow("M456 218V284", "embeds U_t", 466, 258),
        _arrow("M190 96V320", "T_t, M", 182, 142, "end"),
        _arrow("M240 96V270Q240 308 276 308H344", "prototypes", 248, 142),
        _arrow("M384 354V410", "S > τ_pl", 376, 388, "end"),
        _arrow("M525 354V410", "S > τ_id", 535, 388),
        _arrow("M84 236V320", "L_TD", 94, 286, "loss"),
        _arrow("M376 190H326Q290 190 290 226V322Q290 350 258 350H216", "L_KD", 226, 342, "loss"),
        _arrow("M316 443H282Q250 443 250 416Q250 388 234 388H216", "L_sup", 258, 432, "loss"),
        _arrow("M525 474V486Q525 504 506 504H258Q232 504 232 478V426Q232 404 216 404", "Û, for L_KD", 400, 498),
        _arrow("M109 414V502", "features", 119, 464),
    ]


def _box(x: int, y: int, width: int, height: int, css: str, name: str, words: str) -> str:
    middle = x + width / 2
    return (
        f'<g class="{css}"><rect x={x} y={y} width={width} height={height} rx=10 />'
        f"<text class=name x={middle} y={y + height / 2 - 3}>{_lowered(name)}</text>"
        f"<text class=words x={middle} y={y + height / 2 + 17}>{_lowered(words)}</text></g>"
    )


def _arrow(path: str, words: str, x: int, y: int, css: str = "") -> str:
    text = f'<text class="flow {css}" x={x} y={y}>{_lowered(words)}</text>'
    return f'<path class=arrow d="{path}" marker-end="url(#tip)"/>{text}'


def _lowered(text: str) -> str:
    """Escaped, with subscripts set low and the line brought back up after them."""
    low = r"\1<tspan class=s dy=4>\2</tspan><tspan dy=-4>&#8203;</tspan>"
    return re.sub(r"(\w+)_(t−1|\w+)", low, escape(text))
