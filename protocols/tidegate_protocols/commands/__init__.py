"""`tidegate stomp` and `tidegate mqtt`: clients for the terminal, entry points of `tidegate.commands`.

They speak to any broker, through clients that are not ours, and share nothing with the front ends.
"""
