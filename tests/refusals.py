"""Refusals are tested by their type and by the names in them: an option, a field, a file, a class, a number.

Their wording is tested in `test_messages.py` only, so that rewording a message changes no other test."""

import re

import typer

UsageError: type[Exception] = typer.BadParameter.__mro__[1]  # typer has no public name for it


def naming(*whole):
    """The pattern of a message that has each of these as a whole: `naming("--seed")` does not find `--seeds`."""
    return "(?s)" + "".join(rf"(?=.*(?<![\w-]){re.escape(str(name))}(?![\w-]))" for name in whole)


def check_refusal(raised, line, error, about):
    """The exception that a command ended with is of this type, not of a subclass, and its line has these names."""
    kind = UsageError if isinstance(raised, UsageError) else type(raised)
    assert kind is error, f"{kind.__name__}: {line}"
    assert re.search(naming(*about if isinstance(about, list | tuple) else [about]), line), line
