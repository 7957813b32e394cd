"""Fix accessibility problems in the pages that Sphinx and its theme produce.

The arrows that unfold the sidebar have an icon and no name, and the parameters of a long signature are a list of
definitions without terms.
"""

import re
from collections.abc import Callable
from typing import Any

from sphinx.application import Sphinx

TOGGLE = '<summary aria-label="Show or hide the pages of this part">'
SIGNATURE = re.compile(r"<dl>\n((?:<dd>.*?</dd>\n)+)</dl>")


def mend(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: object) -> None:
    if make := context.get("generate_toctree_html"):
        context["generate_toctree_html"] = _naming_toggles(make)
    if "body" in context:
        context["body"] = SIGNATURE.sub(_as_lines, context["body"])


def _naming_toggles(make: Callable[..., Any]) -> Callable[..., Any]:
    def named(kind: str, *args: Any, **options: Any) -> Any:
        made = make(kind, *args, **options)
        return made if kind == "raw" else str(made).replace("<summary>", TOGGLE)

    return named


def _as_lines(found: re.Match[str]) -> str:
    return found[1].replace("<dd>", '<span class="sig-line">').replace("</dd>", "</span>")


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("html-page-context", mend, priority=900)  # after the theme
    return {"parallel_read_safe": True, "parallel_write_safe": True}
