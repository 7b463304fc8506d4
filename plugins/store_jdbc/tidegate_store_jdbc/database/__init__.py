"""What the store needs from a database, and the adapters for SQLite and PostgreSQL."""
