"""huggingface/tau#354, bytedance/deer-flow#5423, datalad/datalad#3523: JSON lines read with str.splitlines() break at U+2028, U+2029 and
U+0085, which JSON allows raw in a text (json.dumps(ensure_ascii=False), JSON.stringify write them so). msgpack/msgpack-python#221,
baserow/baserow#4309: whole numbers beyond 64 bits cannot be packed.

`seamlessflow submit FILE` (shared/seamlessflow/cli/submit.py). Expected: each line is one task; what cannot be published is reported with
its line, and nothing else is published ("A wrong line is reported with its number; nothing is published unless all are right").
"""

import json
import tempfile
from pathlib import Path

from sf_unit import verdict

from seamlessflow.cli.submit import read_tasks
from seamlessflow.codec import to_message

bad = []
TASK = {"task": "t1", "env": "single", "prompt": "p", "data": {"entry": {"answer": "42"}}}


def tried(name, raw, wanted=1, refuse=False):
    file = Path(tempfile.mkdtemp()) / "tasks.jsonl"
    file.write_bytes(raw)
    try:
        tasks = read_tasks(file, "demo")
        for task in tasks:
            to_message(task)  # what submit does next
        ok = len(tasks) == wanted and not refuse
        print(f"{name:44} {len(tasks)} task(s), published")
    except Exception as wrong:
        kind, said = type(wrong).__name__, str(wrong)
        ok = refuse and kind == "ConfigError"
        print(f"{name:44} {kind}: {' '.join(said.split())[-110:]}")
    bad.extend([] if ok else [name])


line = lambda **more: json.dumps({**TASK, **more}, ensure_ascii=False).encode("utf-8", "surrogatepass")
tried("plain (control)", line() + b"\n")
tried("CRLF", line() + b"\r\n" + line(task="t2") + b"\r\n", 2)
tried("U+2028 in the prompt", line(prompt="a\u2028b") + b"\n")
tried("U+2029 in the data", line(data={"x": "a\u2029b"}) + b"\n")
tried("U+0085 in the prompt", line(prompt="a\u0085b") + b"\n")
tried("U+001C escaped (json.dumps escapes it)", line(prompt="a\u001cb") + b"\n")
tried("UTF-8 BOM", b"\xef\xbb\xbf" + line() + b"\n")
tried("UTF-16 (Windows 'Unicode')", (line().decode() + "\n").encode("utf-16"), refuse=True)
tried("Latin-1", json.dumps({**TASK, "prompt": "caf\u00e9"}, ensure_ascii=False).encode("latin-1"), refuse=True)
tried("answer of 30 digits", line(data={"entry": {"answer": 10**30}}) + b"\n")
tried("half a surrogate pair, escaped", b'{"task":"t1","env":"single","prompt":"a\\ud83d"}\n', refuse=True)
tried("NaN in the data", b'{"task":"t1","env":"single","prompt":"p","data":{"x":NaN}}\n')
tried(
    "nested 2000 deep",
    b'{"task":"t1","env":"single","prompt":"p","data":{"x":' + b"[" * 2000 + b"]" * 2000 + b"}}\n",
    refuse=True,
)
tried("a list instead of an object", b"[1]\n", refuse=True)
tried("a task name with a dot", line(task="a.b") + b"\n", refuse=True)
tried("empty file", b"", 0)
verdict(not bad, f"task files (not: {bad})")
