"""How many examples hypothesis tries: few in `make test`, its own hundred by default, many in `make fuzz`."""

from hypothesis import settings

settings.register_profile("quick", max_examples=30)
settings.register_profile("thorough", max_examples=400)


def examples(usual: int) -> int:
    """*usual* in a plain run, and as many more or fewer as the profile has; for ``max_examples``."""
    return max(1, usual * settings().max_examples // 100)
