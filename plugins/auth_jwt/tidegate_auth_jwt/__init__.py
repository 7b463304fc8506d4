"""JSON Web Tokens in the place of the password, checked with keys from a JWKS file."""
