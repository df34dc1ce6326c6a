"""sgl-project/sglang#28601, microsoft/autogen#7967, Menci/Floway#481: logprobs in a stream belong to the chunk that carries the text;
clients read them there, and several keep only those of the last chunk or of chunks with content.

Expected: every content chunk carries the logprobs of its tokens, so that texts of tokens and deltas agree chunk by chunk.
"""

from sf_live import Episode, user, verdict

with Episode() as e:
    got = e.chat(user("What is 12+13?"), stream=True, logprobs=True, top_logprobs=2, max_tokens=12)
    content = [c for c in got.events if c["choices"] and c["choices"][0]["delta"].get("content")]
    bearing = [c for c in got.events if c["choices"] and c["choices"][0].get("logprobs")]
    print(
        "chunks with text:", len(content), " chunks with logprobs:", len(bearing), " both:", sum(c in bearing for c in content)
    )
    whole = e.chat(user("What is 12+13?"), logprobs=True, top_logprobs=2, max_tokens=12).json["choices"][0]
    print(
        "whole: tokens",
        [t["token"] for t in whole["logprobs"]["content"]],
        "top",
        [len(t["top_logprobs"]) for t in whole["logprobs"]["content"]][:3],
    )
    chunk = bearing[0]["choices"][0] if bearing else None
    print(
        "the chunk that bears them: delta",
        chunk and chunk["delta"],
        "tokens",
        chunk and [t["token"] for t in chunk["logprobs"]["content"]],
    )
    r = e.post(
        "/v1/responses",
        {
            "model": "m",
            "input": "What is 12+13?",
            "stream": True,
            "max_output_tokens": 12,
            "include": ["message.output_text.logprobs"],
        },
    )
    deltas = [x for x in r.events if x["type"] == "response.output_text.delta"]
    print("responses: deltas", len(deltas), "with logprobs", sum(bool(x["logprobs"]) for x in deltas))
    verdict(bool(content) and all(c in bearing for c in content), "chunks with text bear their logprobs")
