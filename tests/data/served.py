"""A folder behind an address."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer


class Handler(SimpleHTTPRequestHandler):
    """Counts requests; `server.refuse` maps names to how often they fail, `server.cut` holds names that come half."""

    def do_GET(self):
        name = self.path.rpartition("/")[2]
        self.server.asked[name] += 1
        if self.server.refuse[name] > 0:
            self.server.refuse[name] -= 1
            self.send_error(503)
        elif name in self.server.cut:
            content = open(self.translate_path(self.path), "rb").read()  # noqa: SIM115
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[: len(content) // 2])
        else:
            super().do_GET()

    def log_message(self, *words):
        pass


@contextmanager
def serve(folder):
    """-> (address, server)"""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder)))
    server.asked, server.refuse, server.cut = Counter(), Counter(), set()
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
