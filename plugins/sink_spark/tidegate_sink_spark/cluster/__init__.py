"""Spark somewhere else: on a cluster whose workers share files with the gateway."""
