"""Sphinx configuration: `make docs` builds the site from this folder, offline, with warnings as errors."""

import sys
from pathlib import Path

DOCS = Path(__file__).parent
sys.path[:0] = [str(DOCS / "_ext"), str(DOCS.parent / "src")]

from osscl import __version__  # noqa: E402

project = "osscl"
author = "the osscl authors"
version = release = __version__
language = "en"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",  # "Args:" in docstrings
    "sphinx.ext.viewcode",
    "reference_pages",  # reference/commands and reference/python, from the code
    "repository_links",  # links to source files and records, which lie outside this folder
    "pictures",  # drawings in the colours of the page; one step on digits as a stepper
    "symbols",  # T_t with a low t
    "accessible",  # names and lists, for screen readers
]
exclude_patterns = ["_build", "_ext"]

myst_enable_extensions = ["colon_fence", "deflist", "strikethrough"]
myst_heading_anchors = 4  # as on Git hosting: page.md#a-heading

smartquotes = False  # would turn --option into –option
default_role = "code"
napoleon_numpy_docstring = False
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_class_signature = "mixed"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 80
add_module_names = False
toc_object_entries_show_parents = "hide"

html_theme = "pydata_sphinx_theme"
html_title = f"osscl {version}"
html_static_path = ["_static"]
html_css_files = ["page.css"]
html_context = {"default_mode": "auto"}  # light or dark as the system is; a button changes it
html_copy_source = False
html_show_sourcelink = False
html_show_search_summary = False  # would fetch every page found, which browsers refuse for files on disk
html_domain_indices = False
html_sidebars = {"index": [], "concepts": [], "start": []}  # no pages below them
html_theme_options = {
    "logo": {"text": "osscl"},
    "navbar_align": "left",
    "header_links_before_dropdown": 6,
    "navigation_with_keys": False,
    "show_toc_level": 2,
    "show_prev_next": True,
    "footer_start": ["copyright"],
    "footer_end": [],
    "back_to_top_button": True,
    "secondary_sidebar_items": ["page-toc"],
}
copyright = f"the osscl authors, Apache-2.0 · version {version}"
pygments_style = "a11y-high-contrast-light"
