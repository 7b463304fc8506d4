"""What operators do to messages: look, publish, purge, move, copy, retry, replay."""
