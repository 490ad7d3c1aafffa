"""Create the environment that `make` uses: a venv with this package and the packages that its tests need.

    python tests/set_up.py FOLDER REQUIREMENT

uv installs the packages, in seconds where pip takes 45 (measured on 2 cores). It is taken from `PATH`, or else pip
installs it into the venv. In that case it gets pip's settings on registries, because it does not read them itself. If
uv cannot be installed, or fails, pip installs the packages. The exit code is that of the command that failed, or 0.
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

SAME_SETTINGS = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "trusted-host": "UV_INSECURE_HOST",
    "constraint": "UV_CONSTRAINT",
    "no-index": "UV_NO_INDEX",
    "default-timeout": "UV_HTTP_TIMEOUT",
    "timeout": "UV_HTTP_TIMEOUT",
    "cert": "SSL_CERT_FILE",
    "proxy": "ALL_PROXY",
}
"""Settings of pip, and the environment variables of uv that mean the same."""
SEPARATORS = {"UV_FIND_LINKS": ","}
"""What separates the values of a variable, if it is not a space."""


def pip_settings(listed: str) -> dict[str, str]:
    """Return the settings in the output of `pip config list`, by name. A later line wins, as it does for pip."""
    settings = dict[str, str]()
    for line in listed.splitlines():
        name, found, value = line.partition("=")
        if found:
            settings[name.rpartition(".")[2]] = str(ast.literal_eval(value))
    return settings


def uv_variables(settings: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that give uv the settings of pip. Variables that are set already stay."""
    variables = {"UV_INDEX_STRATEGY": "unsafe-best-match"}  # the newest version of all registries, as pip chooses
    for name, variable in SAME_SETTINGS.items():
        if name in settings:
            variables[variable] = SEPARATORS.get(variable, " ").join(settings[name].split())
    return {name: value for name, value in variables.items() if name not in environment}


def installed_uv(pip: Sequence[str]) -> tuple[str | None, dict[str, str]]:
    """Install uv with pip. Return its path, or None, and the variables that give it the settings of pip."""
    done = subprocess.run([*pip, "install", "-q", "uv"], capture_output=True, text=True, check=False)
    uv = Path(pip[0]).with_name("uv")
    if done.returncode or not uv.exists():
        return None, {}
    listed = subprocess.run([*pip, "config", "list"], capture_output=True, text=True, check=False).stdout
    return str(uv), uv_variables(pip_settings(listed), os.environ)


def main(folder: str, requirement: str) -> int:
    """Create the venv in `folder`, install the requirement as an editable package, and return the exit code."""
    sys.stderr.write(f"Setting up {folder}, once.\n")
    python = Path(folder).absolute() / "bin/python"
    pip = [str(python), "-m", "pip", "--disable-pip-version-check"]
    uv, variables = shutil.which("uv"), dict[str, str]()
    create = (
        [uv, "venv", "-q", "--allow-existing", "--python", sys.executable] if uv else [sys.executable, "-m", "venv"]
    )
    if code := subprocess.run([*create, folder], check=False).returncode:
        return code
    has_pip = uv is None
    if has_pip:
        uv, variables = installed_uv(pip)
    if uv is not None:
        install = [uv, "pip", "install", "-q", "--python", str(python), "-e", requirement]
        code = subprocess.run(install, env={**os.environ, **variables}, check=False).returncode
        if code == 0 or not has_pip:
            return code
    sys.stderr.write("uv cannot install the packages here: pip does, which takes about a minute.\n")
    return subprocess.run([*pip, "install", "-q", "-e", requirement], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
