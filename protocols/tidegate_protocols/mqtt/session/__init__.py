"""One MQTT connection: its states, from CONNECT to the end, and what it is read and told."""
