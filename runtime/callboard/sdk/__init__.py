"""The Python API: the names in `from callboard import ...`."""
