"""Note a change: adds one line to changes/NAME.md. Each run adds a line, so that a change noted twice shows."""

import sys
from pathlib import Path

CHANGES = Path(__file__).resolve().parent.parent / "changes"


def main():
    """NAME TEXT..."""
    if len(sys.argv) < 3 or not sys.argv[1].isalnum():
        sys.exit("usage: note.py NAME TEXT...")
    name, text = sys.argv[1], " ".join(sys.argv[2:])
    with open(CHANGES / f"{name}.md", "a", encoding="utf-8") as file:
        file.write(f"- {text}\n")
    print(f"Noted {name}.")


if __name__ == "__main__":
    main()
