"""Make relative links to files of the repository work in the site; they stay relative links on Git hosting.

A Python file becomes a highlighted page, another file a download, and a folder its name.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform
from sphinx.util import logging

ROOT = Path(__file__).resolve().parents[2]
log = logging.getLogger(__name__)


class RepositoryLinks(SphinxTransform):
    """Resolve links that leave docs/."""

    default_priority = 400  # after parsing, before downloads are collected

    def apply(self, **kwargs: Any) -> None:
        for node in list(self.document.findall(addnodes.download_reference)):
            self._file(node, self._path(node["reftarget"]))
        for node in list(self.document.findall(addnodes.pending_xref)):
            if node.get("reftype") == "myst" and (path := self._outside(node)):
                self._folder_or_page(node, path)

    def _path(self, target: str) -> Path:
        return Path(self.env.relfn2path(target, self.env.docname)[1]).resolve()

    def _outside(self, node: nodes.Element) -> Path | None:
        """The path of a link that does not name a page of the site."""
        if node.get("refdomain") == "doc":  # a Markdown file; its name is relative to docs/
            path = (Path(self.env.srcdir) / f"{node['reftarget']}.md").resolve()
        else:
            path = self._path(node["reftarget"].split("#")[0])
        return path if path.is_relative_to(ROOT) and not path.is_relative_to(self.env.srcdir) else None

    def _file(self, node: nodes.Element, path: Path) -> None:
        if path.suffix != ".py" or path.is_relative_to(self.env.srcdir):
            return
        page = _page_name(path)
        self.env.metadata[self.env.docname].setdefault("source_pages", []).append(str(path))
        address = self.env.app.builder.get_relative_uri(self.env.docname, page)
        node.replace_self(nodes.reference("", "", *node.children, internal=True, refuri=address))

    def _folder_or_page(self, node: nodes.Element, path: Path) -> None:
        if not path.exists():
            name = path.relative_to(ROOT)
            log.warning("%s does not exist", name, location=node, type="repository", subtype="link")
        words = nodes.inline("", "", *node.children, classes=["repository"])
        name = str(path.relative_to(ROOT))
        if name not in node.astext():
            words += [nodes.Text(" in "), nodes.literal("", name)]
        node.replace_self(words)


def _page_name(path: Path) -> str:
    return f"source/{path.relative_to(ROOT).with_suffix('')}"


def source_pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """A page for every Python file that a page links to."""
    linked = {Path(path) for data in app.env.metadata.values() for path in data.get("source_pages", [])}
    for path in sorted(linked):
        code = app.builder.highlighter.highlight_block(path.read_text(encoding="utf-8"), "python", linenos="inline")
        title = str(path.relative_to(ROOT))
        yield _page_name(path), {"title": title, "body": f"<h1>{title}</h1>{code}"}, "page.html"


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_transform(RepositoryLinks)
    app.connect("html-collect-pages", source_pages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
