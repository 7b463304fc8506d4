"""The extension: decides by the current rules of the file, and writes the audit log."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import final

from tidegate.spi import (
    AccessRule,
    Action,
    AuditEvent,
    AuditKind,
    ConfigError,
    Explanation,
    Identity,
    Kind,
    Verdict,
    option,
)
from tidegate.spi.private_files import WRITABLE, warn_of_others
from tidegate.spi.watched_file import WatchedFile
from tidegate_acl._audit import AuditLog
from tidegate_acl._reading import read_rules
from tidegate_acl._reasons import reasons
from tidegate_acl._rules import Rules

_log = logging.getLogger("tidegate.acl")


@dataclass(frozen=True, slots=True)
class AclOptions:
    """The extension's own keys of its ``[[extensions]]`` table."""

    rules: Path = option(
        help="The file of rules (docs/acl.md). It is read again when it changes. If it has "
        "become wrong, the log has an error and the previous rules stay."
    )
    check_interval: float = option(
        1.0,
        kind=Kind.DURATION,
        minimum=0.1,
        maximum=60,
        help="How often the gateway checks whether the file has changed: this is how long a "
        "revoked right can last.",
    )
    audit_log: Path | None = option(
        None,
        help="File for the audit log, JSON lines: logins, refusals and changes of the "
        "rules. Left out: none. It is created at start with mode 0600, and its directory "
        "with 0700; if that fails, the gateway does not start.",
    )
    audit_log_size: int = option(
        10 << 20,
        kind=Kind.SIZE,
        minimum=4096,
        help="When the audit log reaches this size it is renamed to `FILE.1`, and a new "
        "file begins.",
    )
    audit_log_files: int = option(
        5,
        minimum=0,
        maximum=1000,
        help="Older files of the audit log that are kept. Together with their size, this is "
        "the disk space that it takes.",
    )
    audit_log_rate: int = option(
        100,
        minimum=1,
        maximum=100_000,
        help="Lines of the audit log a second. One user at one address gets a tenth of "
        "them, and so does whoever fails to log in from one address. Further events are "
        "counted and not written, so that a client that is refused again and again cannot "
        "push out what others did.",
        act="events are counted and not written",
    )


@final
class Acl:
    """Implements Authorizer, Explainer, RuleList, Auditor, Service and Reloadable of :mod:`tidegate.spi`.

    Raises: ConfigError when the file of rules is missing or wrong.
    """

    def __init__(
        self,
        options: AclOptions,
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._options = options
        self._file = WatchedFile(options.rules, self._read, self._accept, self._refuse)
        self._rules = self._read()
        self._changed: Callable[[], None] | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._log: AuditLog | None = None
        if options.audit_log is not None:
            self._log = AuditLog(
                options.audit_log,
                size_bytes_max=options.audit_log_size,
                files_max=options.audit_log_files,
                rate_max=options.audit_log_rate,
                clock=clock,
                now=now,
            )

    def __repr__(self) -> str:
        return "acl"

    @property
    def rules(self) -> Rules:
        """The current rules."""
        return self._rules

    def authorize(self, identity: Identity, action: Action, destination: str) -> Verdict:
        """See Authorizer."""
        return self._rules.decide(identity, action, destination).verdict

    def explain(self, identity: Identity, action: Action, destination: str) -> Explanation:
        """See Explainer: what `tidegate acl test` says, by the rules as they are now."""
        decision = self._rules.decide(identity, action, destination)
        return Explanation(decision.verdict, reasons(self._rules, decision))

    def rules_source(self) -> str:
        """See RuleList."""
        return str(self._options.rules)

    def access_rules(self) -> Iterator[AccessRule]:
        """See RuleList. A snapshot, taken when the first one is asked for."""
        for rule in self._rules.rules:
            actions = tuple(action for action in Action if action in rule.actions)
            yield AccessRule(
                rule.number, rule.line, rule.allows, actions, rule.written, rule.conditions
            )

    def audit(self, event: AuditEvent) -> None:
        """See Auditor."""
        if self._log is None:
            return
        identity = event.identity
        self._log.write(
            event.kind.value,
            {
                "principal": identity.principal,
                "groups": ",".join(sorted(identity.groups)),
                "client_id": identity.client_id,
                "address": identity.address,
                "protocol": identity.protocol,
                "action": event.action.value if event.action is not None else "",
                "destination": event.destination,
                "problem": event.problem,
                "detail": event.detail,
            },
            # A refused client can claim to be anybody.
            identity.address
            if event.kind is AuditKind.LOGIN_REFUSED
            else f"{identity.address} {identity.principal}",
        )

    async def start(self, changed: Callable[[], None]) -> None:
        """See Service. Raises: ConfigError when the audit log cannot be written."""
        self._changed = changed
        warn_of_others(self._options.rules, "file of rules", among=WRITABLE)
        if self._log is not None:
            try:
                self._log.open()
            except OSError as error:
                raise ConfigError(
                    f"{self._options.audit_log} cannot be written: {error.strerror}",
                    key="audit_log",
                ) from error
        watching = self._file.watch(self._options.check_interval)
        self._watcher = asyncio.create_task(watching, name="acl rules")

    async def stop(self) -> None:
        """See Service."""
        if self._watcher is not None:
            self._watcher.cancel()
            with suppress(asyncio.CancelledError):
                await self._watcher
            self._watcher = None
        self._changed = None
        if self._log is not None:
            self._log.close()

    async def reload(self) -> bool:
        """See Reloadable. Reads the rules at once, and reopens the audit log even if the rules
        are refused."""
        self._reopen()
        try:
            await self._file.reload()
        except ConfigError as error:
            self._note("rules-refused", error.problem)
            raise
        return True

    def _reopen(self) -> None:
        """Raises: ConfigError."""
        if self._log is not None:
            try:
                self._log.reopen()
            except OSError as error:
                raise ConfigError(
                    f"{self._options.audit_log} cannot be written: {error.strerror}",
                    key="audit_log",
                ) from None

    def _read(self) -> Rules:
        """Raises: ConfigError."""
        path = self._options.rules
        rules = read_rules(path)
        for warning in rules.warnings:
            _log.warning("rules=%s: %s", path, warning)
        return rules

    async def refresh(self) -> bool:
        """Reread the file if it has changed. Returns: whether the rules are different now."""
        before = self._rules
        await self._file.refresh()
        return self._rules is not before

    def _accept(self, rules: Rules) -> None:
        self._rules = rules
        _log.info("rules read again file=%s rules=%d", self._options.rules, len(rules.rules))
        self._note("rules-changed", "")
        if self._changed is not None:
            self._changed()

    def _refuse(self, error: ConfigError) -> None:
        _log.error("rules unchanged, the new file has an error: %s", error.problem)
        self._note("rules-refused", error.problem)

    def _note(self, event: str, problem: str) -> None:
        if self._log is not None:
            self._log.write(event, {"problem": problem})
