"""The sections of ``store_kit``, by what they prove; ``box`` holds their tools."""
