"""mudler/LocalAI#710, lm-sys/RouteLLM#43, bricks-cloud/BricksLLM#45: an agent in a browser asks OPTIONS first, and reads nothing without
Access-Control-Allow-Origin. docs/operations.md names agents "in a browser farm".

Expected: OPTIONS on the paths agents use is answered with what a browser needs, or the docs say that browsers need a proxy.
"""

from sf_live import Episode, send, user, verdict

with Episode() as e:
    ask = {
        "Origin": "http://app.example",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type",
    }
    got = send("OPTIONS", "/v1/chat/completions", b"", ask)
    print("preflight:", got.status, {k: v for k, v in got.headers.items() if k.startswith(("Access", "Allow"))}, got.raw[:120])
    real = e.post(
        "/v1/chat/completions", {"model": "m", "max_tokens": 4, "messages": [user("hi")]}, Origin="http://app.example"
    )
    print("real:", real.status, "allow-origin:", real.headers.get("Access-Control-Allow-Origin"))
    verdict(got.status in (200, 204) and "Access-Control-Allow-Origin" in got.headers, "a browser's agent can call")
