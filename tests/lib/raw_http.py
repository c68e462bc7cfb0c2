"""HTTP by hand, so that tests see the bytes: requests over raw sockets, replies with or without chunks, server-sent events."""
import json, socket


class Reply:
    def __init__(self, status, headers, body, raw=b""):
        self.status, self.headers, self.body, self.raw = status, headers, body, raw

    def json(self):
        return json.loads(self.body)

    def error(self):
        return self.json()["error"]

    def events(self):
        """[(event or None, data)] of a stream; every event must be as the standard has it, and end whole."""
        text = self.body.decode()  # UTF-8, or an error
        assert text.endswith("\n\n") or not text, text[-200:]
        found = []
        for block in text.split("\n\n")[:-1]:
            lines = [line for line in block.split("\n") if not line.startswith(":")]
            if not lines:
                continue
            name = lines.pop(0).removeprefix("event: ") if lines[0].startswith("event: ") else None
            assert len(lines) == 1 and lines[0].startswith("data: "), block
            found.append((name, lines[0].removeprefix("data: ")))
        return found

    def chunks(self):
        """The documents of a stream that ended well."""
        events = self.events()
        assert events[-1] == (None, "[DONE]"), events[-1]
        assert all(name is None for name, _ in events)
        return [json.loads(data) for _, data in events[:-1]]


class Connection:
    """One connection; requests one after another."""

    def __init__(self, url, timeout=60, source=None):
        host, port = url.removeprefix("http://").split(":")
        self.sock = socket.create_connection((host, int(port)), timeout=timeout)
        self.left = b""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.sock.close()

    def send(self, method, path, body=None, headers=(), **kw):
        """body: bytes as they are, anything else as JSON."""
        data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = [f"{method} {path} HTTP/1.1", "Host: test", *(f"{k}: {v}" for k, v in dict(headers).items())]
        if body is not None and "Transfer-Encoding" not in dict(headers):
            lines.append(f"Content-Length: {kw.get('length', len(data))}")
        self.sock.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + data)

    def _more(self):
        got = self.sock.recv(65536)
        if not got:
            raise EOFError("the connection ended")
        self.left += got

    def _line(self):
        while b"\r\n" not in self.left:
            self._more()
        line, self.left = self.left.split(b"\r\n", 1)
        return line

    def _take(self, n):
        while len(self.left) < n:
            self._more()
        data, self.left = self.left[:n], self.left[n:]
        return data

    def head(self):
        """(status, headers) of the next reply."""
        version, status = self._line().split(b" ", 2)[:2]
        assert version == b"HTTP/1.1", version
        headers = {}
        while line := self._line():
            key, value = line.decode().split(": ", 1)
            headers[key.lower()] = value
        return int(status), headers

    def pieces(self, headers):
        """The body's chunks as they come."""
        if headers.get("transfer-encoding") != "chunked":
            yield self._take(int(headers.get("content-length", 0)))
            return
        while size := int(self._line(), 16):
            yield self._take(size)
            assert self._line() == b""
        assert self._line() == b""

    def reply(self):
        status, headers = self.head()
        while status == 100:
            status, headers = self.head()
        return Reply(status, headers, b"".join(self.pieces(headers)))

    def first_event(self):
        """Reads up to the end of a stream's first event; returns (status, headers, data of it)."""
        status, headers = self.head()
        body = b""
        for piece in self.pieces(headers):
            body += piece
            if b"\n\n" in body:
                break
        return status, headers, body.split(b"\n\n")[0].decode().removeprefix("data: ")

    def closed(self):
        """Whether the server has closed it, with nothing more to read."""
        try:
            return self.left == b"" and self.sock.recv(1) == b""
        except ConnectionError:
            return True


def request(url, method, path, body=None, headers=(), timeout=120):
    with Connection(url, timeout) as c:
        c.send(method, path, body, headers)
        return c.reply()


def post(url, path, body, headers=(), timeout=120):
    return request(url, "POST", path, body, headers, timeout)


def get(url, path, headers=()):
    return request(url, "GET", path, None, headers)


def text_of(chunks):
    """Of a streamed completion."""
    return "".join(x["choices"][0]["text"] for x in chunks if x["choices"])


def probe(url):
    """The gateway is alive, and answers as ever: the choice of a short completion."""
    assert get(url, "/health").status == 200
    return post(url, "/v1/completions", {"prompt": "1", "max_tokens": 4, "temperature": 0}).json()["choices"][0]
