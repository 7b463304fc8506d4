"""What operators change of the gateway itself while it runs."""

from __future__ import annotations

from tidegate.broker.operate.authorized import Authorized
from tidegate.spi import Action, Identity
from tidegate.spi.operate import ReloadConfiguration, Reloaded


class RunningOperated(Authorized):
    """A part of :class:`tidegate.spi.operate.Operator`."""

    async def reload_configuration(self, who: Identity, request: ReloadConfiguration) -> Reloaded:
        """See Operator."""
        self._authorize(who)
        found = await self._around.reload(request.check_only)
        if not request.check_only:
            keys = ", ".join(dict.fromkeys(change.key for change in found.changed))
            self._tell(who, Action.ADMIN, "", f"reloaded the configuration: {keys or 'no change'}")
        return found
