"""STOMP frames and the gateway's messages to bytes and back: no I/O, no clock."""
