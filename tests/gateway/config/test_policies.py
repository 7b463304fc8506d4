"""What a policy says."""

from tidegate.config import DEFAULT_POLICY, DestinationPolicy


def test_the_dead_letter_queue_is_named_by_the_template() -> None:
    assert DEFAULT_POLICY.dead_letter_queue("topic://a.b") == "queue://DLQ.a.b"
    shared = DestinationPolicy(match=">", dead_letter="dead")
    assert shared.dead_letter_queue("queue://a") == "queue://dead"
    odd = DestinationPolicy(match=">", dead_letter="x.{name}.{name}")
    assert odd.dead_letter_queue("queue://{name}") == "queue://x.{name}.{name}"
