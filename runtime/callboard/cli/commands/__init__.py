"""Commands of `callboard`, one module for each. `root.py` has their table."""
