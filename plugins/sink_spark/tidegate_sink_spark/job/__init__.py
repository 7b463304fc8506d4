"""The Spark job: a separate process that knows nothing of the gateway."""
