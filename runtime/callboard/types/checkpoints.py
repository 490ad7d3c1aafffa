"""Records of checkpoints: the place where a session works, and what of its files a git remote has."""

from typing import Literal

from callboard.types.records import Value

CheckpointPolicy = Literal["turn", "step", "off"]
"""`turn`: at the end of each turn. `step`: also after the tool calls of each reply. `off`: never."""


class CheckpointRow(Value):
    """Newest checkpoint of one working tree of a session: its workspace, or a git worktree."""

    tree: str = ""
    """Name of the worktree; empty: the workspace."""
    place: str
    """Id of the folder on its machine. Another machine, and another folder, have other ids."""
    folder: str
    """Path of the folder on that machine."""
    host: str = ""
    """Name of that machine, for people."""
    earlier: tuple[str, ...] = ()
    """Paths of the folder on the machines before, the newest last."""
    at: float = 0.0
    """Time at which the files were read (Unix seconds); 0.0: there is no checkpoint yet."""
    commit: str = ""
    """Commit of the checkpoint. Its files are those of the working tree."""
    pushed: str = ""
    """Newest checkpoint that the remote certainly has."""
    head: str = ""
    """Commit that is checked out in the working tree; empty: there is none yet."""
    branch: str = ""
    """Branch that is checked out; empty: none is."""
    unpushed: tuple[str, ...] = ()
    """Files that differ between `pushed` and `commit`."""
    left_out: tuple[str, ...] = ()
    """Files that are not in the checkpoint although git does not ignore them, each with the reason."""
    ignored: tuple[str, ...] = ()
    """Files and folders that git ignores. They are not in the checkpoint."""
    servers: tuple[str, ...] = ()
    """MCP servers that run as processes of the machine."""
    by: str = ""
    """Agent that created the worktree."""
    call: str = ""
    """Call that created the worktree, so that it is not repeated."""
    kept_by: str = ""
    """Author of the order to keep the worktree; empty: there is none."""
    failure: str = ""
    """Reason why the last push failed; empty: it did not."""
