"""Adapters: the code that talks to systems outside, one folder for each. They implement the ports."""
