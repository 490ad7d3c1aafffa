"""Tables in the schema `callboard` of the server's database, their versions, and the servers that are refused.

`space` separates workspaces that share a database. Text is compared bytewise (collation "C"), as Python compares it.
`changed` is the transaction that wrote a row: a watch reads what was written by transactions that its last look could
not see (`queries.WatchPosition`), so that no counter makes commits wait for each other. Values may be packed
(`storage.packing`); the server does not compress them again.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import LiteralString

from callboard.adapters.storage.postgres.address import Connection, ServerAddress, run, short_transaction
from callboard.types.errors import WorkspaceUnusable

VERSION = 4
OLDEST_SERVER = 140_000
"""PostgreSQL 14, as the server counts."""
CREATING = 7_310_001
"""Number of the advisory lock under which tables are created and upgraded."""
BLOB_PART_BYTES = 1 << 20

WRITER: tuple[LiteralString, ...] = (
    # Number of the last transaction of each process that writes (`assumptions.NumberedCommits`).
    """CREATE TABLE callboard.writer (
        id uuid PRIMARY KEY,
        commits bigint NOT NULL,
        used timestamptz NOT NULL DEFAULT now()) WITH (fillfactor = 50)""",
    """CREATE FUNCTION callboard.number_commit(p_writer uuid, p_done bigint, p_number bigint) RETURNS void
    LANGUAGE plpgsql AS $$
    BEGIN
        IF p_done = 0 THEN
            INSERT INTO callboard.writer (id, commits) VALUES (p_writer, p_number);
            RETURN;
        END IF;
        UPDATE callboard.writer w SET commits = p_number, used = now() WHERE w.id = p_writer AND w.commits = p_done;
        IF NOT FOUND THEN RAISE SQLSTATE 'CB002'; END IF;
    END $$""",
    # Locks are taken in the order of the arrays, as in `writer`. Compares before it writes, and raises an error for the
    # first difference, which undoes everything. Returns whether another host listens.
    """CREATE FUNCTION callboard.commit_if(
        p_space int, p_durable boolean, p_host int, p_writer uuid, p_done bigint, p_number bigint,
        p_leases text[], p_fences bigint[],
        p_streams text[], p_lasts bigint[], p_ends bigint[],
        p_places int[], p_seqs bigint[], p_ids text[], p_crcs bigint[], p_data bytea[],
        p_keys text[], p_before bigint[], p_present boolean[],
        p_revisions bigint[], p_row_crcs bigint[], p_values bytea[]) RETURNS boolean LANGUAGE plpgsql AS $$
    DECLARE
        v_streams bigint[];
        v_stream bigint;
        v_name text;
    BEGIN
        PERFORM set_config('synchronous_commit', CASE WHEN p_durable THEN 'on' ELSE 'off' END, true);
        FOR i IN 1 .. cardinality(p_leases) LOOP
            v_name := p_leases[i];
            PERFORM 1 FROM callboard.lease l
                WHERE l.space = p_space AND l.name = v_name AND l.number = p_fences[i] FOR SHARE;
            IF NOT FOUND THEN RAISE SQLSTATE 'CB001' USING DETAIL = v_name; END IF;
        END LOOP;
        FOR i IN 1 .. cardinality(p_streams) LOOP
            v_name := p_streams[i];
            IF p_lasts[i] = 0 AND p_ends[i] > 0 THEN
                INSERT INTO callboard.stream (space, name, last) VALUES (p_space, v_name, p_ends[i])
                    RETURNING number INTO v_stream;
            ELSIF p_lasts[i] = 0 THEN
                PERFORM 1 FROM callboard.stream s WHERE s.space = p_space AND s.name = v_name;
                IF FOUND THEN RAISE SQLSTATE 'CB001' USING DETAIL = v_name; END IF;
            ELSIF p_lasts[i] = p_ends[i] THEN
                PERFORM 1 FROM callboard.stream s
                    WHERE s.space = p_space AND s.name = v_name AND s.last = p_lasts[i] FOR UPDATE;
                IF NOT FOUND THEN RAISE SQLSTATE 'CB001' USING DETAIL = v_name; END IF;
            ELSE
                UPDATE callboard.stream s SET last = p_ends[i]
                    WHERE s.space = p_space AND s.name = v_name AND s.last = p_lasts[i]
                    RETURNING s.number INTO v_stream;
                IF NOT FOUND THEN RAISE SQLSTATE 'CB001' USING DETAIL = v_name; END IF;
            END IF;
            v_streams[i] := v_stream;
        END LOOP;
        FOR i IN 1 .. cardinality(p_keys) LOOP
            v_name := p_keys[i];
            IF p_before[i] = 0 AND p_revisions[i] > 0 THEN
                INSERT INTO callboard.row (space, key, revision, crc, value)
                    VALUES (p_space, v_name, p_revisions[i], p_row_crcs[i], p_values[i]);
            ELSIF p_before[i] = 0 THEN
                PERFORM 1 FROM callboard.row r WHERE r.space = p_space AND r.key = v_name;
                IF FOUND THEN RAISE SQLSTATE 'CB001' USING DETAIL = v_name; END IF;
            ELSIF p_before[i] = p_revisions[i] THEN
                PERFORM 1 FROM callboard.row r
                    WHERE r.space = p_space AND r.key = v_name AND r.revision = p_before[i]
                    AND (r.value IS NOT NULL) = p_present[i] FOR UPDATE;
                IF NOT FOUND THEN RAISE SQLSTATE 'CB001' USING DETAIL = v_name; END IF;
            ELSE
                UPDATE callboard.row r SET revision = p_revisions[i], crc = p_row_crcs[i], value = p_values[i],
                    changed = pg_current_xact_id()
                    WHERE r.space = p_space AND r.key = v_name AND r.revision = p_before[i]
                    AND (r.value IS NOT NULL) = p_present[i];
                IF NOT FOUND THEN RAISE SQLSTATE 'CB001' USING DETAIL = v_name; END IF;
            END IF;
        END LOOP;
        IF cardinality(p_seqs) > 0 THEN
            INSERT INTO callboard.record (stream, seq, id, crc, data)
                SELECT v_streams[w.place], w.seq, w.id, w.crc, w.data
                FROM unnest(p_places, p_seqs, p_ids, p_crcs, p_data) AS w (place, seq, id, crc, data);
        END IF;
        PERFORM callboard.number_commit(p_writer, p_done, p_number);
        RETURN EXISTS (
            SELECT FROM callboard.host h WHERE h.space = p_space AND h.listening AND h.number <> p_host
            AND h.seen > clock_timestamp() - interval '60 seconds');
    END $$""",
)
"""Since version 3."""

BLOB_USED: tuple[LiteralString, ...] = (
    # Time of the last put of a blob, to an hour: a removal leaves new ones alone.
    "ALTER TABLE callboard.blob ADD COLUMN used timestamptz NOT NULL DEFAULT now()",
)
"""Since version 4."""

TABLES: tuple[LiteralString, ...] = (
    "CREATE SCHEMA IF NOT EXISTS callboard",
    "CREATE TABLE callboard.version (number int NOT NULL)",
    """CREATE TABLE callboard.space (
        number int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        name text COLLATE "C" NOT NULL UNIQUE)""",
    # Room in each page, so that the new version of a row stays in its page and no index changes.
    """CREATE TABLE callboard.stream (
        number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        space int NOT NULL,
        name text COLLATE "C" NOT NULL,
        last bigint NOT NULL,
        UNIQUE (space, name)) WITH (fillfactor = 70)""",
    """CREATE TABLE callboard.record (
        stream bigint NOT NULL,
        seq bigint NOT NULL,
        id text COLLATE "C",
        crc bigint NOT NULL,
        data bytea,
        PRIMARY KEY (stream, seq))""",
    "CREATE UNIQUE INDEX record_id ON callboard.record (stream, id) WHERE id IS NOT NULL",
    "ALTER TABLE callboard.record ALTER COLUMN data SET STORAGE EXTERNAL",
    """CREATE TABLE callboard.row (
        space int NOT NULL,
        key text COLLATE "C" NOT NULL,
        revision bigint NOT NULL,
        crc bigint NOT NULL,
        value bytea,
        changed xid8 NOT NULL DEFAULT pg_current_xact_id(),
        PRIMARY KEY (space, key))""",
    "ALTER TABLE callboard.row ALTER COLUMN value SET STORAGE EXTERNAL",
    "CREATE INDEX row_changed ON callboard.row (space, changed)",
    """CREATE TABLE callboard.host (
        number int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        space int NOT NULL,
        pid int NOT NULL,
        started double precision NOT NULL,
        place text NOT NULL,
        machine text NOT NULL,
        listening boolean NOT NULL,
        seen timestamptz NOT NULL DEFAULT clock_timestamp(),
        about bytea) WITH (fillfactor = 50)""",
    """CREATE TABLE callboard.lease (
        space int NOT NULL,
        name text COLLATE "C" NOT NULL,
        number bigint NOT NULL,
        host int,
        PRIMARY KEY (space, name)) WITH (fillfactor = 70)""",
    """CREATE TABLE callboard.blob (
        space int NOT NULL,
        digest text COLLATE "C" NOT NULL,
        part int NOT NULL,
        parts int NOT NULL,
        data bytea NOT NULL,
        PRIMARY KEY (space, digest, part))""",
    "ALTER TABLE callboard.blob ALTER COLUMN data SET STORAGE EXTERNAL",
    """CREATE TABLE callboard.damaged (
        number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        space int NOT NULL,
        place text NOT NULL,
        what text NOT NULL,
        found timestamptz NOT NULL DEFAULT clock_timestamp(),
        data bytea)""",
    *WRITER,
    *BLOB_USED,
)

UPGRADES: Mapping[int, tuple[LiteralString, ...]] = MappingProxyType(
    {1: ("ALTER TABLE callboard.host ADD COLUMN about bytea",), 2: WRITER, 3: BLOB_USED}
)
"""Statements from each older version to the next one, run in one transaction under the lock `CREATING`."""


def blob_parts(data: bytes) -> list[bytes]:
    """Return the rows' contents of a blob, at least one."""
    return [data[at : at + BLOB_PART_BYTES] for at in range(0, len(data), BLOB_PART_BYTES)] or [b""]


def prepare(connection: Connection, address: ServerAddress, space: str) -> int:
    """Check the server, create or upgrade its tables, and return the number of the space.

    Raises `WorkspaceUnusable`, `psycopg.Error`.
    """
    _check_server(connection, address)
    if _version(connection) != VERSION:
        with short_transaction(connection):
            run(connection, "SELECT pg_advisory_xact_lock(%s::bigint)", (CREATING,))
            _bring_up_to_date(connection, address)
    rows = run(connection, "SELECT number FROM callboard.space WHERE name = %s", (space,))
    while not rows:
        run(connection, "INSERT INTO callboard.space (name) VALUES (%s) ON CONFLICT DO NOTHING", (space,))
        rows = run(connection, "SELECT number FROM callboard.space WHERE name = %s", (space,))
    return int(rows[0][0])


def _check_server(connection: Connection, address: ServerAddress) -> None:
    number = int(str(run(connection, "SELECT current_setting('server_version_num')")[0][0]))
    if number < OLDEST_SERVER:
        raise WorkspaceUnusable(
            f"the server of the store {address} is PostgreSQL {number // 10_000}: Callboard needs 14 or newer"
        )
    encoding = str(run(connection, "SELECT current_setting('server_encoding')")[0][0])
    if encoding != "UTF8":
        raise WorkspaceUnusable(
            f"the database of the store {address} has the encoding {encoding}: create one with "
            "`createdb --encoding=UTF8 --template=template0 NAME`"
        )


def _version(connection: Connection) -> int:
    """Return the version of the tables, 0 if there are none."""
    # Not `to_regclass`: within a transaction it answers from a cache that does not know what another one has created
    # meanwhile (test_several_processes_create_the_tables_at_once).
    tables = run(
        connection,
        "SELECT 1 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE n.nspname = 'callboard' AND c.relname = 'version'",
    )
    if not tables:
        return 0
    return int(run(connection, "SELECT number FROM callboard.version")[0][0])


def _bring_up_to_date(connection: Connection, address: ServerAddress) -> None:
    version = _version(connection)
    if version > VERSION:
        raise WorkspaceUnusable(
            f"the store {address} was written by a newer Callboard (schema {version}; this one knows up to {VERSION}): "
            "upgrade Callboard. Nothing was changed"
        )
    if version == 0:
        for statement in TABLES:
            run(connection, statement)
        run(connection, "INSERT INTO callboard.version (number) VALUES (%s)", (VERSION,))
        return
    while version < VERSION:
        for statement in UPGRADES[version]:
            run(connection, statement)
        version += 1
        run(connection, "UPDATE callboard.version SET number = %s", (version,))
