"""What a store and a cursor must do, and the values they keep. Import these from ``tidegate.spi``."""
