"""JSON Web Tokens in place of the password, checked with keys from a JWKS file."""
