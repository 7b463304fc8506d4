"""What all destinations come to, kept from look to look: see :mod:`tidegate.broker.tally.tally`."""
