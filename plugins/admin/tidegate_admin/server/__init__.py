"""The process that serves HTTP: it has nothing of the gateway but a socket to ask it by."""
