"""The plugin host: what it finds, what it loads, and how it names what is broken."""

import logging
import sys

import pytest

from tidegate.plugins import FACTORY_HOOKS, PROVIDERS, PluginHost, PluginKind
from tidegate.spi import (
    GatewayInfo,
    ListOverflow,
    PluginContractError,
    PluginLoadError,
    hookspecs,
)

INFO = GatewayInfo("gw", "0.1.0", ("toy://127.0.0.1:1",))
OVERFLOW = ListOverflow(
    "queue://q", "", "", "", "refuse", dropped=0, dead_lettered=0, refused=1, is_over=False
)
GOOD = """
from dataclasses import dataclass
from tidegate.spi import PluginInfo, hookimpl
tidegate_plugin = PluginInfo("a good store", (1, 0))
calls = []
@dataclass(frozen=True)
class Options:
    pass
class Factory:
    options_type = Options
    def create(self, context, options):
        raise NotImplementedError
@hookimpl
def register_message_store():
    calls.append("register")
    return Factory()
"""


def contract_error(site, source: str, entry_point: str = "store-bad") -> PluginContractError:
    """What a plugin with *source* is refused with."""
    site.add("bad-dist", {entry_point: "bad_dist"}, source)
    host = site.host()
    kind, _, name = entry_point.partition("-")
    lookups = {"store": host.message_store, "cursor": host.cursor, "protocol": host.front_end}
    with pytest.raises(PluginContractError) as caught:
        lookups[kind](name)
    assert caught.value.plugin == entry_point
    assert "bad-dist 1.2.3 (entry point bad_dist)" in caught.value.problem
    return caught.value


# ------------------------------------------------------------------------------- discovery


def test_nothing_is_imported_but_what_is_named(site) -> None:
    site.add("good-dist", {"store-good": "good_dist"}, GOOD)
    site.add("bomb-dist", {"store-bomb": "bomb_dist"}, "raise SystemError('imported')")
    host = site.host()
    assert host.installed_names(PluginKind.STORE) == ["bomb", "good"]
    assert not {"good_dist", "bomb_dist"} & set(sys.modules)
    host.message_store("good")
    assert "bomb_dist" not in sys.modules
    assert host.loaded() == ["store-good 1.2.3"]


def test_without_arguments_the_host_sees_what_this_interpreter_has_installed(site) -> None:
    site.add("good-dist", {"store-good": "good_dist"}, GOOD)
    assert "good" in PluginHost().installed_names(PluginKind.STORE)


def test_a_factory_is_asked_for_once_and_only_from_the_plugin_that_is_named(site) -> None:
    site.add("good-dist", {"store-good": "good_dist"}, GOOD)
    site.add("fine-dist", {"store-fine": "fine_dist"}, GOOD)
    host = site.host()
    good, fine = host.message_store("good"), host.message_store("fine")
    assert host.message_store("good") is good
    assert good.options_type.__module__ == "good_dist"
    assert fine.options_type.__module__ == "fine_dist"
    assert sys.modules["good_dist"].calls == ["register"]
    assert sys.modules["fine_dist"].calls == ["register"]


def test_two_hosts_share_nothing(site) -> None:
    site.add("good-dist", {"store-good": "good_dist"}, GOOD)
    one, other = site.host(), site.host()
    assert one.message_store("good") is not other.message_store("good")


def test_one_module_may_serve_several_entry_points(site) -> None:
    site.add_toys()
    host = site.host()
    assert host.message_store("toy").options_type.__name__ == "StoreOptions"
    assert host.front_end("toy").transports == ("tcp", "tls")
    assert host.cursor("toy").needs_store is False
    assert host.sink("toy").options_type.__name__ == "SinkOptions"
    assert host.extension("open").options_type.__name__ == "NoOptions"


# ---------------------------------------------------------------------------------- unknown


@pytest.mark.parametrize("entry_point", ["store_good", "good", "stores-good"])
def test_an_entry_point_that_names_no_kind_is_told(site, entry_point: str) -> None:
    site.add("good-dist", {entry_point: "good_dist"}, GOOD)
    with pytest.raises(PluginLoadError) as caught:
        site.host().message_store("good")
    assert (
        f"good-dist 1.2.3 (entry point good_dist) has an entry point {entry_point!r}, which would have to be "
        "called 'store-good'"
    ) in caught.value.problem
    with pytest.raises(PluginLoadError) as caught:
        site.host().message_store("other")
    assert "good-dist" not in caught.value.problem


def test_an_unknown_name_lists_the_installed_ones_and_the_nearest(site) -> None:
    site.add_toys()
    with pytest.raises(PluginLoadError) as caught:
        site.host().message_store("tooy")
    assert str(caught.value) == (
        "plugin store-tooy: is not installed; installed store plugins: toy; did you mean 'toy'?"
    )


@pytest.mark.parametrize("entry_name", PROVIDERS)
def test_each_plugin_of_ours_that_is_missing_names_its_package(entry_name: str) -> None:
    kind, _, name = entry_name.partition("-")
    errors = PluginHost([]).missing([(PluginKind(kind), name)])
    assert f"pip install {PROVIDERS[entry_name]}" in errors[0].problem


def test_a_misspelt_name_of_ours_that_is_not_installed_finds_its_package() -> None:
    with pytest.raises(PluginLoadError) as caught:
        PluginHost([]).message_store("journl")
    assert "did you mean 'journal'" in caught.value.problem
    assert "pip install tidegate-store-journal" in caught.value.problem


def test_a_name_that_nobody_knows_recommends_nothing() -> None:
    with pytest.raises(PluginLoadError) as caught:
        PluginHost([]).front_end("amqp")
    assert caught.value.problem == "is not installed, and neither is any other protocol plugin"


def test_the_same_name_from_two_distributions_is_refused_and_both_are_named(site) -> None:
    site.add("one-dist", {"store-same": "one_dist"}, GOOD)
    site.add("two-dist", {"store-same": "two_dist"}, GOOD)
    with pytest.raises(PluginContractError) as caught:
        site.host().message_store("same")
    assert "one-dist 1.2.3" in caught.value.problem
    assert "two-dist 1.2.3" in caught.value.problem
    assert "uninstall" in caught.value.problem


# ----------------------------------------------------------------------------------- broken


@pytest.mark.parametrize(
    ("source", "cause"),
    [
        ("import module_that_is_nowhere", "ModuleNotFoundError: No module named"),
        ("raise ValueError('two\\nlines')", "ValueError: two lines"),
        ("def broken(:", "SyntaxError"),
    ],
)
def test_a_plugin_that_cannot_be_imported_is_named_with_its_cause(
    site, source: str, cause: str
) -> None:
    site.add("bad-dist", {"store-bad": "bad_dist"}, source)
    with pytest.raises(PluginLoadError) as caught:
        site.host().message_store("bad")
    text = str(caught.value)
    assert text.startswith("plugin store-bad: bad-dist 1.2.3 (entry point bad_dist): ")
    assert cause in text
    assert "\n" not in text
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize(
    ("info", "said"),
    [
        ("", "must define tidegate_plugin"),
        ("tidegate_plugin = 'a store'", "must define tidegate_plugin"),
        ("tidegate_plugin = PluginInfo('x', (9, 0))", "written for SPI 9.0"),
        ("tidegate_plugin = PluginInfo('x', (9, 0))", "upgrade tidegate"),
        ("tidegate_plugin = PluginInfo('x', (1, 99))", "written for SPI 1.99"),
        ("tidegate_plugin = PluginInfo('x', (0, 9))", "upgrade bad-dist"),
        ("tidegate_plugin = PluginInfo('x', '1.0')", "is not (major, minor)"),
        ("tidegate_plugin = PluginInfo('x', (1,))", "is not (major, minor)"),
    ],
)
def test_the_plugins_own_description_and_version_are_checked(site, info: str, said: str) -> None:
    source = GOOD.replace('tidegate_plugin = PluginInfo("a good store", (1, 0))', info)
    assert said in contract_error(site, source).problem


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("def register", "async def register", "coroutine function"),
        ("@hookimpl\n", "", "no @hookimpl of register_message_store()"),
        ("return Factory()", "return None", "returned a factory"),
        ("return Factory()", "return 1 / 0", "failed: ZeroDivisionError"),
        ("return Factory()", "return Options()", "no method create()"),
        ("options_type = Options", "options_type = dict", "not a dataclass"),
        ("options_type = Options", "options_type = 3", "options_type is 3"),
        ("register_message_store():", "register_message_store(config):", "config"),
        ("def register_message_store", "def register_mesage_store", "register_mesage_store"),
    ],
)
def test_a_plugin_that_breaks_the_contract_is_refused(site, old: str, new: str, said: str) -> None:
    assert old in GOOD
    assert said in contract_error(site, GOOD.replace(old, new)).problem


def test_a_coroutine_on_any_hook_is_refused_even_beside_a_good_factory(site) -> None:
    source = GOOD + "@hookimpl\nasync def gateway_started(gateway):\n    pass\n"
    assert "gateway_started() is a coroutine" in contract_error(site, source).problem


@pytest.mark.parametrize(
    ("entry_point", "hook", "attributes", "said"),
    [
        ("cursor-bad", "register_cursor", "needs_store = 1", "needs_store is 1"),
        ("protocol-bad", "register_front_end", "options_type = Options", "transports is None"),
        (
            "protocol-bad",
            "register_front_end",
            "options_type = Options; transports = (); default_port = 1",
            "has no transports",
        ),
    ],
)
def test_each_kind_of_factory_is_looked_at(
    site, entry_point: str, hook: str, attributes: str, said: str
) -> None:
    source = GOOD.replace("register_message_store", hook)
    source = source.replace("options_type = Options", attributes)
    assert said in contract_error(site, source, entry_point).problem


def test_a_refused_plugin_leaves_the_others_working(site) -> None:
    site.add("good-dist", {"store-good": "good_dist"}, GOOD)
    site.add(
        "bad-dist",
        {"store-bad": "bad_dist"},
        GOOD.replace("def register_message_store", "def register_mesage_store"),
    )
    host = site.host()
    with pytest.raises(PluginContractError):
        host.message_store("bad")
    assert host.message_store("good").options_type.__module__ == "good_dist"
    assert host.loaded() == ["store-good 1.2.3"]


# ---------------------------------------------------------------------------- announcements

LISTENING = """
seen = []
@hookimpl
def gateway_started(gateway):
    seen.append(("started", gateway.name))
@hookimpl
def gateway_stopping(gateway):
    seen.append(("stopping", gateway.listeners))
@hookimpl
def list_overflowed(overflow):
    seen.append(("overflowed", overflow))
"""


def test_loaded_plugins_are_told_and_one_that_fails_disturbs_nobody(
    site, caplog: pytest.LogCaptureFixture
) -> None:
    site.add("good-dist", {"store-good": "good_dist"}, GOOD + LISTENING)
    site.add(
        "loud-dist",
        {"store-loud": "loud_dist"},
        GOOD + "@hookimpl\ndef gateway_started(gateway):\n    raise OSError('loud')\n",
    )
    site.add("idle-dist", {"store-idle": "idle_dist"}, GOOD + LISTENING)
    host = site.host()
    host.message_store("loud")
    host.message_store("good")
    with caplog.at_level(logging.ERROR, "tidegate.plugins"):
        host.announce_started(INFO)
        host.announce_overflow(OVERFLOW)
        host.announce_stopping(INFO)
    assert sys.modules["good_dist"].seen == [
        ("started", "gw"),
        ("overflowed", OVERFLOW),
        ("stopping", INFO.listeners),
    ]
    assert [record.getMessage() for record in caplog.records] == [
        "plugin=store-loud hook=gateway_started failed"
    ]
    assert "idle_dist" not in sys.modules


# --------------------------------------------------------------------------------- listing


def test_the_list_has_a_row_for_each_plugin_with_its_origin_and_its_problem(site) -> None:
    site.add_toys()
    site.add("new-dist", {"store-new": "new_dist"}, GOOD.replace("(1, 0)", "(9, 1)"))
    site.add("bad-dist", {"cursor-bad": "bad_dist"}, "import module_that_is_nowhere")
    site.add("odd-dist", {"gadget-x": "odd_dist"}, GOOD)
    rows = site.host().list_plugins({(PluginKind.STORE, "toy"), (PluginKind.CURSOR, "bad")})
    assert [(row.kind, row.name, row.active) for row in rows] == [
        ("store", "new", False),
        ("store", "toy", True),
        ("cursor", "bad", True),
        ("cursor", "toy", False),
        ("protocol", "toy", False),
        ("sink", "toy", False),
        ("extension", "door", False),
        ("extension", "open", False),
        ("", "gadget-x", False),
    ]
    new, toy, bad, odd = rows[0], rows[1], rows[2], rows[-1]
    assert (toy.version, toy.spi_version, toy.distribution) == ("0.9", "1.0", "toys")
    assert (toy.summary, toy.problem) == ("toys for tests", "")
    assert new.spi_version == "9.1"
    assert "written for SPI 9.1" in new.problem
    assert "ModuleNotFoundError" in bad.problem
    assert bad.spi_version == ""
    assert "unknown kind" in odd.problem


def test_listing_does_not_register_what_it_lists(site) -> None:
    site.add_toys()
    host = site.host()
    host.list_plugins(())
    assert host.loaded() == []


def test_every_factory_hook_is_specified() -> None:
    for kind in PluginKind:
        assert hasattr(hookspecs, FACTORY_HOOKS[kind])
