"""The sections of ``store_kit``, by what they prove; ``box`` is what they work with."""
