"""As much of S3 as reading objects takes, from files of a folder, as fast as the system sends them: a yardstick, not a store.

python -m loadtest.weights_s3_stub FOLDER        prints its port; /BUCKET/KEY is FOLDER/BUCKET/KEY
"""

from __future__ import annotations

import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Objects(BaseHTTPRequestHandler):
    """GET, with or without a range, and HEAD."""

    protocol_version = "HTTP/1.1"
    root = Path()

    def do_HEAD(self) -> None:
        self._answer(has_body=False)

    def do_GET(self) -> None:
        self._answer(has_body=True)

    def _answer(self, *, has_body: bool) -> None:
        try:
            with (self.root / unquote(urlsplit(self.path).path).lstrip("/")).open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                begin, end = self._span(size)
                self.send_response_only(206 if "Range" in self.headers else 200)
                self.send_header("Last-Modified", self.date_time_string(0))
                self.send_header("ETag", '"0"')
                self.send_header("Content-Length", str(end - begin))
                self.end_headers()
                self.wfile.flush()
                while has_body and begin < end:
                    begin += os.sendfile(self.connection.fileno(), file.fileno(), begin, end - begin)
        except FileNotFoundError:
            self.send_response_only(404)
            self.send_header("Content-Length", "0")
            self.end_headers()

    def _span(self, size: int) -> tuple[int, int]:
        if "Range" not in self.headers:
            return 0, size
        first, last = self.headers["Range"].removeprefix("bytes=").split("-")
        return int(first), min(int(last) + 1, size)

    def log_message(self, format: str, *arguments: object) -> None:
        """Quiet."""


if __name__ == "__main__":
    Objects.root = Path(sys.argv[1])
    server = ThreadingHTTPServer(("127.0.0.1", 0), Objects)
    sys.stdout.write(f"{server.server_address[1]}\n")
    sys.stdout.flush()
    server.serve_forever()
