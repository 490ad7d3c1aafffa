"""Settings of the ways to reach the person: the web page, its answer links, and notifications.

A workspace can set none of them: they decide who answers, and where texts of a session are sent.
"""

from typing import Annotated, Literal

from pydantic import Field

from callboard.types.settings_section import Seconds, Section


class ProxySetting(Section):
    """Reverse proxy in front of the page. Its requests count as secure, and may name the user."""

    secret: str = ""
    """sha256 of the secret that the proxy sends with every request, in the header `X-Callboard-Proxy`; empty: there is
    no proxy. `callboard web --new-proxy-secret` sets it."""
    addresses: tuple[str, ...] = ("127.0.0.1", "::1")
    """Addresses from which the proxy connects."""
    user_header: str = ""
    """Header with the name of the user, whom the proxy has signed in; empty: users sign in on the page."""


class WebSettings(Section):
    """The web page (docs/web.md)."""

    address: str = ""
    """Address of the page for links, such as `https://agents.example.org`. Default: that of the running page."""
    hosts: tuple[str, ...] = ()
    """Names under which other machines open the page (`agents.example.org`, `agents.example.org:8443`)."""
    certificate: str = ""
    """File with the TLS certificate and its chain. Needed for other machines, unless there is a proxy."""
    key: str = ""
    """File with the private key of the certificate."""
    proxy: ProxySetting = ProxySetting()
    users: dict[str, str] = Field(default_factory=dict)
    """Name -> scrypt hash of the password. `callboard web --add-user NAME` adds one."""
    link_seconds: Annotated[Seconds, Field(gt=0)] = 3_600.0
    """Seconds for which an answer link is valid."""


class NotifyTarget(Section):
    """One place to which notifications are sent."""

    kind: Literal["webhook", "ntfy", "slack", "desktop"]
    url: str = ""
    """Address; not for `desktop`. For `ntfy` it ends with the topic."""
    headers: dict[str, str] = Field(default_factory=dict)
    """Headers of the request, such as `Authorization`."""
    link: Literal["answer", "page", "none"] = "page"
    """Link to send with a request: one that answers it without a sign-in, one to the page, or none. `desktop` never
    gets an answer link, because other programs see its text."""


class NotifySettings(Section):
    """Notifications when something waits for the person (docs/requests.md)."""

    targets: tuple[NotifyTarget, ...] = ()
