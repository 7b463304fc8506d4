"""Explains decisions in words, for ``tidegate acl test`` and for operators."""

from __future__ import annotations

from tidegate_acl._rules import Decision, Rule, Rules


def reasons(rules: Rules, decision: Decision) -> tuple[str, ...]:
    """A line for each rule that decided, in order."""
    return tuple(
        f"none of the {len(rules.rules)} rules matches, so it is refused"
        if rule is None
        else f"{rule.text()}: {_why(rule)}"
        for rule in decision.rules
    )


def _why(rule: Rule) -> str:
    conditions = [f"{key} {', '.join(found)}" for key, found in rule.conditions.items()]
    if rule.written is not None:
        conditions.append(f"destinations {', '.join(rule.written)}")
    return ("allows" if rule.allows else "denies") + (
        f", by {'; '.join(conditions)}" if conditions else ", to everybody and everywhere"
    )
