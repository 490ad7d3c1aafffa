"""A person's editor, run with their rights, without files that an agent wrote into the workspace.

The editor starts in a private folder, and its programs and modules are searched for outside of the workspace.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from contextlib import ExitStack
from pathlib import Path

from callboard.adapters.processes.programs import environment_outside, find_program, is_within
from callboard.adapters.system.scratch import scratch_folder

_KNOWN = ("sensible-editor", "vim", "nano", "vi")
"""Editors to try, in this order, if the person names none."""
_SET = "set $VISUAL or $EDITOR"


class EditorFailed(Exception):
    """Raised if no editor can be run, it failed, or it left no text. The message contains the remedy."""


def edit_text(text: str, name: str, workspace: Path) -> str | None:
    """Return the text as a person saved it in $VISUAL or $EDITOR; None if they did not save. Waits for the editor.

    `name`: name of the file in the editor. Raises `EditorFailed`.
    """
    command = _editor(workspace)
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(scratch_folder(_temporary(workspace)))
        except OSError as failed:
            raise EditorFailed(f"no temporary folder can be made for the editor ({failed.strerror})") from failed
        file = folder / name
        try:
            file.write_text(text if text.endswith("\n") or not text else f"{text}\n", "utf-8", "replace")
            os.utime(file, (1, 1))  # an old time, so that even a quick save on a coarse clock changes it
        except OSError as failed:
            raise EditorFailed(f"{file} cannot be written ({failed.strerror})") from failed
        _run([*command, str(file)], folder, workspace)
        return _saved(file)


def _saved(file: Path) -> str | None:
    try:
        if file.stat().st_mtime == 1:
            return None
        return file.read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeError as failed:
        raise EditorFailed("the saved file is not UTF-8 text") from failed
    except OSError as failed:
        raise EditorFailed(f"the editor left no file ({failed.strerror})") from failed


def _run(command: list[str], folder: Path, workspace: Path) -> None:
    environment = {**environment_outside(os.environ, workspace), "PWD": str(folder)}
    try:
        process = subprocess.Popen(command, env=environment, cwd=folder)
    except OSError as failed:
        raise EditorFailed(f"the editor {command[0]} cannot be started ({failed.strerror}): {_SET}") from failed
    code = process.wait()
    if code:
        how = f"exit code {code}" if code > 0 else f"signal {-code}"
        raise EditorFailed(f"the editor {command[0]} failed ({how}); if it is the wrong one, {_SET}")


def _editor(workspace: Path) -> list[str]:
    """Return the command of the person's editor, with the absolute path of its program."""
    chosen = os.environ.get("VISUAL") or os.environ.get("EDITOR")
    try:
        command = shlex.split(chosen) if chosen else []
    except ValueError as failed:
        raise EditorFailed(f"$VISUAL or $EDITOR cannot be read as a command ({failed}): correct its quotes") from failed
    if not command:
        editor_path = next((path for editor in _KNOWN if (path := find_program(editor, workspace))), None)
        if editor_path is None:
            raise EditorFailed(f"no editor was found ({', '.join(_KNOWN)}): {_SET}")
        return [editor_path]
    inside = next((word for word in command if _is_file_in(word, workspace)), None)
    if inside is not None:
        raise EditorFailed(
            f"the editor `{chosen}` runs {inside} in the workspace, which agents may have written: {_SET}"
        )
    if "/" in command[0]:
        return [os.path.abspath(command[0]), *command[1:]]  # noqa: PTH100 - links are followed by the kernel
    program = find_program(command[0], workspace)
    if program is None:
        raise EditorFailed(f"the editor {command[0]} was not found on PATH outside the workspace: {_SET}")
    return [program, *command[1:]]


def _is_file_in(word: str, workspace: Path) -> bool:
    real = os.path.realpath(word)
    return "/" in word and os.path.isfile(real) and is_within(real, os.path.realpath(workspace))  # noqa: PTH113 - a resolved text, compared with the workspace's


def _temporary(workspace: Path) -> Path | None:
    """Return a folder for temporary files outside of the workspace; None for the default."""
    inside = os.path.realpath(workspace)
    usual = (tempfile.gettempdir(), "/tmp", "/var/tmp")  # noqa: S108 - a private folder is created in it
    return next((Path(folder) for folder in usual if not is_within(os.path.realpath(folder), inside)), None)
