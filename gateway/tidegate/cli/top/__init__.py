"""``tidegate top``: a gateway that runs, on one screen that one may leave open."""
