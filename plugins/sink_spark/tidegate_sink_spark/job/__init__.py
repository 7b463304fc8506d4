"""The Spark job: a process of its own, which knows nothing of the gateway."""
