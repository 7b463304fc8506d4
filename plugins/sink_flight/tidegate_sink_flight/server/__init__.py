"""The Flight server: a process of its own, which has nothing but a socket to the gateway."""
