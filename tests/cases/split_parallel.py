"""What the model is fed where a client echoes a turn of two calls as two messages (one call each)."""

import sys

sys.path[:0] = ["."]
from tests.domain.trajectory_builders import *


def show(title, build):
    w = World()
    a = w.turn(
        [user("add")],
        'I add. <tool_call>{"name": "calc", "arguments": {"a": 1}}</tool_call><tool_call>{"name": "calc", "arguments": {"a": 2}}</tool_call>',
        tools=[CALC],
    )
    m = dict(a.message)
    calls = m["tool_calls"]
    msgs = build(m, calls)
    b = w.turn(msgs, "done", tools=[CALC])
    ids = w.engine.fed[b.call]
    print(
        "==",
        title,
        "| parent kept:",
        w.manager and [e.parent for e in w.journal if isinstance(e, GenerationRequested)][-1] is not None,
    )
    print(tokenizer().decode(ids))


t = lambda c, r: {"role": "tool", "tool_call_id": c["id"], "content": r}
show("one message, both calls", lambda m, c: [user("add"), m, t(c[0], "r1"), t(c[1], "r2")])
show(
    "split: a(call1) r1 a(call2) r2",
    lambda m, c: [
        user("add"),
        {**m, "tool_calls": c[:1]},
        t(c[0], "r1"),
        {"role": "assistant", "content": None, "tool_calls": c[1:]},
        t(c[1], "r2"),
    ],
)
show(
    "split: a(call1) a(call2) r1 r2",
    lambda m, c: [
        user("add"),
        {**m, "tool_calls": c[:1]},
        {"role": "assistant", "content": None, "tool_calls": c[1:]},
        t(c[0], "r1"),
        t(c[1], "r2"),
    ],
)
show("first call only executed", lambda m, c: [user("add"), {**m, "tool_calls": c[:1]}, t(c[0], "r1")])
