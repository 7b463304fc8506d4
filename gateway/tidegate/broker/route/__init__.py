"""From a destination to the lists its messages go to."""
