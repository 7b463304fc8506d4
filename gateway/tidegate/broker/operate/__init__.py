"""What an operator sees and does (:mod:`tidegate.spi.operate`)."""
