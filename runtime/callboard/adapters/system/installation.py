"""Installation of this Callboard: the program that installed it, and the command that updates it.

Only files of the installation are read, in which installers leave traces: `INSTALLER` and `direct_url.json` of the
package's metadata (PEP 376, PEP 610), the receipt of a uv tool, the metadata of pipx. The command names no package
host: the installer's own settings do.
"""

from __future__ import annotations

import importlib.util
import json
import site
import sys
from collections.abc import Mapping
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit
from urllib.request import url2pathname

from callboard import __version__
from callboard.types.lazy_dataclass import dataclass

NAME = "callboard"


@dataclass(frozen=True, slots=True)
class Installation:
    """An installed version. Without a `command`, `advice` says how to update it."""

    version: str
    how: str
    """Installer and place: `with pip, in /home/me/.venv`."""
    command: tuple[str, ...] = ()
    advice: str = ""
    """Further steps, besides the command."""


@dataclass(frozen=True, slots=True)
class PythonEnvironment:
    """The Python environment that contains a package."""

    prefix: Path
    python: str
    user_site: str = ""
    """Folder of packages that the user installed outside any environment; empty inside one."""
    has_pip: bool = True

    @classmethod
    def current(cls) -> PythonEnvironment:
        """Return that of this process."""
        user_site = site.getusersitepackages() if sys.prefix == sys.base_prefix else ""
        return cls(Path(sys.prefix), sys.executable, user_site, importlib.util.find_spec("pip") is not None)


def this_installation() -> Installation:
    """Return how the Callboard of this process was installed."""
    try:
        package = distribution(NAME)
    except PackageNotFoundError:
        source = Path(__file__).parents[3]
        return Installation(__version__, f"not installed, run from {source}", advice="update that folder")
    return installation_of(package, PythonEnvironment.current())


def installation_of(package: Distribution, environment: PythonEnvironment) -> Installation:
    """Return how a package was installed in an environment."""
    prefix = environment.prefix
    source = _source(package)
    folder = cast("Mapping[str, object]", source.get("dir_info") or {})
    url = str(source.get("url", ""))
    if folder.get("editable") is True:
        place = _path(url)
        advice = f"update that folder, for example with `git -C {place} pull`, then install it as before"
        return Installation(__version__, f"from the checkout {place}, which it runs directly", advice=advice)
    if (prefix / "uv-receipt.toml").is_file():
        return Installation(package.version, f"with uv tool, in {prefix}", ("uv", "tool", "upgrade", prefix.name))
    if (prefix / "pipx_metadata.json").is_file():
        return Installation(package.version, f"with pipx, in {prefix}", ("pipx", "upgrade", prefix.name))
    if any(part.startswith(("archive-v", "environments-v")) for part in prefix.parts):
        advice = f"`uvx {NAME}@latest` runs the newest version"
        return Installation(package.version, f"by uvx for one run, in {prefix}", advice=advice)
    return _from_installer(package, environment, source)


def _from_installer(
    package: Distribution, environment: PythonEnvironment, source: Mapping[str, object]
) -> Installation:
    """Return how pip, uv, or another program installed a package into an environment."""
    prefix = environment.prefix
    installer = (package.read_text("INSTALLER") or "").strip()
    how = f"with {installer or 'an unknown program'}, in {prefix}"
    if installer == "uv" and (prefix.parent / "uv.lock").is_file() and not source:
        command = ("uv", "sync", "--project", str(prefix.parent), "--upgrade-package", NAME)
        return Installation(package.version, how, command)
    if installer not in ("pip", "uv") or (installer == "pip" and not environment.has_pip):
        missing = "that environment has no pip any more: " if installer == "pip" else ""
        return Installation(package.version, how, advice=f"{missing}update it as you installed it")
    if installer == "uv":
        install = ("uv", "pip", "install", "--python", environment.python)
        fresh = ("--reinstall-package", NAME) if source else ("--upgrade-package", NAME)
    else:
        # -P: a folder `pip` where the command is run is not imported.
        install = (environment.python, "-P", "-m", "pip", "install")
        user = bool(environment.user_site) and str(package.locate_file("")).startswith(environment.user_site)
        fresh = ("--upgrade", *(("--user",) if user else ()), *(("--force-reinstall",) if source else ()))
    if not source:
        return Installation(package.version, how, (*install, *fresh, NAME))
    url = str(source.get("url", ""))
    if "vcs_info" in source:
        return Installation(package.version, f"{how}, from {url}", (*install, *fresh, f"{NAME} @ {_vcs(source)}"))
    if "dir_info" in source:
        place = _path(url)
        advice = "update that folder first"
        return Installation(package.version, f"{how}, from the folder {place}", (*install, *fresh, place), advice)
    place = _path(url) if url.startswith("file:") else url
    return Installation(package.version, f"{how}, from {place}", advice="install a newer file in the same way")


def _source(package: Distribution) -> Mapping[str, object]:
    """Return where the package came from; empty for a package index, and for metadata that cannot be read."""
    try:
        source: object = json.loads(package.read_text("direct_url.json") or "{}")
    except (ValueError, RecursionError):
        return {}
    return cast("Mapping[str, object]", source) if isinstance(source, dict) else {}


def _vcs(source: Mapping[str, object]) -> str:
    """Return the address of a repository as installers take it: `git+https://example.org/x@main#subdirectory=y`."""
    details = source.get("vcs_info")
    info = cast("Mapping[str, object]", details if isinstance(details, dict) else {})
    revision = info.get("requested_revision")
    folder = source.get("subdirectory")
    return (
        f"{info.get('vcs', 'git')}+{source.get('url', '')}"
        f"{f'@{revision}' if revision else ''}{f'#subdirectory={folder}' if folder else ''}"
    )


def _path(url: str) -> str:
    return url2pathname(urlsplit(url).path)
