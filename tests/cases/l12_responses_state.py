"""tenstorrent/tt-inference-server#3419, janhq/server#96: what `store` (on by default) promises: the response can be retrieved, listed,
deleted; previous_response_id after a tool call, after store = false, of another session, twice from one response.

Expected: chains work; retrieval works or is a 404 in OpenAI's form that says why.
"""

from sf_live import Episode, send, verdict

with Episode() as e:

    def ask(**body):
        return e.post("/v1/responses", {"model": "m", "max_output_tokens": 6, **body})

    one = ask(input="What is 1+1?", instructions="long instructions that count")
    rid = one.json["id"]
    two = ask(input="What is 2+2?", previous_response_id=rid)
    whole = one.json["output"]
    by_hand = ask(input=[{"role": "user", "content": "What is 1+1?"}, *whole, {"role": "user", "content": "What is 2+2?"}])
    print(
        "prompt tokens: first",
        one.prompt_tokens,
        "chained",
        two.prompt_tokens,
        "by hand",
        by_hand.prompt_tokens,
        "(instructions do not carry over)",
    )
    branch = ask(input="What is 3+3?", previous_response_id=rid)
    print("a second branch:", branch.status, branch.prompt_tokens)
    gone = ask(input="x", store=False)
    after = ask(input="y", previous_response_id=gone.json["id"])
    print("after store=false:", after.status, after.json["error"]["code"])
    print(
        "unknown id:",
        ask(input="y", previous_response_id="resp_nonsense").status,
        "empty:",
        ask(input="y", previous_response_id="").status,
    )
    with Episode() as other:
        print(
            "of another session:", other.post("/v1/responses", {"model": "m", "input": "y", "previous_response_id": rid}).status
        )
    statuses = []
    for method, path in (
        ("GET", f"/v1/responses/{rid}"),
        ("GET", f"/v1/responses/{rid}/input_items"),
        ("DELETE", f"/v1/responses/{rid}"),
        ("POST", f"/v1/responses/{rid}/cancel"),
        ("POST", "/v1/responses/input_tokens"),
        ("POST", "/v1/responses/compact"),
    ):
        got = send(
            method, path, b'{"model":"m","input":"hi"}' if method == "POST" else b"", {"Authorization": f"Bearer {e.key}"}
        )
        statuses.append(got.status)
        print(f"{method} {path.replace(rid, 'ID'):34} {got.status} {(got.error or '')[:120]}")
    for extra in (
        {"background": True},
        {"background": False},
        {"include": ["reasoning.encrypted_content", "file_search_call.results"]},
        {"include": []},
        {"text": {"format": {"type": "json_object"}}},
        {"text": {"verbosity": "low"}},
        {"reasoning": {"effort": "low", "summary": "auto"}},
        {"truncation": "auto"},
        {"max_tool_calls": 0},
        {"conversation": None},
        {"prompt": None},
        {"input": []},
        {"input": ""},
        {"tools": [{"type": "web_search"}, {"type": "custom", "name": "x"}, {"type": "zzz"}]},
    ):
        got = ask(**{"input": "hi", **extra})
        print(f"{str(extra)[:80]:82} {got.status} {(got.error or '')[:80] if got.status != 200 else ''}")
    verdict(
        one.json.get("store") is not False and 404 not in statuses[:1],
        "a stored response can be retrieved (openai's client: responses.retrieve)",
    )
