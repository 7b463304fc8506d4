"""Message selectors: compiles the text of one to a function that tells whether a message matches.

SQL-92 as in JMS 2.0 section 3.8.1, with three-valued logic: a comparison with something a message
does not have is *unknown*, and only what is true is selected. Headers of STOMP and MQTT are
strings: compared with a number or a boolean, one that looks like a number is taken for that number,
and ``true`` or ``false`` for that boolean.

No message can make a selector fail or run long: arithmetic on what is no number is unknown, the
time LIKE takes grows only with the length of the text (``selector_like``), and the number of LIKEs
is limited (``selector_grammar.LIKES_MAX``).
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from weakref import WeakValueDictionary

from tidegate.broker.lists.selector_like import compile_like
from tidegate.spi import Message, RequestError

if TYPE_CHECKING:
    from tidegate.broker.lists.selector_grammar import Tree

#: Tells whether a message is selected.
Matcher: TypeAlias = Callable[[Message], bool]

#: A value of a selector: None is unknown (NULL).
Value: TypeAlias = str | int | float | bool | None

_Evaluate: TypeAlias = Callable[[Message], Value]

#: Compiled selectors kept: clients use few, and many connections use the same.
_REMEMBERED: Final = 256
_REMEMBERED_CHARACTERS: Final = 1024

_NUMBER: Final = re.compile(
    r"[+-]?(?:[0-9]{1,40}(?:\.[0-9]{0,40})?|\.[0-9]{1,40})(?:[eE][+-]?[0-9]{1,3})?"
)

#: Larger integers are compared as floating point: a chain of ``*`` must not turn a header into a
#: number of a million digits.
_INTEGER_MAX: Final = 1 << 128


def compile_selector(text: str) -> Matcher | None:
    """The function of a selector; None for an empty one, which selects everything.

    Raises: RequestError that says what is wrong with it and where.
    """
    if not text.strip():
        return None
    if len(text) <= _REMEMBERED_CHARACTERS:
        return _remembered(text)
    found = _long.get(text)
    if found is None:
        found = _long[text] = _compile(text)
    return found


#: Long ones are dropped when unused: compiled, they take twenty times their length.
_long: Final[WeakValueDictionary[str, Matcher]] = WeakValueDictionary()


@lru_cache(maxsize=_REMEMBERED)
def _remembered(text: str) -> Matcher:
    return _compile(text)


def prepare() -> None:
    """Read and build the grammar, which takes up to a tenth of a second. Thread: any.

    Called off the event loop, some time after a start, so that the first selector need not wait.
    """
    _parser()


def _parser() -> Callable[[str], Tree]:
    from tidegate.broker.lists.selector_grammar import parse

    return parse


def _compile(text: str) -> Matcher:
    parse = _parser()
    condition = _condition(parse(text))

    def matches(message: Message) -> bool:
        return condition(message) is True

    return matches


# --- names ---------------------------------------------------------------------------------


def _header(name: str) -> _Evaluate:
    def value(message: Message) -> Value:
        for key, text in message.headers:  # the first of repeated headers counts
            if key == name:
                return text
        return None

    return value


def _correlation_id(message: Message) -> Value:
    data = message.correlation_data
    return data.decode("utf-8", "replace") if data else None


#: Names with a special meaning. The JMS* ones are in JMS 2.0 section 3.8.1.1; the others are
#: STOMP headers that the gateway keeps as fields of the message.
_FIELDS: Final[dict[str, _Evaluate]] = {
    "JMSPriority": lambda message: message.priority,
    "JMSTimestamp": lambda message: message.received_at // 1000,
    "JMSExpiration": lambda message: message.expires_at // 1000,
    "JMSCorrelationID": _correlation_id,
    "JMSReplyTo": lambda message: message.reply_to or None,
    "JMSDeliveryMode": lambda message: "PERSISTENT" if message.persistent else "NON_PERSISTENT",
    "JMSType": _header("type"),
    "JMSMessageID": lambda _message: None,
    "content-type": lambda message: message.content_type or None,
    "correlation-id": _correlation_id,
    "destination": lambda message: message.destination,
    "expires": lambda message: message.expires_at // 1000,
    "persistent": lambda message: message.persistent,
    "priority": lambda message: message.priority,
    "reply-to": lambda message: message.reply_to or None,
}


def _named(name: str) -> _Evaluate:
    field = _FIELDS.get(name)
    header = _header(name)
    if field is None:
        return header
    if name.startswith("JMS"):
        return field
    known: _Evaluate = field

    def either(message: Message) -> Value:
        value = header(message)  # what only the client understands is carried as a header
        return known(message) if value is None else value

    return either


# --- values --------------------------------------------------------------------------------


def _number(value: Value) -> int | float | None:
    """*value* as a number; None when it is not one."""
    if isinstance(value, str):
        text = value.strip()
        if not _NUMBER.fullmatch(text):
            return None
        return int(text) if text.lstrip("+-").isdigit() else _finite(float(text))
    if isinstance(value, bool):
        return None
    return value


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def _truth(value: Value) -> bool | None:
    """*value* as a condition."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        return {"true": True, "false": False}.get(value.lower())
    return None


_ARITHMETIC: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
}


def _divide(left: float, right: float) -> float | None:
    if right == 0:
        return None
    if isinstance(left, int) and isinstance(right, int):
        quotient = abs(left) // abs(right)  # towards zero, as in Java
        return quotient if (left < 0) == (right < 0) else -quotient
    return left / right


def _arithmetic(kind: str, left: _Evaluate, right: _Evaluate) -> _Evaluate:
    compute = _ARITHMETIC.get(kind, _divide)

    def value(message: Message) -> Value:
        first, second = _number(left(message)), _number(right(message))
        if first is None or second is None:
            return None
        try:
            result = compute(first, second)
            if result is None or isinstance(result, int):
                return result if result is None or -_INTEGER_MAX < result < _INTEGER_MAX else None
            return _finite(result)
        except OverflowError:
            return None

    return value


def _value(tree: Tree) -> _Evaluate:
    """The function of a value. Raises: RequestError for a condition within arithmetic."""
    kind = tree[0]
    if kind == "value":
        constant: Value = tree[1]
        return lambda _message: constant
    if kind == "name":
        return _named(tree[1])
    if kind in ("add", "sub", "mul", "div"):
        return _arithmetic(kind, _operand(tree[1]), _operand(tree[2]))
    if kind in ("neg", "pos"):
        inner = _operand(tree[1])
        sign = -1 if kind == "neg" else 1

        def signed(message: Message) -> Value:
            number = _number(inner(message))
            return None if number is None else sign * number

        return signed
    return _condition(tree)


def _operand(tree: Tree) -> _Evaluate:
    if tree[0] == "value" and isinstance(tree[1], (str, bool)):
        raise RequestError(f"selector: {_shown(tree[1])} is not a number")
    if tree[0] not in ("value", "name", "add", "sub", "mul", "div", "neg", "pos"):
        raise RequestError("selector: a condition is not a number")
    return _value(tree)


def _shown(value: Value) -> str:
    return str(value).upper() if isinstance(value, bool) else repr(value)


# --- conditions ----------------------------------------------------------------------------

_ORDER: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}
_EQUALITY: Final[dict[str, Callable[[Any, Any], bool]]] = {"eq": operator.eq, "ne": operator.ne}


def _pair(left: Value, right: Value) -> tuple[Any, Any] | None:
    """Both as the same kind of thing; None when they cannot be compared."""
    if left is None or right is None:
        return None
    if isinstance(left, bool) or isinstance(right, bool):
        one, other = _truth(left), _truth(right)
    elif isinstance(left, str) and isinstance(right, str):
        return left, right
    else:
        one, other = _number(left), _number(right)
    return None if one is None or other is None else (one, other)


def _compare(kind: str, left: _Evaluate, right: _Evaluate) -> _Evaluate:
    order = _ORDER.get(kind)
    if order is None:
        equal = _EQUALITY[kind]

        def equality(message: Message) -> Value:
            pair = _pair(left(message), right(message))
            return None if pair is None else equal(*pair)

        return equality
    in_order = order

    def compared(message: Message) -> Value:
        # Only numbers have an order (JMS 2.0 section 3.8.1.2); two headers are compared as numbers, too.
        first, second = _number(left(message)), _number(right(message))
        return None if first is None or second is None else in_order(first, second)

    return compared


def _test(inner: _Evaluate, test: Callable[[str], bool]) -> _Evaluate:
    def tested(message: Message) -> Value:
        value = inner(message)
        if value is None or isinstance(value, bool):
            return None
        return test(value if isinstance(value, str) else str(value))

    return tested


def _and(parts: tuple[_Evaluate, ...]) -> _Evaluate:
    def every(message: Message) -> Value:
        result: Value = True
        for part in parts:
            value = part(message)
            if value is False:
                return False
            if value is None:
                result = None
        return result

    return every


def _or(parts: tuple[_Evaluate, ...]) -> _Evaluate:
    def some(message: Message) -> Value:
        result: Value = False
        for part in parts:
            value = part(message)
            if value is True:
                return True
            if value is None:
                result = None
        return result

    return some


def _not(inner: _Evaluate) -> _Evaluate:
    def opposite(message: Message) -> Value:
        value = inner(message)
        return None if value is None else not value

    return opposite


def _condition(tree: Tree) -> _Evaluate:
    """The function of a condition: it gives True, False or None. Raises: RequestError."""
    kind: str = tree[0]
    negated = {
        "not_between": "between",
        "not_in": "in_",
        "not_like": "like",
        "is_not_null": "is_null",
    }.get(kind)
    if negated is not None:
        return _not(_condition((negated, *tree[1:])))
    if kind == "or":
        return _or(tuple(_condition(part) for part in tree[1:]))
    if kind == "and":
        return _and(tuple(_condition(part) for part in tree[1:]))
    if kind == "not_":
        return _not(_condition(tree[1]))
    if kind in _EQUALITY:
        return _compare(kind, _value(tree[1]), _value(tree[2]))
    if kind in _ORDER:
        return _compare(kind, _operand(tree[1]), _operand(tree[2]))
    if kind == "between":
        value, low, high = [_operand(part) for part in tree[1:]]
        return _and((_compare("ge", value, low), _compare("le", value, high)))
    return _simple_condition(kind, tree)


def _simple_condition(kind: str, tree: Tree) -> _Evaluate:
    if kind == "in_":
        wanted = frozenset[str](item[1] for item in tree[2][1:])
        return _test(_tested(tree[1]), wanted.__contains__)
    if kind == "like":
        pattern, *escape = [leaf[1] for leaf in tree[2:]]
        return _test(_tested(tree[1]), compile_like(pattern, escape[0] if escape else None))
    if kind == "is_null":
        inner = _tested(tree[1])
        return lambda message: inner(message) is None
    if kind == "name" or (kind == "value" and isinstance(tree[1], bool)):
        value = _value(tree)
        return lambda message: _truth(value(message))
    what = f"{_shown(tree[1])} is" if kind == "value" else "a calculation is"
    raise RequestError(f"selector: {what} no condition; compare it with something")


def _tested(tree: Tree) -> _Evaluate:
    """IN, LIKE and IS NULL must test a name. Raises: RequestError."""
    if tree[0] != "name":
        raise RequestError("selector: IN, LIKE and IS NULL need a name on their left side")
    return _named(tree[1])
