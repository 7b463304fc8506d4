"""Users in a file, with argon2id, SCRAM (RFC 5802, RFC 7677), and other programs' hashes."""
