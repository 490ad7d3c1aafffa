"""Private sockets of a host: the live text of replies, and announcements of answers."""
