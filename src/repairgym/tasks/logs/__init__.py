"""Logs: the one main error, its class, and equality of two errors."""
