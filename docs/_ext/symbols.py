"""Write the paper's symbols with an index, as in T with a small t for T_t; on Git hosting they are shown unchanged."""

import re
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

SYMBOL = re.compile(r"\b(UR|SL|U|T|L|O|τ|η)_(t|id|pl|sup|TD|KD|SSL)\b")
VERBATIM = (nodes.literal, nodes.literal_block, nodes.raw, nodes.title)  # anchors are made from titles


class Symbols(SphinxTransform):
    """Split text at symbols and put their indices low."""

    default_priority = 420  # when links and drawings are in place

    def apply(self, **kwargs: Any) -> None:
        for text in list(self.document.findall(nodes.Text)):
            if SYMBOL.search(text) and not _is_verbatim(text):
                text.parent.replace(text, _with_indices(str(text)))


def _is_verbatim(node: nodes.Node | None) -> bool:
    while node is not None:
        if isinstance(node, VERBATIM):
            return True
        node = node.parent
    return False


def _with_indices(text: str) -> list[nodes.Node]:
    found: list[nodes.Node] = []
    end = 0
    for match in SYMBOL.finditer(text):
        found += [nodes.Text(text[end : match.start()]), nodes.emphasis("", match[1]), nodes.subscript("", match[2])]
        end = match.end()
    return [*found, nodes.Text(text[end:])]


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_transform(Symbols)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
