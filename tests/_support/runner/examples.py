"""How many examples hypothesis tries: few in `make test`, its own hundred by default, many in `make fuzz`.

None of them has a time limit of its own: how long one takes says something of the machine alone.
"""

from typing import Any

from hypothesis import HealthCheck, settings

_UNTIMED: dict[str, Any] = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}

settings.register_profile("usual", **_UNTIMED)
settings.register_profile("quick", max_examples=30, **_UNTIMED)
settings.register_profile("thorough", max_examples=400, **_UNTIMED)
settings.load_profile("usual")


def examples(usual: int) -> int:
    """*usual* in a plain run, and as many more or fewer as the profile has; for ``max_examples``."""
    return max(1, usual * settings().max_examples // 100)
