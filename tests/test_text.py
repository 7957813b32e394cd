"""Names from files, as they are printed."""

import pytest

from osscl.text import printable


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("dog.png", "dog.png"),
        ("Größe 名前 🐕\u200d🦺.png", "Größe 名前 🐕\u200d🦺.png"),
        ("at 3.00\u202fPM.png", "at 3.00\u202fPM.png"),  # a narrow space, as in names of screenshots
        ("red\x1b[31m", "red\\x1b[31m"),
        ("title\x1b]0;x\x07", "title\\x1b]0;x\\x07"),
        ("eight\x9b31m", "eight\\x9b31m"),
        ("two\nlines\r\t", "two\\nlines\\r\\t"),
        ("separator\u2028", "separator\\u2028"),
        ("gnp.\u202etxt", "gnp.\\u202etxt"),  # would be shown as txt.png
        ("\udce4.png", "\\udce4.png"),  # a byte of a file name that is not UTF-8
    ],
)
def test_characters_that_act_on_a_terminal_are_escaped(name, shown):
    assert printable(name) == shown
