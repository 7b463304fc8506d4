"""STOMP and MQTT front-ends; they import nothing of Tidegate but `tidegate.spi`."""
