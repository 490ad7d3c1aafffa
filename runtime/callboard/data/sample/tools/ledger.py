"""Make up a year of bills, the same each time: adds them to build/ledger.log, month by month."""

import random
import time
from pathlib import Path

LOG = Path(__file__).resolve().parent.parent / "build" / "ledger.log"
BILLS_A_MONTH = 156
NAMES = ("ada", "ben", "cleo", "dora", "emil", "frida")
WHAT = ("dinner", "train tickets", "groceries", "cinema", "rent of a boat", "a round of coffee", "museum")


def main():
    """About a second: a ledger is no quick thing."""
    draw = random.Random(2024)
    LOG.parent.mkdir(exist_ok=True)
    for month in range(1, 13):
        with LOG.open("a", encoding="utf-8") as file:
            for number in range(1, BILLS_A_MONTH + 1):
                file.write(bill(draw, month, number))
        print(f"month {month:2}: {BILLS_A_MONTH} bills", flush=True)
        time.sleep(0.08)
    print(f"The ledger holds {12 * BILLS_A_MONTH} bills.")


def bill(draw, month, number):
    """One line."""
    people = draw.sample(NAMES, draw.randint(2, 4))
    cents = draw.randint(250, 98_765)
    day, what = draw.randint(1, 28), draw.choice(WHAT)
    paid = f"paid by {people[0]} for {', '.join(people[1:])}"
    amount = f"{cents // 100:>5}.{cents % 100:02} EUR"
    return f"2025-{month:02}-{day:02}  bill {month:02}-{number:04}  {amount}  {what:<20}{paid:<48}settled\n"


if __name__ == "__main__":
    main()
