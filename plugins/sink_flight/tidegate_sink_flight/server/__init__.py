"""The Flight server: a separate process whose only tie to the gateway is a socket."""
