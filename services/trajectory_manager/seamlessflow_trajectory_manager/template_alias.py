"""Other names that a chat template gives to the messages, as Llama 3's does: ``{% set loop_messages = messages %}``.

Such a name is the messages wherever it stands, if it is set once, at the top, and not read before. Any other use of it is
left as it is, and then the template is not known to be a fold.
"""

from __future__ import annotations

from collections.abc import Iterator

from jinja2 import nodes


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
