"""The process that serves HTTP: its only tie to the gateway is a socket to ask over."""
