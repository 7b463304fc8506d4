"""SCRAM (RFC 5802, RFC 7677) and plain passwords against one file of users."""
