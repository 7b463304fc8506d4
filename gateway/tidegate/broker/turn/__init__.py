"""One batch per turn of the event loop."""
