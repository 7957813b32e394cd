"""Refusals are tested by their type and by the names in them: an option, a field, a file, a class, a number.

Their wording is tested in `test_messages.py` only, so that rewording a message changes no other test."""

import re

import typer

UsageError: type[Exception] = typer.BadParameter.__mro__[1]  # typer has no public name for it


def naming(*whole):
    """The pattern of a message that has each of these as a whole: `naming("--seed")` does not find `--seeds`."""
    return "(?s)" + "".join(rf"(?=.*(?<![\w-]){re.escape(str(name))}(?![\w-]))" for name in whole)


def refusal_of(typed, after_notices=False):
    """A function that types a command and sees it refuse: exit code 2, this error type, one line with these names.

    Notices may come before the line only if they are expected.
    """

    def call(*args, error, about):
        code, _, shown = typed(*args)
        line = shown.splitlines()[-1]
        assert code == 2 and line.startswith("osscl: ") and "Traceback" not in shown, shown
        assert after_notices or shown.count("\n") == 1, shown
        check_refusal(typed.raised, line, error, about)
        return shown

    return call


def check_refusal(raised, line, error, about):
    """The exception that a command ended with is of this type, not of a subclass, and its line has these names."""
    kind = UsageError if isinstance(raised, UsageError) else type(raised)
    assert kind is error, f"{kind.__name__}: {line}"
    assert re.search(naming(*about if isinstance(about, list | tuple) else [about]), line), line
