"""Translation of errors of the server and of the connection to it, in one place.

An error that no rule here covers is a bug and is not translated.
"""

from __future__ import annotations

import logging

import psycopg
from psycopg import errors

from callboard.adapters.storage.postgres.address import ServerAddress
from callboard.adapters.storage.postgres.assumptions import SUPERSEDED, WRONG_ASSUMPTION
from callboard.types.errors import CallboardError, StoreBusy, StoreDamaged, StoreFull, WorkspaceUnusable

# After a lost connection, psycopg logs a warning for each further error. Without a handler, Python prints these lines
# on the terminal. The first error is reported in any case
# (test_a_lost_connection_prints_no_line_of_the_library).
logging.getLogger("psycopg").addHandler(logging.NullHandler())

_AGAIN = (errors.UniqueViolation, errors.SerializationFailure, errors.DeadlockDetected)
_OURS = (WRONG_ASSUMPTION, SUPERSEDED)
_STARTING = ("57P", "08", "53300")  # shutdown or start, a lost connection, too many connections
_STOPPED = ("25P03", "25P04")
"""The server ended a transaction in which this process said nothing for too long (`address.IDLE_SECONDS`)."""
_REFUSALS = (
    "password authentication failed",
    "no password supplied",
    "no pg_hba.conf entry",
    "does not exist",
    "not permitted to log in",
    "permission denied",
    "certificate",
)
"""Parts of messages of a server that will not accept this connection later either. libpq gives no code for them."""


def may_repeat(error: psycopg.Error) -> bool:
    """Return True if another process was faster: the same transaction, or its longer form, may succeed at once."""
    return isinstance(error, _AGAIN) or error.sqlstate in _OURS


def is_away(error: psycopg.Error) -> bool:
    """Return True if the server cannot be reached now, and may be reachable later."""
    if isinstance(error, errors.ReadOnlySqlTransaction):
        return True  # a standby, until it is promoted
    if error.sqlstate in _STOPPED:
        return True  # this process was stopped, or is very slow: a new connection can be used
    if not isinstance(error, psycopg.OperationalError | psycopg.InterfaceError) or isinstance(error, errors.DiskFull):
        return False
    if error.sqlstate is not None:
        return error.sqlstate.startswith(_STARTING)
    return not any(part in str(error) for part in _REFUSALS)


def away(error: psycopg.Error, address: ServerAddress) -> StoreBusy:
    """Return the error for a server that cannot be reached."""
    return StoreBusy(f"the server of the store {address} cannot be used now ({_cause(error)}). Nothing was lost")


def translate_error(error: psycopg.Error, address: ServerAddress) -> Exception:
    """Return the runtime's error for an error; the same error if only a bug can cause it."""
    if is_away(error):
        return away(error, address)
    return _translated_final(error, address) or error


def _translated_final(error: psycopg.Error, address: ServerAddress) -> CallboardError | None:
    cause = _cause(error)
    match error:
        case errors.DiskFull() | errors.ConfigurationLimitExceeded():
            return StoreFull(f"no room left at the server of the store {address}: nothing was written. Free some space")
        case errors.DataCorrupted() | errors.IndexCorrupted() | errors.InternalError_():
            return StoreDamaged(f"the store {address} cannot be read ({cause}). Stop, and check the server's disk")
        case errors.InsufficientPrivilege():
            return WorkspaceUnusable(
                f"the store {address} refuses this ({cause}): grant the role CREATE on the database for the first "
                "start, and then its own rights in the schema callboard"
            )
        case psycopg.OperationalError():
            return WorkspaceUnusable(f"the store {address} cannot be opened ({cause}). Check its address and password")
        case _:
            return None


def _cause(error: psycopg.Error) -> str:
    """Return the first line of the error's message."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__
