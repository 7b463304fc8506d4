"""Checks that an object made by a plugin keeps its protocol: every member, as declared.

The requirements are read from the Protocol classes of :mod:`tidegate.spi` themselves: a method exists,
is ``async def`` if declared so, and takes the arguments it is called with; a property can be read; and
what a property offers besides (a dataclass with objects of other protocols) is checked in the same
way. So a misspelt method is found at start, not by the first client.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, cast

from tidegate.plugin_exit import exit_is_error
from tidegate.spi import (
    Bridging,
    CommittingSink,
    CompactingSink,
    Directory,
    Exchangeable,
    Explainer,
    FrontEnd,
    HeedsDrain,
    PluginContractError,
    Reloadable,
    Resident,
    RuleList,
    Service,
    ServingSink,
    Sink,
    TakesQueues,
    UserList,
    hookspecs,
)
from tidegate.spi.clients.operators import OperatorFrontEnd

#: How similar to a name in the contract a method's name must be to count as a misspelling.
_NEAR: Final = 0.8


def product_of(factory_protocol: type) -> tuple[type, ...]:
    """The protocols of which a factory's ``create`` makes at least one."""
    made = typing.get_type_hints(vars(factory_protocol)["create"])["return"]
    return protocols_in(made)


def problem_of(made: object, protocols: tuple[type, ...], besides: tuple[type, ...] = ()) -> str:
    """What keeps *made* from being one of *protocols*, "" when nothing does.

    With several protocols it must keep each of which it has a member; to have none is a problem.

    Args: besides: what it may be in addition; the same holds for these.
    """
    names = {name for protocol in (*protocols, *besides) for name, _ in _members(protocol)}
    missing = [name for name in names if not _has(made, name)]
    for name in sorted(_methods(made) - names):
        near = difflib.get_close_matches(name, missing, n=1, cutoff=_NEAR)
        if near:
            return f"a method `{name}`: did you mean `{near[0]}`?"
    meant = protocols if len(protocols) == 1 else _begun(made, protocols)
    if not meant:
        known = ", ".join(
            f"`{name}`" for name in sorted({n for p in protocols for n, _ in _members(p)})
        )
        return f"none of the methods that the gateway calls ({known})"
    for protocol in (*meant, *_begun(made, besides)):
        for name, member in _members(protocol):
            problem = _member_problem(made, name, member)
            if problem:
                return f"{problem} ({protocol.__name__})"
    return ""


def _begun(made: object, protocols: tuple[type, ...]) -> tuple[type, ...]:
    """Those of which *made* has a member."""
    return tuple(
        protocol
        for protocol in protocols
        if any(_has(made, name) for name, _ in _members(protocol))
    )


@functools.cache
def _members(protocol: type) -> tuple[tuple[str, object], ...]:
    return tuple(
        (name, member)
        for kind in reversed(protocol.__mro__)
        if getattr(kind, "_is_protocol", False) and kind is not typing.Protocol
        for name, member in vars(kind).items()
        if not name.startswith("_") and (callable(member) or isinstance(member, property))
    )


def _has(made: object, name: str) -> bool:
    try:
        return hasattr(made, name)
    except Exception:  # it exists and fails, which reading it will show
        return True


def _methods(made: object) -> set[str]:
    """Public methods that the object's own class defines."""
    return {
        name
        for name in dir(type(made))
        if not name.startswith("_") and callable(inspect.getattr_static(made, name, None))
    }


def _member_problem(made: object, name: str, member: object) -> str:
    try:
        value: Any = getattr(made, name)
    except AttributeError:
        return f"no `{name}`"
    except Exception as error:
        return f"a `{name}` that cannot be read: {type(error).__name__}: {error}"
    if isinstance(member, property):
        assert member.fget is not None
        return _value_problem(name, value, typing.get_type_hints(member.fget).get("return"))
    return _method_problem(name, value, cast("types.FunctionType", member))


def _method_problem(name: str, method: Any, declared: types.FunctionType) -> str:
    if not callable(method):
        return f"a `{name}` that cannot be called: {method!r}"
    is_async = inspect.iscoroutinefunction(declared)
    if inspect.iscoroutinefunction(inspect.unwrap(method)) is not is_async:
        return f"a `{name}` that must be {'async def' if is_async else 'def and not async'}"
    try:
        signature = inspect.signature(method)
    except (TypeError, ValueError):
        return ""  # not a Python function: its arguments are unknown
    for positional, keywords in _calls(declared):
        try:
            signature.bind(*positional, **keywords)
        except TypeError as error:
            wanted = inspect.signature(declared).replace(return_annotation=inspect.Signature.empty)
            names = ", ".join(str(item.name) for item in list(wanted.parameters.values())[1:])
            return f"a `{name}` that cannot be called with ({names}): {error}"
    return ""


def _calls(declared: types.FunctionType) -> Iterator[tuple[list[object], dict[str, object]]]:
    """Arguments a method is called with: all of them, and only the required ones."""
    for only_required in (False, True):
        positional: list[object] = []
        keywords: dict[str, object] = {}
        for item in list(inspect.signature(declared).parameters.values())[1:]:
            if only_required and item.default is not item.empty:
                continue
            if item.kind is item.KEYWORD_ONLY:
                keywords[item.name] = None
            elif item.kind is item.VAR_POSITIONAL:
                positional += [] if only_required else [None, None]
            elif item.kind is not item.VAR_KEYWORD:
                positional.append(None)
        yield positional, keywords


def _value_problem(name: str, value: object, annotation: object) -> str:
    if dataclasses.is_dataclass(annotation):
        kind = cast("type[object]", annotation)
        if not isinstance(value, kind):
            return f"a `{name}` that is {value!r}, not {kind.__name__}"
        for field, hint in typing.get_type_hints(kind).items():
            problem = _value_problem(f"{name}.{field}", getattr(value, field), hint)
            if problem:
                return problem
        return ""
    protocols = protocols_in(annotation)
    if value is None or not protocols:
        return ""
    problem = problem_of(value, protocols)
    return f"in its `{name}` {problem}" if problem else ""


def protocols_in(annotation: object) -> tuple[type, ...]:
    """The protocol classes in an annotation, which may be a union."""
    parts = typing.get_args(annotation) or (annotation,)
    return tuple(cast("type", part) for part in parts if getattr(part, "_is_protocol", False))


#: What a plugin's object may be in addition, by what it is.
_BESIDES: Final[Mapping[type, tuple[type, ...]]] = {
    Resident: (  # any extension
        Service,
        Directory,
        UserList,
        Explainer,
        RuleList,
        Reloadable,
        Bridging,
        TakesQueues,
        HeedsDrain,
        Exchangeable,
    ),
    Sink: (CommittingSink, CompactingSink, ServingSink),
    FrontEnd: (OperatorFrontEnd, Reloadable),
}


class CheckedFactory:
    """A plugin's factory; what it makes is checked before use.

    Args: hook: the one that registers it; entry_name, origin: of the plugin, for messages.
    """

    def __init__(
        self, factory: object, hook: str, entry_name: str, origin: Callable[[], str]
    ) -> None:
        self._factory: Any = factory
        (protocol,) = protocols_in(typing.get_type_hints(getattr(hookspecs, hook))["return"])
        made = self._products = product_of(protocol)
        self._besides = next((more for kind, more in _BESIDES.items() if kind in made), ())
        self._entry_name = entry_name
        self._origin = origin
        self._seen: set[type[object]] = set()  # every cursor is alike

    def __getattr__(self, name: str) -> object:
        return getattr(self._factory, name)

    def create(self, *arguments: object) -> object:
        """Like the factory's. Raises: PluginContractError as well."""
        with exit_is_error(self._entry_name):
            made: object = self._factory.create(*arguments)
        kind = type(made)
        if kind not in self._seen:
            problem = problem_of(made, self._products, self._besides)
            if problem:
                raise PluginContractError(
                    self._entry_name,
                    f"{self._origin()}: create() returned {kind.__name__}, which has {problem}",
                )
            self._seen.add(kind)
        return made
