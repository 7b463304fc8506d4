"""What a protocol asks of the broker, and who may. Import it from ``tidegate.spi``."""
