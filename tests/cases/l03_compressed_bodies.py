"""sozercan/vekil#6, farion1231/cc-switch#3817, earendil-works/pi#8517: clients compress request bodies (Codex zstd, others gzip, deflate).

Expected: gzip and deflate are read; what cannot be read is a 415 or 400 that NAMES the encoding; a decompression bomb is a 413.
"""

import gzip
import json
import zlib

from sf_live import Episode, user, verdict

BODY = json.dumps({"model": "m", "max_tokens": 4, "messages": [user("hi")]}).encode()
ZSTD = bytes.fromhex("28b52ffd") + bytes([0x20, len(BODY)]) + (len(BODY) << 3 | 1).to_bytes(3, "little") + BODY  # one raw block
bad = []
with Episode() as e:

    def tried(name, raw, encoding, wanted):
        got = e.post("/v1/chat/completions", raw, **{"Content-Encoding": encoding})
        fine = got.status in wanted and (got.status == 200 or got.status == 413 or encoding in (got.error or "").lower())
        print(f"{name:28} {got.status} {got.seconds:5.2f} s  {got.raw[:150]!r}")
        bad.extend([] if fine else [name])

    tried("identity (control)", BODY, "identity", (200,))
    tried("gzip", gzip.compress(BODY), "gzip", (200,))
    tried("x-gzip", gzip.compress(BODY), "x-gzip", (200, 400, 415))
    tried("deflate (zlib)", zlib.compress(BODY), "deflate", (200,))
    raw = zlib.compressobj(wbits=-15)
    tried("deflate (raw)", raw.compress(BODY) + raw.flush(), "deflate", (200,))
    tried("zstd", ZSTD, "zstd", (200, 400, 415))
    tried("br that is none", BODY, "br", (400, 415))
    tried("gzip that is none", BODY, "gzip", (400, 415))
    tried("gzip, cut", gzip.compress(BODY)[:-8], "gzip", (400, 415))
    tried("bomb: 200 MB of spaces", gzip.compress(b" " * (200 << 20), 1), "gzip", (413,))
    print("afterwards:", e.chat(user("hi")).status)
verdict(not bad, f"compressed bodies (not: {bad})")
