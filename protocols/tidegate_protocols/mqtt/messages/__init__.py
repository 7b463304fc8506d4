"""What a connected MQTT session publishes and is sent: names, properties, packet ids, subscriptions."""
