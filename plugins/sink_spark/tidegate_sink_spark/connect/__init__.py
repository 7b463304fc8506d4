"""Spark Connect: the table through a server, without Java here."""
