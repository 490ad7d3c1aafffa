"""The SQLite store: one private folder, one database file, any number of processes on one machine."""

from callboard.adapters.storage.durable import DamageReport
from callboard.adapters.storage.sqlite.store import Durability, SqliteStore, open_store

__all__ = ["DamageReport", "Durability", "SqliteStore", "open_store"]
