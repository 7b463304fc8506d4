"""Users in a file: argon2id, SCRAM (RFC 5802, RFC 7677), and hashes of other programs."""
