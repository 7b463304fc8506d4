"""The grammar of message selectors: SQL-92 conditional expressions as in JMS 2.0 section 3.8.1.

The result is a tree of plain tuples, ``(operator, operand, …)``, that the compiler walks
(:mod:`tidegate.broker.lists.selector`). Literals and names are ``("value", x)`` and ``("name", x)``.
"""

from __future__ import annotations

import re
from typing import Any, Final

import lark
from lark import Lark, Token, Transformer, UnexpectedInput, UnexpectedToken

from tidegate.spi import RequestError

#: Characters of a selector. Longer ones are programs, and every message would run them.
LENGTH_MAX: Final = 4096

#: Levels of nested parentheses, NOT and signs, and operators in one chain: each is a level of
#: Python calls for every message.
DEPTH_MAX: Final = 100

#: LIKE conditions in one selector: each may look at every character of a long header, which takes
#: milliseconds for the longest.
LIKES_MAX: Final = 8

_GRAMMAR: Final = r"""
?start: or

?or: and | or "OR"i and -> or_
?and: not | and "AND"i not -> and_
?not: comparison | "NOT"i not -> not_

?comparison: sum
    | sum "=" sum -> eq
    | sum "<>" sum -> ne
    | sum "<" sum -> lt
    | sum "<=" sum -> le
    | sum ">" sum -> gt
    | sum ">=" sum -> ge
    | sum "BETWEEN"i sum "AND"i sum -> between
    | sum "NOT"i "BETWEEN"i sum "AND"i sum -> not_between
    | sum "IN"i "(" list ")" -> in_
    | sum "NOT"i "IN"i "(" list ")" -> not_in
    | sum "LIKE"i string -> like
    | sum "LIKE"i string "ESCAPE"i string -> like
    | sum "NOT"i "LIKE"i string -> not_like
    | sum "NOT"i "LIKE"i string "ESCAPE"i string -> not_like
    | sum "IS"i "NULL"i -> is_null
    | sum "IS"i "NOT"i "NULL"i -> is_not_null

list: string ("," string)*

?sum: product
    | sum "+" product -> add
    | sum "-" product -> sub
?product: sign
    | product "*" sign -> mul
    | product "/" sign -> div
?sign: atom
    | "-" sign -> neg
    | "+" sign -> pos
?atom: number | string | boolean | name | "(" or ")"

?number: FLOAT -> float_ | INTEGER -> integer | HEX -> hex_
string: STRING
?boolean: "TRUE"i -> true | "FALSE"i -> false
?name: NAME -> plain | QUOTED -> quoted

FLOAT.3: /(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[dDfF]?|[0-9]+[eE][+-]?[0-9]+[dDfF]?|[0-9]+[dDfF]/
HEX.4: /0[xX][0-9a-fA-F]+[lL]?/
INTEGER.2: /[0-9]+[lL]?/
STRING: /'(?:[^']|'')*'/
NAME: /[^\W\d][\w$.]*|\$[\w$.]*/
QUOTED: /"(?:[^"]|"")+"/
%ignore /[ \t\r\n\f]+/
"""

#: Prefixes of the ActiveMQ family that ask for what is done here anyway.
_PREFIXES: Final = re.compile(
    r"\s*(?:(?:convert_string_expressions|hyphenated_props):\s*)+", re.IGNORECASE
)

#: Digits of a number: it is compared with numbers in headers, which are no larger.
_DIGITS_MAX: Final = 40

#: A tree, or a leaf's value; ``Any`` because it may nest to any depth.
Tree = tuple[Any, ...]


#: Words that the lexer takes for a name where the keyword is not allowed.
_RESERVED: Final = frozenset(
    ("AND", "BETWEEN", "ESCAPE", "FALSE", "IN", "IS", "LIKE", "NOT", "NULL", "OR", "TRUE")
)


class _ToTuples(Transformer[Token, Any]):
    """Rules become tuples, ``(rule, child, …)``; chains of AND and OR become one flat tuple."""

    def __init__(self) -> None:
        super().__init__(visit_tokens=False)

    def __default__(self, data: str, children: list[Any], meta: object) -> Any:
        # The parser has its own rule for a repetition, whose tree it inlines itself.
        return lark.Tree(data, children) if data.startswith("_") else (str(data), *children)

    def integer(self, children: list[str]) -> Tree:
        return ("value", int(_short(children[0].rstrip("lL"))))

    def hex_(self, children: list[str]) -> Tree:
        return ("value", int(_short(children[0].rstrip("lL")), 16))

    def float_(self, children: list[str]) -> Tree:
        return ("value", float(_short(children[0].rstrip("dDfF"))))

    def string(self, children: list[str]) -> Tree:
        return ("value", children[0][1:-1].replace("''", "'"))

    def true(self, children: list[Any]) -> Tree:
        del children
        return ("value", True)

    def false(self, children: list[Any]) -> Tree:
        del children
        return ("value", False)

    def plain(self, children: list[Token]) -> Tree:
        token = children[0]
        if token.upper() in _RESERVED:
            raise RequestError(
                f"selector: unexpected {str(token)!r} at column {token.column}; quote "
                "it if it is the name of a header"
            )
        return ("name", str(token))

    def quoted(self, children: list[str]) -> Tree:
        return ("name", children[0][1:-1].replace('""', '"'))

    def or_(self, children: list[Tree]) -> Tree:
        return _flat("or", children)

    def and_(self, children: list[Tree]) -> Tree:
        return _flat("and", children)


def _flat(operator: str, children: list[Tree]) -> Tree:
    first, second = children
    if first[0] == operator:
        return (*first, second)
    return (operator, first, second)


def _short(digits: str) -> str:
    if len(digits) > _DIGITS_MAX:
        raise RequestError(f"selector: the number {digits[:_DIGITS_MAX]}… is too long")
    return digits


#: With the transformer inside the parser, nothing is recursive, however deep a selector is.
_parser: Final[Any] = Lark(_GRAMMAR, parser="lalr", transformer=_ToTuples())


def parse(text: str) -> Tree:
    """The tree of the selector *text*.

    Raises: RequestError that says what is wrong and, where that is known, at which column.
    """
    if len(text) > LENGTH_MAX:
        raise RequestError(
            f"selector: it is {len(text)} characters long; at most {LENGTH_MAX} are allowed"
        )
    prefix = _PREFIXES.match(text)
    start = prefix.end() if prefix is not None else 0
    try:
        tree: Tree = _parser.parse(" " * start + text[start:])  # columns are those of *text*
    except UnexpectedInput as error:
        raise RequestError(f"selector: {_explain(text, error)}") from None
    _check_size(tree)
    return tree


def _explain(text: str, error: UnexpectedInput) -> str:
    token: Any = getattr(error, "token", None)
    if token is not None and token.type == "$END":
        return f"it ends unexpectedly, at column {len(text) + 1}"
    position = error.pos_in_stream or 0
    found = text[position : position + 20]
    if found.startswith(("'", '"')):
        kind = "string" if found.startswith("'") else "quoted name"
        if not isinstance(error, UnexpectedToken):
            return f"the {kind} that begins at column {position + 1} is not closed"
    return f"unexpected {found!r} at column {position + 1}"


def _check_size(tree: Tree) -> None:
    """Level by level, without recursion. Raises: RequestError."""
    level: list[Any] = [tree]
    likes = 0
    for _ in range(DEPTH_MAX):
        likes += sum(node[0] in ("like", "not_like") for node in level)
        if likes > LIKES_MAX:
            raise RequestError(f"selector: more than {LIKES_MAX} LIKE conditions")
        level = [
            child for node in level for child in node[1:] if isinstance(child, tuple) and child
        ]
        if not level:
            return
    raise RequestError(f"selector: expressions are nested more than {DEPTH_MAX} levels deep")
