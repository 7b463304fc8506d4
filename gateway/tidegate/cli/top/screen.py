"""The screen of ``tidegate top``."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final, Protocol, TypeVar, cast

import typer
from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal
from textual.widgets import DataTable, Footer, Input, Sparkline, Static, TabbedContent, TabPane

from tidegate.cli.groups._asking import moment
from tidegate.cli.groups._words import counted, duration, size, sized
from tidegate.cli.top.reading import Snapshot, Wanted
from tidegate.spi import GatewayError
from tidegate.spi.operate import (
    ConnectionRow,
    ConnectionSort,
    Destination,
    DestinationSort,
    GatewayState,
    LimitRow,
    Overview,
    SinkStatus,
)
from tidegate.spi.printable import printable

T = TypeVar("T")
_RowT = TypeVar("_RowT")

#: Points in a line of figures.
_HISTORY: Final = 120

_Columns = Sequence[tuple[str, Callable[[_RowT], object]]]

_DESTINATIONS: Final[_Columns[Destination]] = (
    ("destination", lambda row: row.destination),
    ("pending", lambda row: row.pending),
    ("in flight", lambda row: row.in_flight),
    ("consumers", lambda row: row.consumers),
    ("memory", lambda row: size(row.memory_bytes)),
    ("dropped", lambda row: row.dropped),
    ("state", lambda row: _state(row)),
)
_CONNECTIONS: Final[_Columns[ConnectionRow]] = (
    ("number", lambda row: row.number),
    ("user", lambda row: row.principal),
    ("client id", lambda row: row.client_id),
    ("address", lambda row: row.address),
    ("per second", lambda row: row.per_second),
    ("in flight", lambda row: row.in_flight),
    ("unread", lambda row: size(row.unread_bytes)),
    ("waits for", lambda row: ", ".join(reason.value for reason in row.waits)),
)
_LIMITS: Final[_Columns[LimitRow]] = (
    ("used", lambda row: f"{row.percent:g} %"),
    ("of", lambda row: row.holder or row.scope.value),
    ("option", lambda row: row.option),
    ("at the limit", lambda row: row.act),
)
_SINKS: Final[_Columns[SinkStatus]] = (
    ("sink", lambda row: row.name),
    ("state", lambda row: row.health.state.value),
    ("behind", lambda row: f"{row.lag_rows} rows"),
    ("seconds", lambda row: "unknown" if row.lag_seconds is None else f"{row.lag_seconds:.1f}"),
    ("rows per second", lambda row: f"{row.health.rows_per_second:.0f}"),
    ("problem", lambda row: row.health.problem),
)


class Source(Protocol):
    """Where snapshots come from; called in a thread."""

    def read(self, wanted: Wanted) -> Snapshot: ...
    def close(self) -> None: ...


class Top(App[None]):
    """Args: source: asked again and again; interval_s: between two askings, 0: only when ``r`` is pressed."""

    ENABLE_COMMAND_PALETTE = False
    AUTO_FOCUS = "#destinations"
    TITLE = "tidegate top"
    CSS = """
    #head { height: auto; padding: 0 1; }
    #problem { height: auto; padding: 0 1; color: $text-error; }
    #lines { height: 4; padding: 0 1; }
    #lines Sparkline { width: 1fr; height: 4; margin: 0 1 0 0; border-top: solid $foreground 30%; }
    #filter { display: none; }
    #filter.asked { display: block; }
    TabbedContent, ContentSwitcher, TabPane, DataTable { height: 1fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        ("q", "quit", "Quit"),
        ("t", "next_list", "Next list"),
        ("s", "sort", "Next sort order"),
        ("p", "pause", "Pause"),
        ("r", "refresh", "Now"),
        ("slash", "filter", "Destinations"),
        ("escape", "no_filter", "All"),
    ]

    def __init__(self, source: Source, interval_s: float) -> None:
        super().__init__()
        self._source = source
        self._interval_s = interval_s
        self._wanted = Wanted()
        self._is_paused = False
        self._is_reading = self._is_wanted = False
        self._published: deque[float] = deque([0.0, 0.0], _HISTORY)
        self._delivered: deque[float] = deque([0.0, 0.0], _HISTORY)

    def compose(self) -> ComposeResult:
        """See textual."""
        yield Static("asking the gateway …", id="head")
        yield Static("", id="problem")
        with Horizontal(id="lines"):
            for name, history in (
                ("published", self._published),
                ("delivered", self._delivered),
            ):
                line = Sparkline(list(history), id=name)
                line.border_title = f"{name} a second"
                yield line
        yield Input(placeholder="a name or filter: queue://orders.>", id="filter")
        with TabbedContent():
            for name, columns in (
                ("destinations", _DESTINATIONS),
                ("connections", _CONNECTIONS),
                ("limits", _LIMITS),
                ("sinks", _SINKS),
            ):
                with TabPane(name.capitalize(), id=f"tab-{name}"):
                    table: DataTable[Text] = DataTable(
                        id=name, cursor_type="row", zebra_stripes=True
                    )
                    table.add_columns(*[heading for heading, _ in columns])
                    yield table
        yield Footer()

    def on_mount(self) -> None:
        """See textual."""
        self.action_refresh()
        if self._interval_s:
            self.set_interval(self._interval_s, self._tick)

    def on_unmount(self) -> None:
        """See textual."""
        self._source.close()

    def _tick(self) -> None:
        if not self._is_paused and not self._is_reading:
            self.action_refresh()

    # --- keys ------------------------------------------------------------------------------------

    def action_refresh(self) -> None:
        """Ask now, or as soon as the last question is answered."""
        self._is_wanted = True
        self._ask()

    def _ask(self) -> None:
        if self._is_wanted and not self._is_reading:
            self._is_reading, self._is_wanted = True, False
            self._read(self._wanted)

    def action_pause(self) -> None:
        """Stop asking, or go on."""
        self._is_paused = not self._is_paused
        self.sub_title = "paused" if self._is_paused else ""
        self._say("paused; p goes on" if self._is_paused else "")

    def action_next_list(self) -> None:
        """Show the next list, the first one after the last."""
        tabs = self.query_one(TabbedContent)
        names = [str(pane.id) for pane in tabs.query(TabPane)]
        tabs.active = names[(names.index(tabs.active) + 1) % len(names)]
        self._focus_list()

    def _focus_list(self) -> None:
        name = self.query_one(TabbedContent).active.removeprefix("tab-")
        self.query_one(f"#{name}", DataTable).focus(scroll_visible=False)

    def action_sort(self) -> None:
        """Sort the list that is seen by the next thing."""
        wanted = self._wanted
        if self.query_one(TabbedContent).active == "tab-connections":
            order = _next(ConnectionSort, wanted.connections)
            self._wanted = Wanted(wanted.destinations, order, wanted.match)
            self._say(f"connections by {order.value}")
        else:
            order = _next(DestinationSort, wanted.destinations)
            self._wanted = Wanted(order, wanted.connections, wanted.match)
            self._say(f"destinations by {order.value}")
        self.action_refresh()

    def action_filter(self) -> None:
        """Ask which destinations are wanted."""
        field = self.query_one("#filter", Input)
        field.add_class("asked")
        field.focus()

    def action_no_filter(self) -> None:
        """All destinations."""
        field = self.query_one("#filter", Input)
        field.remove_class("asked")
        field.value = ""
        self._focus_list()
        self._want("")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """See textual."""
        event.input.remove_class("asked")
        self._focus_list()
        self._want(event.value.strip())

    def _want(self, match: str) -> None:
        self._wanted = Wanted(self._wanted.destinations, self._wanted.connections, match)
        self.action_refresh()

    # --- asking ----------------------------------------------------------------------------------

    @work(thread=True)
    def _read(self, wanted: Wanted) -> None:
        try:
            found = self._source.read(wanted)
        except (GatewayError, OSError, typer.BadParameter) as error:
            self.call_from_thread(self._failed, " ".join(str(error).split()))
        else:
            self.call_from_thread(self._show, found)

    def _failed(self, problem: str) -> None:
        self._is_reading = False
        self._say(printable(problem))
        self._ask()

    def _say(self, text: str) -> None:
        self.query_one("#problem", Static).update(Text(text))

    def _show(self, found: Snapshot) -> None:
        self._is_reading = False
        overview = found.overview
        self.query_one("#head", Static).update(Text("\n".join(_head(overview))))
        if not self._is_paused:
            self._say("" if overview.state is GatewayState.RUNNING else printable(overview.problem))
        for name, history, traffic in (
            ("published", self._published, overview.published),
            ("delivered", self._delivered, overview.delivered),
        ):
            history.append(traffic.per_second)
            self.query_one(f"#{name}", Sparkline).data = list(history)
        self._fill("destinations", _DESTINATIONS, found.destinations)
        self._fill("connections", _CONNECTIONS, found.connections)
        self._fill("limits", _LIMITS, found.limits)
        self._fill("sinks", _SINKS, found.sinks)
        self._ask()

    def _fill(self, name: str, columns: _Columns[Any], rows: Sequence[object]) -> None:
        table = cast("DataTable[Text]", self.query_one(f"#{name}", DataTable))
        at, left = table.cursor_row, table.scroll_x
        table.clear()
        for row in rows:
            table.add_row(*[Text(printable(str(value(row)))) for _, value in columns])
        if rows:
            table.move_cursor(row=min(at, len(rows) - 1), scroll=False)
        table.scroll_x = left


def _head(overview: Overview) -> list[str]:
    waited = overview.confirmation
    figures = (
        (
            printable(overview.name),
            overview.state.value,
            f"up {duration(overview.uptime_s)}",
            f"since {moment(overview.started_at)}",
        ),
        (
            f"published {overview.published.per_second:g}/s",
            f"delivered {overview.delivered.per_second:g}/s",
            f"acknowledged {overview.acknowledged.per_second:g}/s",
            f"confirmed in {waited.p50_ms:g} ms (p50), {waited.p99_ms:g} ms (p99)",
        ),
        (
            f"backlog {overview.backlog}",
            f"connections {counted(overview.connections)}",
            f"queues {overview.queues}",
            f"held {sized(overview.held)}",
            f"store {sized(overview.store)}",
        ),
    )
    return ["   ".join(line) for line in figures]


def _next(kind: type[T], value: T) -> T:
    """The member behind *value*, or the first one."""
    members: list[T] = list(kind)  # type: ignore[call-overload]  # an enumeration
    return members[(members.index(value) + 1) % len(members)]


def _state(row: Destination) -> str:
    words = {
        "producers wait": row.is_full,
        "producers paused": row.producers_paused,
        "consumers paused": row.consumers_paused,
    }
    return ", ".join(word for word, is_so in words.items() if is_so)
