"""Read amounts as people write them."""


def parse(text):
    """Cents of an amount: `12`, `12.5` and `12.50` are 12 units and no, or 50, cents."""
    whole, _, fraction = text.strip().partition(".")
    if not whole.isdigit() or not (fraction or "0").isdigit() or len(fraction) > 2:
        raise ValueError(f"{text!r} is not an amount")
    return int(whole) * 100 + int(fraction or "0")
