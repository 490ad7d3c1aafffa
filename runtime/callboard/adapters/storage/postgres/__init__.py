"""Store on a PostgreSQL server, which several machines share. Needs the extra `callboard[postgres]`."""
