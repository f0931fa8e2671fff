"""SQL expressions of schema files -> a syntax tree of our own. Text in, tree out; nothing is looked up or run.

The language is one expression over the columns of a file: names (`a`, `"a b"`, `a.b` for a field of a struct), numbers,
'texts', TRUE, FALSE, NULL, `+ - * / % ||`, `= <> < <= > >=`, AND, OR, NOT, IS [NOT] NULL | TRUE | FALSE,
[NOT] IN (constants), [NOT] BETWEEN, [NOT] LIKE | ILIKE, CASE, CAST, TRY_CAST, `a::type`, EXTRACT(part FROM a), and the
functions that the caller allows. Anything else, a query above all, is an error.

The parser is our own because polars' opens files and URLs while it parses and ends the process where an expression is
nested deeply.
"""

import json
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from fsdata.errors import SchemaError

MAX_CHARACTERS = 100_000
MAX_PARTS = 10_000
MAX_DEPTH = 100
_MAX_DIGITS = 20  # of an integer; more become a float
_MAX_PARENTHESES = 30  # every level takes a dozen Python calls of the thousand that there may be

_TOKEN = re.compile(
    r"""\s*(?:
    (?P<number>(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?(?![\w.]))
  | (?P<text>'(?:[^']|'')*')
  | (?P<quoted>"(?:[^"]|"")+")
  | (?P<word>[^\W\d]\w*)
  | (?P<sign>\|\||::|<>|!=|<=|>=|==|-(?!-)|[+*/%=<>(),.])
  )""",
    re.VERBOSE,
)
_COMPARISONS = {"=": "=", "==": "=", "<>": "<>", "!=": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_LEVELS = (("OR",), ("AND",), ("NOT",), ("comparison",), ("+", "-", "||"), ("*", "/", "%"))
_KEYWORDS = "AND OR NOT IS IN BETWEEN LIKE ILIKE CASE WHEN THEN ELSE END CAST TRY_CAST AS NULL TRUE FALSE SELECT FROM"
_RESERVED = frozenset(_KEYWORDS.split())


@dataclass(frozen=True, slots=True)
class Tree:
    """One node: `op` over `args`. `column` and `constant` hold one plain value, every other op holds trees."""

    op: str
    args: tuple["Tree | str | int | float | bool | None", ...]
    depth: int = field(init=False)
    size: int = field(init=False)  # nodes; one that stands in several places counts in each

    def __post_init__(self) -> None:
        trees = [arg for arg in self.args if isinstance(arg, Tree)]
        object.__setattr__(self, "depth", 1 + max((tree.depth for tree in trees), default=0))
        object.__setattr__(self, "size", 1 + sum(tree.size for tree in trees))
        if self.depth > MAX_DEPTH:
            raise SchemaError(f"an expression is nested at most {MAX_DEPTH} deep; for many values of one column use IN")
        if self.size > MAX_PARTS:
            raise SchemaError(f"an expression has at most {MAX_PARTS} parts")

    @property
    def form(self) -> str:
        """The tree as text: the same for the same meaning, whatever the spelling and the version of any library."""
        if self.op in ("column", "constant"):
            return f"{self.op}:{json.dumps(self.args[0])}"
        return f"{self.op}({', '.join(arg.form if isinstance(arg, Tree) else json.dumps(arg) for arg in self.args)})"


def parse(text: str, functions: Collection[str], types: Collection[str]) -> Tree:
    """The tree of an expression.

    Args:
        functions: names that may be called, in capitals.
        types: names that CAST may name, in capitals.

    Raises:
        SchemaError: not one expression of the language above, or larger than the limits of this file.
    """
    if len(text) > MAX_CHARACTERS:
        raise SchemaError(f"an expression has at most {MAX_CHARACTERS} characters, got {len(text)}")
    return _Parser(_tokens(text), functions, types).whole()


def _tokens(text: str) -> list[tuple[str, str]]:
    """(kind, text) of every token; names and texts without their quotes."""
    tokens = []
    at, end = 0, len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            raise SchemaError(f"not an SQL expression at character {at + 1}: {text[at : at + 20].strip()!r}")
        kind, token = match.lastgroup, match[match.lastgroup]
        if kind in ("text", "quoted"):
            token = token[1:-1].replace(token[0] * 2, token[0])
        tokens.append((kind, token))
        at = match.end()
        if len(tokens) > MAX_PARTS:
            raise SchemaError(f"an expression has at most {MAX_PARTS} words, numbers and signs")
    return tokens


class _Parser:
    def __init__(self, tokens: list[tuple[str, str]], functions: Collection[str], types: Collection[str]) -> None:
        self._tokens = [*tokens, ("end", "")]
        self._functions = functions
        self._types = types
        self._at = 0
        self._open = 0

    def whole(self) -> Tree:
        tree = self._expression()
        if self._tokens[self._at][0] != "end":
            raise self._unexpected("the end of the expression")
        return tree

    def _expression(self, level: int = 0) -> Tree:
        """An expression whose operators bind as tightly as `_LEVELS[level]` or tighter."""
        if level == len(_LEVELS):
            return self._unary()
        if _LEVELS[level] == ("NOT",):
            return self._not(level + 1)
        if _LEVELS[level] == ("comparison",):
            return self._comparison(level + 1)
        tree = self._expression(level + 1)
        while op := self._take(*_LEVELS[level]):
            tree = Tree(op, (tree, self._expression(level + 1)))
        return tree

    def _not(self, level: int) -> Tree:
        count = 0
        while self._take("NOT"):
            count += 1
        tree = self._expression(level)
        for _ in range(count):
            tree = Tree("NOT", (tree,))
        return tree

    def _comparison(self, level: int) -> Tree:
        tree = self._expression(level)
        if op := self._take(*_COMPARISONS):
            return Tree(_COMPARISONS[op], (tree, self._expression(level)))
        if self._take("IS"):
            negated = self._take("NOT")
            return self._negated(negated, Tree(f"IS {self._need('NULL', 'TRUE', 'FALSE')}", (tree,)))
        negated = self._take("NOT")
        op = self._take("IN", "BETWEEN", "LIKE", "ILIKE")
        if op == "IN":
            self._need("(")
            return self._negated(negated, Tree("IN", (tree, *self._several(self._constant))))
        if op == "BETWEEN":
            low = self._expression(level)
            self._need("AND")
            return self._negated(negated, Tree("BETWEEN", (tree, low, self._expression(level))))
        if op:
            if self._tokens[self._at][0] != "text":
                raise self._unexpected("a 'pattern'")
            return self._negated(negated, Tree(op, (tree, self._constant())))
        if negated:
            raise self._unexpected("IN, BETWEEN or LIKE")
        return tree

    def _negated(self, negated: str, tree: Tree) -> Tree:
        return Tree("NOT", (tree,)) if negated else tree

    def _unary(self) -> Tree:
        signs = 0
        while sign := self._take("-", "+"):
            signs += sign == "-"
        tree = self._postfix()
        number = tree.args[0] if tree.op == "constant" else None
        if isinstance(number, int | float) and not isinstance(number, bool):
            return _number(-number if signs % 2 else number)
        for _ in range(signs):
            tree = Tree("-", (tree,))
        return tree

    def _postfix(self) -> Tree:
        tree = self._primary()
        while op := self._take(".", "::"):
            tree = Tree("field", (tree, self._name())) if op == "." else Tree("CAST", (tree, self._type()))
        return tree

    def _primary(self) -> Tree:
        kind, token = self._tokens[self._at]
        if kind in ("number", "text"):
            return self._constant()
        if kind == "quoted" or (kind == "word" and token.upper() not in _RESERVED and self._ahead(1) != "("):
            return Tree("column", (self._name(),))
        self._open += 1
        if self._open > _MAX_PARENTHESES:
            raise SchemaError(f"parentheses, calls and CASE are nested at most {_MAX_PARENTHESES} deep")
        tree = self._nested()
        self._open -= 1
        return tree

    def _nested(self) -> Tree:
        if self._take("("):
            tree = self._expression()
            self._need(")")
            return tree
        if self._take("CASE"):
            return self._case()
        if op := self._take("CAST", "TRY_CAST"):
            self._need("(")
            tree = self._expression()
            self._need("AS")
            tree = Tree(op, (tree, self._type()))
            self._need(")")
            return tree
        kind, token = self._tokens[self._at]
        if kind == "word" and token.upper() in ("NULL", "TRUE", "FALSE"):
            return self._constant()
        if kind != "word" or token.upper() in _RESERVED:
            raise self._unexpected("a column, a number, a 'text' or a function")
        return self._call(token.upper())

    def _call(self, name: str) -> Tree:
        if name not in self._functions:
            raise SchemaError(f"there is no function {name}; there are {', '.join(sorted(self._functions))}")
        self._at += 2
        if name == "EXTRACT":
            part = self._name()
            self._need("FROM")
            tree = Tree("DATE_PART", (Tree("constant", (part.lower(),)), self._expression()))
            self._need(")")
            return tree
        return Tree(name, () if self._take(")") else self._several(self._expression))

    def _case(self) -> Tree:
        parts = []
        subject = None if self._is("WHEN") else self._expression()
        while self._take("WHEN"):
            when = self._expression()
            parts.append(when if subject is None else Tree("=", (subject, when)))
            self._need("THEN")
            parts.append(self._expression())
        if not parts:
            raise self._unexpected("WHEN")
        tree = self._expression() if self._take("ELSE") else Tree("constant", (None,))
        self._need("END")
        for at in range(len(parts) - 2, -1, -2):
            tree = Tree("IF", (parts[at], parts[at + 1], tree))
        return tree

    def _several(self, one: Callable[[], Tree]) -> tuple[Tree, ...]:
        """Trees with commas between them, up to the closing parenthesis."""
        trees = [one()]
        while self._need(",", ")") == ",":
            trees.append(one())
        return tuple(trees)

    def _constant(self) -> Tree:
        negative = self._take("-")
        kind, token = self._tokens[self._at]
        if kind == "number":
            self._at += 1
            number = int(token) if token.isdigit() and len(token) <= _MAX_DIGITS else float(token)
            return _number(-number if negative else number)
        if kind == "text" and not negative:
            self._at += 1
            return Tree("constant", (token,))
        if not negative and (word := self._take("NULL", "TRUE", "FALSE")):
            return Tree("constant", ({"NULL": None, "TRUE": True, "FALSE": False}[word],))
        raise self._unexpected("a constant")

    def _name(self) -> str:
        kind, token = self._tokens[self._at]
        if kind not in ("word", "quoted"):
            raise self._unexpected("a name")
        self._at += 1
        return token

    def _type(self) -> str:
        kind, token = self._tokens[self._at]
        if kind != "word" or token.upper() not in self._types:
            raise self._unexpected(f"a type ({', '.join(sorted(self._types))})")
        self._at += 1
        return token.upper()

    def _ahead(self, steps: int) -> str:
        at = self._at + steps
        return self._tokens[at][1] if at < len(self._tokens) and self._tokens[at][0] == "sign" else ""

    def _is(self, *wanted: str) -> bool:
        kind, token = self._tokens[self._at]
        return kind in ("word", "sign") and token.upper() in wanted

    def _take(self, *wanted: str) -> str:
        """The word or sign that comes next, in capitals, if it is one of these; else the empty string."""
        if not self._is(*wanted):
            return ""
        self._at += 1
        return self._tokens[self._at - 1][1].upper()

    def _need(self, *wanted: str) -> str:
        found = self._take(*wanted)
        if not found:
            raise self._unexpected(" or ".join(wanted))
        return found

    def _unexpected(self, wanted: str) -> SchemaError:
        kind, token = self._tokens[self._at]
        found = "the expression ends" if kind == "end" else f"there is {token[:40]!r}"
        return SchemaError(f"not an SQL expression: {found} where {wanted} is needed")


def _number(value: int | float) -> Tree:
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        raise SchemaError("an integer fits into 64 bits")
    if value in (float("inf"), float("-inf")):
        raise SchemaError("a number fits into a double")
    return Tree("constant", (value,))
