"""Stores: in memory, in SQLite, and on a PostgreSQL server. All implement `callboard.ports.store`."""
