"""One MQTT connection: its states, from CONNECT to the end, and its reading and writing."""
