"""How names of the documents are spelt, and which options of a table they can mean."""

import pytest

from tidegate.config._document_names import Written, snake_case


@pytest.mark.parametrize(
    ("written", "ours"),
    [
        ("pendingQueuePolicy", "pending_queue_policy"),
        ("PendingDurableSubscriberPolicy", "pending_durable_subscriber_policy"),
        ("page-size-bytes", "page_size_bytes"),
        ("cursor", "cursor"),
    ],
)
def test_a_name_in_snake_case(written: str, ours: str) -> None:
    assert snake_case(written) == ours


@pytest.mark.parametrize(
    ("match", "options"),
    [
        ("a", ["bytes_max", "subscription_bytes_max"]),
        ("queue://a", ["bytes_max"]),
        ("topic://a", ["subscription_bytes_max"]),
        ("topic://$temporary.>", []),
        (3, ["bytes_max", "subscription_bytes_max"]),  # refused elsewhere
    ],
)
def test_an_option_is_meant_of_queues_and_subscriptions_as_far_as_there_are_any(
    match: object, options: list[str]
) -> None:
    assert Written({"match": match}).both("bytes_max") == options
