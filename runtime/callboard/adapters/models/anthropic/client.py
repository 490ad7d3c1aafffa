"""A service of the Messages API, from the settings and the environment of a person."""

from __future__ import annotations

import os
import ssl
import urllib.request
from collections.abc import Mapping
from urllib.parse import urlsplit

from callboard.adapters.models.anthropic.credentials import Credentials, KeyCommand, fixed_key, no_key
from callboard.adapters.models.anthropic.faults import FaultTexts
from callboard.adapters.models.anthropic.http import HttpModel
from callboard.adapters.models.anthropic.service import Route, ServiceConnections
from callboard.types.errors import CredentialsMissing, SettingsError

_URL = "https://api.anthropic.com"


class AnthropicModel(HttpModel):
    """Model service behind a base URL, with a key, a token, a command that prints a key, or a profile of the SDK."""

    def __init__(
        self,
        *,
        base_url: str | None,
        api_key: str | None,
        auth_token: str | None = None,
        key_command: KeyCommand | None = None,
        wording: FaultTexts | None = None,
        variables: Mapping[str, str] | None = None,
        without_key: str = "",
    ) -> None:
        """Make the client.

        `base_url`: None means `ANTHROPIC_BASE_URL` of the process, else the vendor's service. `key_command`: used if
        there is neither a key nor a token. `variables`: those of settings files, which precede the process's own:
        proxies, certificates, further headers. Blocks for 0.1 s to load certificates, and for a second if the SDK
        looks for a profile. `without_key`: the message if there are no credentials; empty: that of `no_key`. Raises
        `CredentialsMissing` without a usable key, and `SettingsError` for an invalid base URL, proxy, or file of
        certificates.
        """
        chosen = _checked_url(base_url)
        url, credentials = _credentials(chosen, fixed_key(api_key, auth_token) or key_command, without_key)
        own = variables or {}
        route = Route(url, _proxy(url, own), _custom_headers(own), _trusted(url, own))
        self.host = urlsplit(url).hostname or url
        """Host of the service, for messages."""
        super().__init__(ServiceConnections(route, credentials), wording=wording)


def _credentials(chosen: str | None, own: Credentials | None, without_key: str) -> tuple[str, Credentials]:
    """Return the URL and the credentials. Raises `CredentialsMissing`."""
    url = chosen or _URL
    if own is not None:
        return url, own
    from callboard.adapters.models.anthropic.profile import found_profile  # noqa: PLC0415 - 0.7 s

    found = found_profile(url, chosen=chosen is not None)
    if found is None:
        raise CredentialsMissing(without_key) if without_key else no_key()
    return found.url, found.credentials


def _trusted(url: str, variables: Mapping[str, str]) -> ssl.SSLContext | None:
    """Return the certificates to trust: those of the process, and those that the variables name.

    None for plain HTTP, as loading them takes 65 ms. Raises `SettingsError` for a file that cannot be read.
    """
    if url.startswith("http://"):
        return None
    # The trust of the operating system, SSL_CERT_FILE and SSL_CERT_DIR, in the way of the SDK.
    import httpx2  # noqa: PLC0415 - plain HTTP does without

    context = httpx2.create_ssl_context()
    for file in (variables[name] for name in ("SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS") if variables.get(name)):
        try:
            context.load_verify_locations(file)
        except (OSError, ssl.SSLError) as error:
            raise SettingsError(f"the certificates in {file} cannot be read: {error}", "env of settings") from error
    return context


def _proxy(url: str, variables: Mapping[str, str]) -> str | None:
    """Return the proxy for a URL that the variables or the environment of the process name; None for no proxy.

    Raises `SettingsError` for one that is not an HTTP proxy.
    """
    values = {name.lower(): value.strip() for name, value in variables.items() if value.strip()}
    own = {name.removesuffix("_proxy"): value for name, value in values.items() if name.endswith("_proxy")}
    proxies = {**urllib.request.getproxies(), **own}
    parts = urlsplit(url)
    names = (f".{parts.hostname}", f".{parts.hostname}:{parts.port}")
    excepted = [entry.strip().lstrip(".").lower() for entry in proxies.get("no", "").split(",") if entry.strip()]
    if any(entry == "*" or name.endswith(f".{entry}") for entry in excepted for name in names):
        return None
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy:
        return None
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    if not proxy.startswith(("http://", "https://")):
        scheme = proxy.partition(":")[0]
        raise SettingsError(
            f"a proxy of the kind {scheme!r} is not supported: set HTTPS_PROXY to an HTTP proxy, or except the service "
            "in NO_PROXY",
            "proxy of the model service",
        )
    return proxy


def _custom_headers(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the headers of `ANTHROPIC_CUSTOM_HEADERS`, one in each line."""
    name = "ANTHROPIC_CUSTOM_HEADERS"
    lines = variables.get(name, os.environ.get(name, "")).splitlines()
    named = (line.partition(":") for line in lines if ":" in line)
    return {header.strip(): value.strip() for header, _, value in named if header.strip()}


def _checked_url(base_url: str | None) -> str | None:
    """Return the URL that was set; None for the vendor's. Raises `SettingsError`."""
    base_url = os.environ.get("ANTHROPIC_BASE_URL") if base_url is None else base_url
    if base_url is None:
        return None
    if not base_url.strip():
        message = "ANTHROPIC_BASE_URL is set and empty: unset it, or set it to the service's address (https://...)"
        raise SettingsError(message, "base URL of the model service")
    try:
        url = urlsplit(base_url)
        usable = url.scheme in ("http", "https") and bool(url.hostname) and (url.port or 1) > 0
    except ValueError:  # an unclosed bracket, or a port that is not a number
        usable = False
    if not usable:
        raise SettingsError(
            f"{base_url!r} is not an http or https URL: begin it with https:// or http://, or unset ANTHROPIC_BASE_URL",
            "base URL of the model service",
        )
    return base_url
