"""A bridge to another broker: messages in and out, acknowledged when the other side has confirmed them."""
