"""The store in one schema of a PostgreSQL server, which several hosts share."""
