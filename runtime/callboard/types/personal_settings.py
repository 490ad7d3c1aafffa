"""Settings that only the person sets, never a workspace.

They decide what commands may touch, who answers, where texts of a session are sent, and which sessions are removed.
"""

from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, model_validator

from callboard.types.settings_section import Count, Positive, Seconds, Section

_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def _number(value: object) -> object:
    """Convert the text of an environment variable to a number."""
    return int(value) if isinstance(value, str) and value.isdecimal() else value


class RetentionSettings(Section):
    """Sessions that are removed: `callboard store gc` removes them at once, `callboard serve` once a day.

    Only sessions that have ended, and that no schedule, request, or message waits for. From the user's file and the
    environment, never from a workspace.
    """

    days: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Days after its end at which a session is removed. Default: never."""
    sessions: Count | None = None
    """Number of sessions to keep; the oldest ended ones above it are removed. Default: all are kept."""


class NetworkSettings(Section):
    """Network access of commands."""

    allow: tuple[str, ...] = ()
    """Hosts (`example.org`, `example.org:8443`; default ports 80 and 443) that level 3 lets through; `*`: the whole
    network, at every level."""


class SandboxSettings(Section):
    """Sandbox around the commands of tools. A workspace can never set it."""

    level: Annotated[Literal["auto", 0, 1, 2, 3], BeforeValidator(_number)] = "auto"
    """Sandbox level. `auto`: the best level that the machine supports. A level that it does not support is refused."""
    unattended: Literal["refuse", "any"] = "refuse"
    """For `auto`, in an unattended run on a machine without a sandbox: run no commands, or run them anyway."""
    required: bool = False
    """True: on a machine without a sandbox no command runs, even if a person is present."""
    network: NetworkSettings = NetworkSettings()
    """Network access of commands."""
    writable: tuple[str, ...] = ()
    """Paths that commands may change: outside their folder, or inside it although other tools execute the files."""
    readable: tuple[str, ...] = ()
    """Paths in hidden folders (such as a home directory) that commands may read."""
    hidden: tuple[str, ...] = ()
    """Paths that commands may not read, in addition to the known places of credentials."""
    processes: Count = 2_048
    """Most processes of one command at once; 0: no limit, also for the settings below."""
    memory: Count = 8_192
    """Most data memory of one process, in MB."""
    file_size: Count = 16_384
    """Largest size of one file, in MB."""
    seconds: Count = 0
    """Most processor time of one process, in seconds."""
    env: tuple[str, ...] = ()
    """Environment variables to pass, in addition to the built-in ones; never one whose name suggests a credential."""


class SearchSettings(Section):
    """Search of the web (docs/tools.md). A workspace can never set it."""

    by: Literal["auto", "service", "off"] = "auto"
    """Searches by the model service: if it is the vendor's own, always, or never."""
    command: tuple[str, ...] = ()
    """Program and arguments that search instead: JSON on standard input and output."""
    env: tuple[str, ...] = ()
    """Environment variables to pass to the command, in addition to the built-in ones."""
    allowed_domains: tuple[str, ...] = ()
    """The only domains of results; empty: all."""
    blocked_domains: tuple[str, ...] = ()
    """Domains without results. Give these or `allowed_domains`."""
    most: Positive = 8
    """Most searches of the service in one reply."""


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
