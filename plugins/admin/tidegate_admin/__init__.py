"""The operator's console, HTTP API, health checks and metrics, served by a separate process."""
