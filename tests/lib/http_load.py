"""Many streams over HTTP from one thread, which only looks for their ends while they run: so it takes little of the time that it
measures."""
import json, selectors, socket, time

END = b"0\r\n\r\n"  # the last chunk; a stream's own text never has it behind the end of a chunk


class Stream:
    def __init__(self, address):
        self.sock = socket.create_connection(address, timeout=60)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.data, self.index = bytearray(), None

    def ask(self, index, path, body):
        """Sends one request; body: bytes."""
        self.data, self.index = bytearray(), index
        self.sock.sendall(b"POST %s HTTP/1.1\r\nHost: load\r\nContent-Length: %d\r\n\r\n%s" % (path.encode(), len(body), body))

    def take(self):
        """What has come. True: the reply is whole."""
        got = self.sock.recv(65536)
        if not got:
            raise EOFError(bytes(self.data[-400:]))
        self.data += got
        if not self.data.startswith(b"HTTP/1.1 200 "):
            raise RuntimeError(bytes(self.data))
        return self.data.endswith(END)


def address_of(url):
    host, port = url.removeprefix("http://").split(":")
    return host, int(port)


def run(url, path, bodies, clients):
    """Streams of all bodies, `clients` at once, each on a connection that stays open. (seconds, [usage of each])."""
    bodies = [json.dumps(dict(b, stream=True, stream_options={"include_usage": True})).encode() for b in bodies]
    replies, waiting = [None] * len(bodies), list(range(len(bodies)))[::-1]
    streams, poll = [Stream(address_of(url)) for _ in range(clients)], selectors.DefaultSelector()
    begin = time.monotonic()
    for s in streams:
        if waiting:
            poll.register(s.sock, selectors.EVENT_READ, s)
            i = waiting.pop()
            s.ask(i, path, bodies[i])
    while poll.get_map():
        for key, _ in poll.select(120) or [(None, None)]:
            if key is None:
                raise TimeoutError("no stream says anything for two minutes")
            s = key.data
            if not s.take():
                continue
            replies[s.index] = bytes(s.data)
            if waiting:
                i = waiting.pop()
                s.ask(i, path, bodies[i])
            else:
                poll.unregister(s.sock)
    seconds = time.monotonic() - begin
    for s in streams:
        s.sock.close()
    poll.close()
    return seconds, [usage_of(r) for r in replies]


def usage_of(reply):
    """The last document of a stream, which ended well."""
    lines = [x for x in reply.split(b"\n") if x.startswith(b"data: ")]
    assert lines[-1] == b"data: [DONE]", reply[-400:]
    return json.loads(lines[-2][6:])["usage"]
