"""Write the reference from the code: a page for each command, the public Python names, and every option of a method.

The pages go to reference/commands and reference/python, which Git ignores.
"""

import ast
import inspect
import io
import re
import sys
import tokenize
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from sphinx.application import Sphinx

# Pages of public names, by the package that defines them: title and introduction.
GROUPS = {
    "osscl.agent": ("Agents", "Learn from your own images, step by step."),
    "osscl.runs": ("Runs", "Run a method on a stream, read its record, load its model."),
    "osscl.methods": ("Methods", "Methods, their named configurations, and schedules."),
    "osscl.data": ("Data", "Data sets and folders of images."),
    "osscl.stream": ("Streams", "Which images arrive at which step."),
    "osscl.tools": ("Checks", "Check your own method."),
}
# Modules that are documented whole, below the public names.
MODULES = {
    "contract": ("The method contract", "osscl.methods.base"),
    "phases": ("Training phases", "osscl.methods.phases"),
    "step": ("Steps and streams", "osscl.stream.build"),
    "contrastive": ("Contrastive losses", "osscl.losses.contrastive"),
    "distillation": ("Distillation losses", "osscl.losses.distillation"),
    "metrics": ("Metrics", "osscl.metrics"),
}


def write_pages(app: Sphinx) -> None:
    """Write all pages; files that are up to date are not touched, and stale ones are removed."""
    folder = Path(app.srcdir) / "reference"
    pages = {**command_pages(), **python_pages()}
    for name, text in pages.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
    for old in [*folder.glob("commands/*.md"), *folder.glob("python/*.md")]:
        if str(old.relative_to(folder)) not in pages:
            old.unlink()


def plain(text: str) -> str:
    """Text of the code as Markdown: what is not between backticks is taken literally."""
    parts = re.split(r"(`[^`]+`)", " ".join(text.split()))
    return "".join(part if part.startswith("`") else re.sub(r"([\\*_\[\]<>{}$#|~])", r"\\\1", part) for part in parts)


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def toctree(names: list[str], options: str = "hidden") -> str:
    return f"```{{toctree}}\n:{options}:\n\n" + "\n".join(names) + "\n```\n"


# ----- commands


def command_pages() -> dict[str, str]:
    """A page for each command, and an index with the first line of each help text."""
    from typer import Context
    from typer.main import get_command

    from osscl.cli import app

    program = get_command(app)
    root = Context(program, info_name="osscl")
    commands = {name: command for name, command in program.commands.items() if not command.hidden}
    panels: dict[str, list[tuple[str, ...]]] = {}
    for name, command in commands.items():
        row = f"[`osscl {name}`]({name}.md)", plain(_summary(command))
        panels.setdefault(getattr(command, "rich_help_panel", None) or "Commands", []).append(row)
    words = "Generated from the program's help texts; `osscl COMMAND --help` prints the same."
    tables = [f"## {panel}\n\n{table(('command', 'what it does'), rows)}" for panel, rows in panels.items()]
    index = "\n".join([f"# Commands\n\n{words}\n", *tables, toctree(list(commands))])
    pages = {"commands/index.md": index}
    for name, command in commands.items():
        pages[f"commands/{name}.md"] = "\n".join(_command(Context(command, info_name=name, parent=root), 1))
    return pages


def _summary(command: Any) -> str:
    return (command.help or "").strip().split("\n\n")[0]


def _command(context: Any, level: int) -> Iterator[str]:
    command, path = context.command, context.command_path
    usage = command.get_usage(context).removeprefix("Usage: ")
    yield f"{'#' * level} {path}\n\n```text\n{usage}\n```\n"
    for paragraph in (command.help or "").strip().split("\n\n"):
        yield plain(paragraph) + "\n"
    yield f"```{{program}} {path}\n```\n"
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option" and not p.hidden and p.name != "help"]
    for title, params in (("Arguments", arguments), ("Options", options)):
        records = [record for param in params if (record := param.get_help_record(context))]
        if records:
            yield f"{'#' * (level + 1)} {title}\n"
        for names, words in records:
            yield _parameter(names.strip(), words, title)
    for name, inner in getattr(command, "commands", {}).items():
        yield from _command(type(context)(inner, info_name=name, parent=context), level + 1)


def _parameter(names: str, words: str, title: str) -> str:
    if title == "Arguments":
        return f"`{names}`\n: {plain(words) or '—'}\n"
    return f"```{{option}} {re.sub(' +/ +', ', ', names)}\n{plain(words)}\n```\n"


# ----- Python


def python_pages() -> dict[str, str]:
    """The public names by package, whole modules that methods are written with, and the options of each method."""
    import osscl

    pages, rows = {}, []
    for package, (title, words) in _groups(osscl).items():
        names = sorted(n for n, module in osscl._PUBLIC.items() if module.startswith(package))
        page = package.rpartition(".")[2]
        blocks = [_public_name(name, getattr(osscl, name)) for name in names]
        pages[f"python/{page}.md"] = f"# {title}\n\n{words}\n\n" + "\n".join(blocks)
        rows += [(f"[`osscl.{name}`]({page}.md)", plain(_first_sentence(getattr(osscl, name)))) for name in names]
    for page, (title, module) in MODULES.items():
        pages[f"python/{page}.md"] = f"# {title}\n\n" + _rst(
            f".. automodule:: {module}\n   :members:\n   :undoc-members:"
        )
    pages["python/options.md"] = options_page()
    names = [Path(name).stem for name in pages]
    pages["python/index.md"] = (
        "# Python\n\nEverything in this table is imported from `osscl` itself and is part of the public interface.\n\n"
        f"{table(('name', 'what it is'), rows)}\n"
        "Your own method is written with the [contract](contract.md), [steps](step.md) and, where they help, the "
        "[contrastive](contrastive.md) and [distillation](distillation.md) losses and the [metrics](metrics.md); "
        "[options](options.md) lists what `--set` changes.\n\n" + toctree(names)
    )  # fmt: skip
    return pages


def _groups(package: ModuleType) -> dict[str, tuple[str, str]]:
    """The pages that have names; a package without a title here is titled by its name."""
    found = dict.fromkeys(".".join(module.split(".")[:2]) for module in package._PUBLIC.values())
    order = sorted(found, key=lambda name: list(GROUPS).index(name) if name in GROUPS else len(GROUPS))
    return {name: GROUPS.get(name, (name.rpartition(".")[2].capitalize(), "")) for name in order}


def _public_name(name: str, value: Any) -> str:
    if isinstance(value, Mapping):
        keys = ", ".join(f"`{key}`" for key in value)
        kind = {type(item).__name__ for item in value.values()}
        values = f" Values: `{kind.pop()}`." if len(kind) == 1 and kind != {"type"} else ""
        return _rst(f".. py:data:: osscl.{name}") + f"\nA dictionary with the keys {keys}.{values}\n"
    if inspect.isclass(value):
        return _rst(f".. autoclass:: osscl.{name}\n   :members:")
    return _rst(f".. autofunction:: osscl.{name}")


def _first_sentence(value: Any) -> str:
    if isinstance(value, Mapping):
        return "dictionary: " + ", ".join(map(str, value))
    paragraph = " ".join((inspect.getdoc(value) or "").split("\n\n")[0].split())
    return re.split(r"(?<=\.) ", paragraph)[0]


def _rst(text: str) -> str:
    return f"```{{eval-rst}}\n{text}\n```\n"


# ----- options of the methods


def options_page() -> str:
    """Every field of every method's configuration, with its default and the comment next to it."""
    from osscl.methods import CONFIGURATIONS, METHODS

    parts = [
        "# Options of the methods\n\n`--set FIELD=VALUE` of `osscl run`, `osscl fit` and `osscl tune` changes a "
        "field; in Python, `dataclasses.replace` does. Values are those of the configuration of the same name.\n"
    ]
    for name in METHODS:
        rows = [(f"`{leaf}`", f"`{value}`", plain(words)) for leaf, value, words in _leaves(CONFIGURATIONS[name])]
        parts.append(
            f"## {name}\n\n{plain(inspect.getdoc(METHODS[name]) or '')}\n\n{table(('field', 'value', 'meaning'), rows)}"
        )
    return "\n".join(parts)


def _leaves(config: Any, prefix: str = "") -> Iterator[tuple[str, Any, str]]:
    comments, hints = field_comments(type(config)), get_type_hints(type(config))
    for field in fields(config):
        value = getattr(config, field.name)
        if is_dataclass(value):
            yield from _leaves(value, f"{prefix}{field.name}.")
        else:
            choices = get_args(hints[field.name]) if get_origin(hints[field.name]) is Literal else ()
            words = [comments.get(field.name, ""), "one of " + ", ".join(map(str, choices)) if choices else ""]
            yield f"{prefix}{field.name}", value, "; ".join(filter(None, words))


@cache
def field_comments(kind: type) -> dict[str, str]:
    """The comment next to or above each declared field of a class, its base classes included."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if "__annotations__" in vars(base) and base.__module__.startswith("osscl"):
            found |= _comments_in(sys.modules[base.__module__], base.__name__)
    return found


def _comments_in(module: ModuleType, name: str) -> dict[str, str]:
    source = inspect.getsource(module)
    tree = next((n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.ClassDef) and n.name == name), None)
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = {}  # line: text, and whether nothing stands before it
    for token in tokens:
        if token.type == tokenize.COMMENT:
            alone = not token.line[: token.start[1]].strip()
            comments[token.start[0]] = (token.string.lstrip("# "), alone)
    found = {}
    for node in tree.body if tree is not None else ():
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            above, line = [], node.lineno - 1
            while line in comments and comments[line][1]:
                above.insert(0, comments[line][0])
                line -= 1
            beside = comments.get(node.end_lineno or node.lineno, ("", True))
            found[node.target.id] = " ".join([*above, *([] if beside[1] else [beside[0]])])
    return found


# ----- docstrings


def as_restructured_text(app: Sphinx, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Docstrings are plain text with Markdown's backticks; a class also lists its fields and their comments."""
    if inspect.isclass(value) and (value.__doc__ or "").startswith(f"{value.__name__}("):
        lines.clear()  # made by dataclass(), not written
    lines[:] = [_literal(line) for line in lines]
    if inspect.isclass(value):
        comments = {name: words for name, words in field_comments(value).items() if words}
        lines += ["", *(f"* ``{field}``: {_literal(words)}" for field, words in comments.items())]


def skip_fields(app: Sphinx, what: str, name: str, value: Any, skip: bool, options: Any) -> bool | None:
    """Leave out fields: the signature and the list of comments show them."""
    is_field = not isinstance(value, property) and getattr(value, "__name__", None) != name
    return True if what == "class" and is_field else None


def _literal(line: str) -> str:
    parts = re.split(r"(`+[^`]+`+)", line)
    return "".join(
        f"``{p.strip('`')}``" if p.startswith("`") else re.sub(r"([\\*|]|_(?=\W|$))", r"\\\1", p) for p in parts
    )


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("builder-inited", write_pages)
    app.connect("autodoc-skip-member", skip_fields)
    app.connect("autodoc-process-docstring", as_restructured_text, priority=400)  # before napoleon
    return {"parallel_read_safe": True, "parallel_write_safe": True}
