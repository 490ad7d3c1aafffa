"""The terminal: its only writer, keys, signals, questions, and live pages."""
