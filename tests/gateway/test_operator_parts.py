"""What operators see of the plugins that a gateway is made of."""

from __future__ import annotations

import sys

from tidegate.config import parse_config, resolve
from tidegate.operator_parts import plugin_rows
from tidegate.spi.operate import PluginPart

TEXT = """
[store]
plugin = "toy"
journal_max_file_length = "64mb"
[[destinations]]
match = "a.>"
cursor = "toy"
[[destinations]]
match = ">"
cursor = "toy"
[[listeners]]
protocol = "toy"
frame_bytes_max = "1kb"
[[sinks]]
plugin = "toy"
name = "lake"
table = "t"
[[extensions]]
plugin = "door"
"""


def test_each_plugin_has_the_tables_that_name_it_and_nobody_else_is_imported(site) -> None:
    site.add_toys()
    site.add("unused", {"store-unused": "unused"}, "raise RuntimeError('nobody imports this')")
    host = site.host()
    rows = {
        (row.kind, row.name): row for row in plugin_rows(resolve(parse_config(TEXT), host), host)
    }
    store = rows["store", "toy"]
    assert (store.is_active, store.summary) == (True, "toys for tests")
    assert (store.distribution, store.version) == ("toys", "0.9")
    assert store.parts == (PluginPart("store", {"journal_max_file_length": '"64mb"'}),)
    (listener,) = rows["protocol", "toy"].parts
    assert listener.table == "listeners[0]"
    assert listener.options["frame_bytes_max"] == '"1kb"'
    assert set(listener.options) == {"bind", "transport", "frame_bytes_max"}
    assert [part.table for part in rows["cursor", "toy"].parts] == [
        "destinations[0]",
        "destinations[1]",
    ]
    (sink,) = rows["sink", "toy"].parts
    assert sink.options == {"name": '"lake"', "table": '"t"'}
    assert [part.table for part in rows["extension", "door"].parts] == ["extensions[0]"]
    unused = rows["store", "unused"]
    assert (unused.is_active, unused.summary, unused.parts) == (False, "", ())
    assert "unused" not in sys.modules
