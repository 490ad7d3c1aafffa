"""The task board: its rules, claims on files, and its text forms."""
