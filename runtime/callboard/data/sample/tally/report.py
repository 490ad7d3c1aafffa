"""Say who owes what."""

from tally.money import show


def line(name, cents):
    """One line: a name and what is owed."""
    return f"{name} owes {show(cents)}"
