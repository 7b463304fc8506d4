"""`tidegate stomp` and `tidegate mqtt`: clients for the terminal, entry points of `tidegate.commands`.

They speak to any broker, through third-party clients, and share nothing with the front-ends.
"""
