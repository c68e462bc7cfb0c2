"""A TCP relay: a link between two ends whose latency, bandwidth and faults a test switches while it runs.

One thread serves all connections. It sleeps until a socket is ready or a byte is due, so that it costs little beside
what is measured: a few MB/s of activations, or thousands of small messages a second.
"""
import collections, concurrent.futures, contextlib, heapq, itertools, selectors, socket, struct, threading, time

READ_BYTES = 65536        # taken from a socket at once
ON_THE_WAY_BYTES = 8 << 20  # of one flow; then its sender has to wait
SLICE_S = 0.05            # a link with a bandwidth takes at once what it carries in this time
RESET = None              # in a flow's queue, where b"" is its orderly end


class Direction:
    """One direction of the link; all connections share it. Read the fields, change them by Relay.set."""

    def __init__(self):
        self.latency = 0.0       # seconds
        self.rate = None         # bytes a second; None: as many as come
        self.black_hole = False  # nothing arrives; what was sent arrives afterwards, as TCP sends it again
        self.bytes = 0           # that arrived
        self.free_at = 0.0       # when the link has carried what it was given
        self.waiting = set()     # flows that read on when it is free


class Flow:
    """One direction of one connection: what was read from `source` waits here until it is due at `sink`."""

    def __init__(self, direction, source, sink):
        self.direction, self.source, self.sink = direction, source, sink
        self.queue = collections.deque()  # (when it is due, bytes)
        self.held = 0            # bytes in the queue
        self.last_read = 0.0
        self.blocked = False     # the sink takes nothing at present
        self.swallows = False    # what is read never arrives
        self.read_all = False    # the source has ended
        self.over = False        # its end was passed on, or will never be
        self.reverse = None      # the connection's other flow


class Relay:
    """Listens at `listen` and passes connections on to `target`, both (host, port); a target may be a port of this machine.

    forth: the direction towards the target; back: away from it. buffer_bytes: of the sockets towards the target, where its
    server shall soon feel that nobody reads. enter: called in the relay's thread before it makes sockets, as
    namespaces.Host.enter. All methods may be called from any thread, and have taken effect when they return.
    """

    def __init__(self, target, listen=("127.0.0.1", 0), buffer_bytes=None, enter=None):
        self.target = ("127.0.0.1", target) if isinstance(target, int) else target
        self.listen, self.buffer_bytes, self.enter = listen, buffer_bytes, enter
        self.forth, self.back = Direction(), Direction()
        self.connections = 0     # accepted so far
        self.live = set()        # the flows towards the target of present connections
        self.turns = 0           # of the thread's loop
        self.is_cut = False
        self.commands, self.due, self.order = collections.deque(), [], itertools.count()

    def __enter__(self):
        self.selector = selectors.DefaultSelector()
        self.waker, self.woken = socket.socketpair()
        self.waker.setblocking(False)
        self.woken.setblocking(False)
        self.selector.register(self.woken, selectors.EVENT_READ, self._obey)
        self.ended = False
        started = concurrent.futures.Future()
        self.thread = threading.Thread(target=self._run, args=(started,), name="relay", daemon=True)
        self.thread.start()
        self.port = started.result()
        return self

    def __exit__(self, *_):
        self._call(self._end)
        self.thread.join()
        self.waker.close()
        self.woken.close()

    # ---- what tests ask for ----

    def set(self, direction, **fields):
        """set(relay.back, latency=0.02, rate=None, black_hole=False)"""
        def change():
            for name, value in fields.items():
                if name not in ("latency", "rate", "black_hole"):
                    raise TypeError(name)
                setattr(direction, name, value)
            for forth in list(self.live):
                self._deliver(forth if direction is self.forth else forth.reverse)
            self._free(direction)
        self._call(change)

    def break_connections(self):
        """Both ends of every connection see it reset; the next ones are passed on."""
        self._call(self._break)

    def cut(self):
        """The same, and new connections are reset until mend()."""
        def cut():
            self.is_cut = True
            self._break()
        self._call(cut)

    def mend(self):
        self._call(lambda: setattr(self, "is_cut", False))

    def half_open(self, gone):
        """The end `gone` ("target" or "client") sees every present connection reset; the other end hears nothing of it, and
        what it sends vanishes."""
        def lose():
            for forth in list(self.live):
                lost = forth if gone == "target" else forth.reverse
                lost.swallows = True
                lost.queue.clear()
                self._abort(lost.sink)
                lost.reverse.queue.clear()
                lost.reverse.read_all = lost.reverse.over = True
                self._watch(lost)
        self._call(lose)

    def forget(self):
        """Nothing comes through present connections any more, and neither end hears of it; new ones are passed on."""
        def swallow():
            for flow in self._flows():
                flow.swallows = True
                flow.queue.clear()
                flow.held = 0
                self._watch(flow)
        self._call(swallow)

    # ---- the thread ----

    def _call(self, command):
        done = concurrent.futures.Future()
        self.commands.append((command, done))
        with contextlib.suppress(BlockingIOError):
            self.waker.send(b"x")
        return done.result(timeout=30)

    def _run(self, started):
        try:
            if self.enter:
                self.enter()
            self.listener = socket.create_server(self.listen, backlog=1024)
        except BaseException as e:
            started.set_exception(e)
            return
        self.listener.setblocking(False)
        self.selector.register(self.listener, selectors.EVENT_READ, self._accept)
        started.set_result(self.listener.getsockname()[1])
        while not self.ended:
            self.turns += 1
            wait = max(0.0, self.due[0][0] - time.monotonic()) if self.due else None
            # Whoever was read longest ago comes first, so that all get their share of a slow link.
            ready = self.selector.select(wait)
            ready.sort(key=lambda r: getattr(r[0].data[0], "last_read", 0.0) if isinstance(r[0].data, tuple) else 0.0)
            for key, mask in ready:
                if isinstance(key.data, tuple):
                    self._ready(key.fileobj, mask)
                else:
                    key.data(key.fileobj)
            while self.due and self.due[0][0] <= time.monotonic():
                heapq.heappop(self.due)[2]()
        self.selector.close()

    def _at(self, when, act):
        heapq.heappush(self.due, (when, next(self.order), act))

    def _obey(self, woken):
        woken.recv(4096)
        while self.commands:
            command, done = self.commands.popleft()
            try:
                done.set_result(command())
            except BaseException as e:
                done.set_exception(e)

    def _flows(self):
        return [f for forth in self.live for f in (forth, forth.reverse)]

    def _end(self):
        self._break()
        self.listener.close()
        self.ended = True

    # ---- connections ----

    def _accept(self, listener):
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                self.connections += 1
                if self.is_cut:
                    self._abort(client)
                    continue
                server = socket.socket(socket.AF_INET6 if ":" in self.target[0] else socket.AF_INET)
                if self.buffer_bytes:
                    server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.buffer_bytes)
                for s in (client, server):
                    s.setblocking(False)
                    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                server.connect_ex(self.target)
                forth, back = Flow(self.forth, client, server), Flow(self.back, server, client)
                forth.reverse, back.reverse = back, forth
                forth.blocked = True  # until it is connected, as the socket's becoming writable tells
                self.live.add(forth)
                self._watch(forth)

    def _watch(self, flow):
        """Tells the selector what is wanted of the two sockets of a connection."""
        for f in (flow, flow.reverse):
            events = (selectors.EVENT_READ if self._may_read(f) else 0) | (selectors.EVENT_WRITE if f.reverse.blocked else 0)
            known = f.source.fileno() in self.selector.get_map() if f.source.fileno() >= 0 else False
            if f.source.fileno() < 0 or (not events and not known):
                continue
            if not events:
                self.selector.unregister(f.source)
            elif not known:
                self.selector.register(f.source, events, (f, f.reverse))
            elif self.selector.get_key(f.source).events != events:
                self.selector.modify(f.source, events, (f, f.reverse))

    def _may_read(self, f):
        d = f.direction
        if f.read_all or f.source.fileno() < 0:
            return False
        if f.swallows:
            return True
        if d.black_hole or f.held >= ON_THE_WAY_BYTES:
            return False
        if d.rate is None or d.free_at <= time.monotonic():
            return True
        if not d.waiting:
            self._at(d.free_at, lambda: self._free(d))
        d.waiting.add(f)
        return False

    def _free(self, d):
        waiting, d.waiting = d.waiting, set()
        for f in waiting:
            self._watch(f)

    def _ready(self, sock, mask):
        if sock.fileno() < 0 or sock not in self.selector.get_map():
            return  # closed, or no longer wanted, in this very turn
        from_it, to_it = self.selector.get_key(sock).data
        if mask & selectors.EVENT_WRITE:
            to_it.blocked = False
            self._deliver(to_it)
        if mask & selectors.EVENT_READ and self._may_read(from_it):
            self._read(from_it)
        self._watch(from_it)

    def _read(self, f):
        d, now = f.direction, time.monotonic()
        try:
            data = f.source.recv(max(1, min(READ_BYTES, int(d.rate * SLICE_S))) if d.rate else READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = RESET
        f.last_read = now
        if not data:
            f.read_all = True
        if f.swallows:
            f.over = f.read_all
            self._close_if_over(f)
            return
        if data and d.rate:
            d.free_at = max(now, d.free_at) + len(data) / d.rate
        f.held += len(data or b"")
        f.queue.append(((max(now, d.free_at) if d.rate else now) + d.latency, data))
        self._deliver(f)

    def _deliver(self, f):
        """Passes on what is due."""
        while f.queue and not f.blocked and not f.direction.black_hole and not f.over:
            due, data = f.queue[0]
            if due > time.monotonic():
                self._at(due, lambda: self._deliver(f))
                break
            if not data:
                self._pass_end(f, data)
                return
            try:
                n = f.sink.send(data)
            except BlockingIOError:
                f.blocked = True
                break
            except OSError:  # the sink is gone: its reset goes the other way
                f.swallows = True
                f.queue.clear()
                if not f.reverse.read_all:
                    f.reverse.read_all = True
                    f.reverse.queue.append((time.monotonic() + f.reverse.direction.latency, RESET))
                    self._deliver(f.reverse)
                break
            f.direction.bytes += n
            f.held -= n
            if n < len(data):
                f.queue[0] = (due, data[n:])
            else:
                f.queue.popleft()
        self._watch(f)

    def _pass_end(self, f, data):
        f.queue.clear()
        f.over = True
        if data is RESET:
            self._abort(f.sink)
            f.reverse.read_all = f.reverse.over = True
        else:
            with contextlib.suppress(OSError):
                f.sink.shutdown(socket.SHUT_WR)
        self._close_if_over(f)

    def _close_if_over(self, f):
        if f.over and f.reverse.over:
            for g in (f, f.reverse):
                self._close(g.source)
                self.live.discard(g)
        else:
            self._watch(f)

    def _close(self, sock):
        if sock.fileno() >= 0:
            with contextlib.suppress(KeyError):
                self.selector.unregister(sock)
            sock.close()

    def _abort(self, sock):
        if sock.fileno() >= 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._close(sock)

    def _break(self):
        for f in self._flows():
            f.read_all = f.over = True
            f.queue.clear()
            self._abort(f.source)
        self.live.clear()
