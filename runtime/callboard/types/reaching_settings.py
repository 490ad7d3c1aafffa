"""Settings of the ways to reach the person: the web page, its answer links, and notifications.

A workspace can set none of them: they decide who answers, and where texts of a session are sent.
"""

from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from callboard.types.settings_section import Seconds, Section

_LOOPBACK = ("127.0.0.1", "::1", "localhost")


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
    """Reverse proxy in front of the page."""
    users: dict[str, str] = Field(default_factory=dict)
    """Name -> scrypt hash of the password. `callboard web --add-user NAME` adds one."""
    link_seconds: Annotated[Seconds, Field(gt=0)] = 3_600.0
    """Seconds for which an answer link is valid."""


class NotifyTarget(Section):
    """One place to which notifications are sent."""

    kind: Literal["webhook", "ntfy", "slack", "desktop"]
    """Kind of the place."""
    url: str = ""
    """Address; not for `desktop`. For `ntfy` it ends with the topic."""
    headers: dict[str, str] = Field(default_factory=dict)
    """Headers of the request, such as `Authorization`."""
    link: Literal["answer", "page", "none"] = "page"
    """Link to send with a request: one that answers it without a sign-in, one to the page, or none. `desktop` never
    gets an answer link, because other programs see its text."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        """Refuse an address that the kind cannot use, and one that would show an answer link to others."""
        if self.kind == "desktop":
            if self.url or self.link == "answer":
                raise ValueError("a desktop target has no url, and gets no answer link")
            return self
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("url has to begin with http:// or https://")
        if self.kind == "ntfy" and not parts.path.rpartition("/")[2]:
            raise ValueError("the url of an ntfy target ends with its topic: https://ntfy.sh/TOPIC")
        if self.link == "answer" and parts.scheme == "http" and parts.hostname not in _LOOPBACK:
            raise ValueError("an answer link is only sent over https")
        return self


class NotifySettings(Section):
    """Notifications when something waits for the person (docs/requests.md)."""

    targets: tuple[NotifyTarget, ...] = ()
    """Places to which they are sent."""
    events: tuple[Literal["permission_prompt", "idle_prompt", "agent_needs_input", "agent_completed"], ...] = (
        "permission_prompt",
        "agent_needs_input",
        "idle_prompt",
    )
    """Kinds of notifications to send."""
