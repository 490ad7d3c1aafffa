"""The contracts between the engine and the world: Protocols only, one file a family. Nothing here does anything.

Each port has an adapter for the real thing and an in-memory twin, and both pass one conformance suite.
"""
