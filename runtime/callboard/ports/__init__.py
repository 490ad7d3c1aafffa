"""Contracts between the engine and the outside: protocols only, one file for each family.

Each port has a real adapter and an in-memory twin. One conformance suite tests both.
"""
