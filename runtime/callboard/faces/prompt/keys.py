"""What the keys do on the prompt line, beyond the usual ones: Enter sends, and a line may have several lines.

It refuses to look at what is typed, but for a backslash at its end.
"""

from __future__ import annotations

from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.filters import has_focus, is_searching
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent


def line_keys() -> KeyBindings:
    """Enter sends; Alt-Enter and Enter after a backslash begin a new line.

    A line feed is Enter too: some terminals, and programs that type into one, send it at the end of a line.
    """
    keys = KeyBindings()
    typing = has_focus(DEFAULT_BUFFER) & ~is_searching
    keys.add("enter", filter=typing)(_enter)
    keys.add("escape", "enter", filter=typing)(_new_line)
    keys.add("c-j", filter=typing)(_enter)
    keys.add("escape", "c-j", filter=typing)(_new_line)
    return keys


def _enter(event: KeyPressEvent) -> None:
    buffer = event.current_buffer
    menu = buffer.complete_state
    if menu is not None and menu.current_completion is not None and not buffer.text.startswith("/"):
        buffer.complete_state = None  # it is taken; the sentence goes on
        return
    before = buffer.document.current_line_before_cursor
    if before.endswith("\\") and not buffer.document.current_line_after_cursor:
        buffer.delete_before_cursor(1)
        _new_line(event)
        return
    buffer.validate_and_handle()


def _new_line(event: KeyPressEvent) -> None:
    event.current_buffer.newline(copy_margin=False)
