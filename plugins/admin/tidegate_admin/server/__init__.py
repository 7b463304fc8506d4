"""The process that serves HTTP. A socket is its only link to the gateway."""
