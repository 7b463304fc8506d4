"""Totals over all destinations, kept from look to look: see :mod:`tidegate.broker.tally.tally`."""
