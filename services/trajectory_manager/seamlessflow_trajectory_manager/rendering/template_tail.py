"""The end of a conversation under a chat template, without rendering what comes before it.

Most chat templates are a fold over messages: a head (instructions, tools), one loop over ``messages`` that shows each by
itself, its neighbours and the first one, and an end. Then the text of the first messages is the same whatever follows, and
the text from some message on can be rendered alone. Whether a template is of this form is read from its syntax tree, by a
list of what is known to keep it: a template with anything else (a namespace that the loop changes, the number of messages,
the last user's message, a block, an import) has no tail, and is rendered whole.

Exact: the text from ``start`` on is the end of the whole text (tests/services/trajectory_manager/test_template_tail.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.visitor import NodeTransformer

# Other names that a chat template gives to the messages, as Llama 3's does: ``{% set loop_messages = messages %}``.
#
# Such a name is the messages wherever it stands, if it is set once, at the top, and not read before. Any other use of it is
# left as it is, and then the template is not known to be a fold.


def resolve_aliases(tree: nodes.Template, name: str, reserved: frozenset[str]) -> None:
    """Write ``name`` for every other name of the same thing. ``reserved``: names that keep their own meaning."""
    position = 0
    while position < len(tree.body):
        alias = _alias(tree.body[position], name)
        if alias is None or alias in reserved or not _is_plain(tree, position, alias):
            position += 1
            continue
        for each in _named(tree, alias):
            each.name = name
        del tree.body[position]  # what comes next may be an alias of this one


def _alias(statement: nodes.Node, name: str) -> str | None:
    """The other name that a statement gives, if it does nothing else."""
    if not isinstance(statement, nodes.Assign) or not isinstance(statement.target, nodes.Name):
        return None
    given = statement.node
    return statement.target.name if isinstance(given, nodes.Name) and given.name == name != statement.target.name else None


def _is_plain(tree: nodes.Template, position: int, alias: str) -> bool:
    """Whether a name is set once, by the statement at ``position``, and not read before."""
    is_read = any(True for each in tree.body[:position] for _ in _named(each, alias))
    return not is_read and sum(each.ctx != "load" for each in _named(tree, alias)) == 1


def _named(node: nodes.Node, name: str) -> Iterator[nodes.Name]:
    """All places of a name in a node, itself included."""
    found = [node] if isinstance(node, nodes.Name) else []
    yield from (each for each in (*found, *node.find_all(nodes.Name)) if each.name == name)


MESSAGES, LOOP, START, REST = "messages", "loop", "sf_start", "sf_rest"

_PLAIN = (
    *(nodes.Output, nodes.TemplateData, nodes.If, nodes.For, nodes.Assign, nodes.AssignBlock, nodes.Continue),
    *(nodes.Name, nodes.Const, nodes.Getattr, nodes.Getitem, nodes.Slice, nodes.Call, nodes.Filter, nodes.Test, nodes.Compare),
    *(nodes.Operand, nodes.CondExpr, nodes.Concat, nodes.BinExpr, nodes.UnaryExpr),
    *(nodes.Dict, nodes.Pair, nodes.List, nodes.Tuple, nodes.Keyword, nodes.Macro),
)
"""Nodes that depend on nothing but the variables they name. ``break`` is none: it ends the loop."""
_STATEFUL = frozenset(
    {"namespace", "cycler", "joiner", "lipsum", "random", "add_generation_prompt", "varargs", "kwargs", "caller"}
)
"""Names and filters by which an iteration could learn of others, of chance, or of what is rendered after it."""
_ELSEWHERE = (nodes.Extends, nodes.Block, nodes.Include, nodes.Import, nodes.FromImport)


class _NoTail(Exception):
    """The template is not known to be a fold."""


class TemplateTail:
    """``text(start)``: what the template gives from message ``start`` on, the end of the whole text."""

    def __init__(self, template: jinja2.Template) -> None:
        self._template = template

    @classmethod
    def of(cls, environment: jinja2.Environment, source: str) -> TemplateTail | None:
        """None: the template is not known to be a fold. It compiles."""
        tree = environment.parse(source)
        try:
            _cut(tree)
        except _NoTail:
            return None
        tree.set_environment(environment)
        code = environment.compile(tree)
        return cls(jinja2.Template.from_code(environment, code, environment.make_globals(None)))

    def text(self, start: int, messages: Sequence[Mapping[str, Any]], **variables: Any) -> str:
        """``messages``: all of them, as the template wants them; few are read. start: at least 1."""
        rest = (messages[position] for position in range(start, len(messages)))
        return self._template.render(variables, **{MESSAGES: messages, START: start, REST: list(rest)})


def _cut(tree: nodes.Template) -> None:
    """Make a template give its tail only. Raises _NoTail."""
    if any(tree.find_all(_ELSEWHERE)):
        raise _NoTail
    resolve_aliases(tree, MESSAGES, _STATEFUL | {LOOP, START, REST})
    loops = [each for each in tree.body if isinstance(each, nodes.For) and _is_name(each.iter, MESSAGES)]
    if not loops:
        raise _NoTail
    loop = loops[0]
    place = tree.body.index(loop)
    if loop.test is not None or loop.else_ or loop.recursive or not isinstance(loop.target, nodes.Name):
        raise _NoTail
    for node in tree.body[:place]:
        _Fold(in_loop=False).visit(node)
    body = _Fold(in_loop=True)
    if loop.target.name in (MESSAGES, LOOP) or any(True for node in loop.body for _ in node.find_all(nodes.Macro)):
        raise _NoTail
    loop.body = [body.visit(node) for node in loop.body]
    loop.iter = nodes.Name(REST, "load")
    tree.body = [*_silent(tree.body[:place]), *tree.body[place:]]


def _silent(statements: Sequence[nodes.Node]) -> list[nodes.Node]:
    """Statements of the head that set variables, without what says something. A loop's variables are its own."""
    kept: list[nodes.Node] = []
    for statement in statements:
        if isinstance(statement, nodes.If):
            statement.body, statement.else_ = _silent(statement.body), _silent(statement.else_)
            for further in statement.elif_:
                further.body = _silent(further.body)
        if not isinstance(statement, nodes.Output | nodes.For):
            kept.append(statement)
    return kept


class _Fold(NodeTransformer):
    """Refuses whatever is not known to keep the form; counts positions from the first message, not from the first rendered."""

    def __init__(self, *, in_loop: bool) -> None:
        self._in_loop = in_loop
        """Directly in the loop over messages: ``loop`` is that loop."""
        self._nested = 0

    def generic_visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> nodes.Node:
        if not isinstance(node, _PLAIN) or (isinstance(node, nodes.Filter) and node.name in _STATEFUL):
            raise _NoTail
        return super().generic_visit(node, *args, **kwargs)

    def visit_Name(self, node: nodes.Name) -> nodes.Node:
        if node.name in (MESSAGES, START, REST) or node.name in _STATEFUL or (node.name == LOOP and not self._nested):
            raise _NoTail
        return node

    def visit_For(self, node: nodes.For) -> nodes.Node:
        node.iter = self.visit(node.iter)
        if any(True for _ in node.target.find_all(nodes.Name) if _.name in (MESSAGES, LOOP)) or _is_name(node.target, MESSAGES):
            raise _NoTail
        self._nested += 1
        node.body = [self.visit(each) for each in node.body]
        node.else_ = [self.visit(each) for each in node.else_]
        if node.test is not None:
            node.test = self.visit(node.test)
        self._nested -= 1
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        if not _is_name(node.node, MESSAGES):
            return self.generic_visit(node)
        if isinstance(node.arg, nodes.Const) and node.arg.value == 0 and node.arg.value is not False:
            return node
        if self._nested or not self._in_loop or not _is_neighbour(node.arg):
            raise _NoTail
        node.arg = self.visit(node.arg)
        return node

    def visit_Getattr(self, node: nodes.Getattr) -> nodes.Node:
        if not _is_name(node.node, LOOP) or self._nested:
            return self.generic_visit(node)
        if not self._in_loop or node.attr not in ("index0", "index", "first", "last"):
            raise _NoTail
        start = nodes.Name(START, "load")
        if node.attr in ("index0", "index"):
            return nodes.Add(node, start)
        if node.attr == "first":
            return nodes.And(node, nodes.Compare(start, [nodes.Operand("eq", nodes.Const(0))]))
        return node


def _is_name(node: nodes.Node, name: str) -> bool:
    return isinstance(node, nodes.Name) and node.name == name


def _is_neighbour(index: nodes.Node) -> bool:
    """``loop.index0`` and the like, and one more or less."""
    if isinstance(index, nodes.Add | nodes.Sub) and isinstance(index.right, nodes.Const) and index.right.value in (0, 1):
        is_further = isinstance(index, nodes.Add) and index.right.value == 1
        return _is_position(index.left, ("index0",) if is_further else ("index0", "index"))
    return _is_position(index, ("index0", "index"))


def _is_position(node: nodes.Node, names: Sequence[str]) -> bool:
    return isinstance(node, nodes.Getattr) and _is_name(node.node, LOOP) and node.attr in names
