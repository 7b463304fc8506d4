"""A bridge to another broker: messages are acknowledged once the other side has confirmed them."""
