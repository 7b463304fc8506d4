"""What a store and a cursor must do, and the values that they keep. Import them from ``tidegate.spi``."""
