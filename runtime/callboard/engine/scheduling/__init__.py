"""The scheduler of a session, and its unfinished fires."""
