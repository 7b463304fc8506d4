"""Messages to and from an MQTT session: names, properties, packet ids, subscriptions."""
