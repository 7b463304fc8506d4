"""MQTT packets to bytes and back, in all versions: no I/O, no clock, no session state."""
