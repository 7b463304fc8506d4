"""From a destination to the lists that its messages go to."""
