"""Preparation of the workspace for a session on this host, before a serving host opens the session."""

from __future__ import annotations

from callboard.ports.store import Store
from callboard.sessions.options import WorkspaceOptions
from callboard.sessions.serve_options import Serving


async def prepare_workspace(serving: Serving, session: str, store: Store) -> WorkspaceOptions:
    """Return the folder in which this host runs the session, with the trust in its content.

    Called with the lease of the session free, so another host may still be faster. A session runs in the folder in
    which the host serves. One with a remote is prepared when it is opened, under its lease (`workspaces.py`): in its
    own folder if that is on this host, otherwise in a clone.
    """
    return WorkspaceOptions(serving.workspace, trust=serving.trust)
