"""Tidegate: a plugin-based messaging gateway. The host; imports no plugin and no protocol."""
