"""Put drawings into the page itself, so that they take its colours, and turn one step on digits into a stepper.

In Markdown the stepper is a picture and a numbered list; here a row of radio buttons chooses an item of the list and a
state of the picture. It needs no JavaScript.
"""

from html import escape
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

STEPPER = "one-step.svg"


class InlineDrawings(SphinxTransform):
    """Replace images of SVG files in _static by their text."""

    default_priority = 410

    def apply(self, **kwargs: Any) -> None:
        for image in list(self.document.findall(nodes.image)):
            if image["uri"].endswith(".svg"):
                file, path = self.env.relfn2path(image["uri"], self.env.docname)
                self.env.note_dependency(file)
                self._inline(image, Path(path))

    def _inline(self, image: nodes.image, path: Path) -> None:
        drawing = nodes.raw("", path.read_text(encoding="utf-8"), format="html")
        paragraph = image.parent
        steps = paragraph.next_node(nodes.enumerated_list, descend=False, siblings=True)
        if path.name != STEPPER or steps is None:
            paragraph.replace(image, drawing)
            return
        box = nodes.container("", nodes.raw("", _buttons(steps), format="html"), drawing, classes=["stepper"])
        paragraph.replace_self(box)
        steps.parent.remove(steps)
        box += steps


def _buttons(steps: nodes.enumerated_list) -> str:
    """A radio button for each item, named by its bold words."""
    buttons = ""
    for i, item in enumerate(steps.children, start=1):
        name = escape(next(iter(item.findall(nodes.strong))).astext().rstrip("."))
        checked = " checked" if i == 1 else ""
        buttons += f'<input type="radio" name="stepper" id="stepper-{i}"{checked}>'
        buttons += f'<label for="stepper-{i}"><b>{i}</b> {name}</label>'
    return f'<fieldset><legend class="visually-hidden">Stage of the step</legend>{buttons}</fieldset>'


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_transform(InlineDrawings)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
