"""STOMP and MQTT front-ends; of Tidegate they import only `tidegate.spi`."""
