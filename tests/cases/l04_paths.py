"""sigoden/aichat#767, thmsmlr/instructor_ex#122, NousResearch/hermes-agent#18431: base URLs with a slash too many, with or without /v1.

Expected: 200, or a 404 of the dialect's own form that says which path is right. (OpenAI and Anthropic answer 404, too.)
"""

from sf_live import Episode, send, user, verdict

CHAT = {"model": "m", "max_tokens": 4, "messages": [user("hi")]}
with Episode() as e:
    answers = {}
    for path in (
        "/v1/chat/completions",
        "/v1/chat/completions/",
        "//v1/chat/completions",
        "/v1//chat/completions",
        "/chat/completions",
        "/v1/v1/chat/completions",
        "/v1/messages",
        "/v1/messages/",
        "//v1/messages",
        "/v1/v1/messages",
        "/messages",
        "/v1/messages?beta=true",
        f"/e/{e.key}/v1/messages",
        f"/e/{e.key}//v1/messages",
    ):
        got = e.post(path, CHAT)
        answers[path] = got.status
        print(f"{path.replace(e.key, 'KEY'):34} {got.status} {'' if got.status == 200 else (got.error or got.raw[:60])[:150]}")
        assert e.key.encode() not in got.raw, "the key is repeated"
    for method, path in (
        ("GET", "/v1/models"),
        ("HEAD", "/v1/models"),
        ("GET", "/v1/models/"),
        ("GET", "/v1/models/a/b%20c"),
        ("GET", "/v1/models?limit=3"),
        ("GET", "/models"),
        ("HEAD", "/"),
        ("GET", "/"),
        ("GET", "/health"),
        ("GET", "/v1/chat/completions"),
    ):
        got = send(method, path, b"", {"Authorization": f"Bearer {e.key}"})
        print(f"{method:5}{path:29} {got.status} {got.headers.get('Allow', '')} {got.raw[:110]!r}")
    verdict(
        answers["//v1/messages"] == 200 and answers["/v1/messages/"] == 200,
        "a slash too many is forgiven (404 with an explanation otherwise)",
    )
