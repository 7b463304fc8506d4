"""Lets Spark and any other Arrow Flight client read the acknowledged log."""
