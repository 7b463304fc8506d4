"""Spark Connect: the table through a server, and no Java here."""
