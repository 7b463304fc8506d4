"""OpenTelemetry traces of messages. Written for operators in docs/traces.md."""
