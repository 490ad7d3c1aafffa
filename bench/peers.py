"""Other frameworks beside Callboard, as further sides of `step.py` and `fanout.py`.

They need an environment of their own, because their dependencies are not those of Callboard:

    python -m venv peers && peers/bin/pip install "pydantic-ai-slim[anthropic]" langgraph langchain-anthropic
    python bench/step.py --peers peers/bin/python
"""

from __future__ import annotations

import argparse
import json
import subprocess
from pathlib import Path

HERE = Path(__file__).parent
VERSIONS = """
import importlib.metadata, json, sys
found = {}
for side, name in json.loads(sys.argv[1]).items():
    try:
        found[side] = f"{name} {importlib.metadata.version(name)}"
    except importlib.metadata.PackageNotFoundError:
        pass
print(json.dumps(found))
"""
SIDES = {"peer_pydantic_ai.py": "pydantic-ai-slim", "peer_langgraph.py": "langgraph"}
"""Program of each side, and the distribution that it needs."""


def asked_for(description: str | None) -> Path | None:
    """Return the interpreter of `--peers PYTHON`, or None."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", metavar="PYTHON", type=Path, help="interpreter that has other frameworks")
    python: Path | None = parser.parse_args().peers
    return None if python is None else python.absolute()  # not resolved: the link is what makes it an environment


def commands(python: Path | None) -> dict[str, list[str]]:
    """Return name and version of each installed framework -> the command of its side."""
    if python is None:
        return {}
    found = subprocess.run([python, "-c", VERSIONS, json.dumps(SIDES)], capture_output=True, text=True, check=True)
    return {name: [str(python), str(HERE / side)] for side, name in json.loads(found.stdout).items()}
