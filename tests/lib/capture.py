"""What goes over a host's interface: every TCP connection's bytes in their order, and the ZeroMQ messages in them."""
import socket, struct, threading

SOL_PACKET, PACKET_STATISTICS, ETH_P_ALL = 263, 6, 3
SO_RCVBUFFORCE = 33
FIN, SYN = 1, 2


class Capture:
    """`with Capture(host) as capture:` from namespaces.Host; read `streams()` after the block."""

    def __init__(self, host, interface="eth0"):
        self.host, self.interface = host, interface
        self.packets, self.ended, self.dropped = [], False, 0

    def __enter__(self):
        self.started, self.error = threading.Event(), None
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()
        self.started.wait()
        if self.error:
            raise self.error
        return self

    def __exit__(self, *_):
        self.ended = True
        self.thread.join()

    def run(self):
        try:
            self.host.enter()
            s = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0)
            s.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
            s.settimeout(0.2)
            s.bind((self.interface, ETH_P_ALL))
        except OSError as e:
            self.error = e
            return
        finally:
            self.started.set()
        with s:
            while not self.ended:
                try:
                    self.packets.append(s.recv(1 << 17))
                except TimeoutError:
                    pass
            self.dropped = struct.unpack("II", s.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8))[1]

    def streams(self):
        """{(source address, port, destination address, port): bytes} of connections that began meanwhile."""
        if self.dropped:
            raise OSError(f"{self.dropped} packets were not captured")
        start, parts = {}, {}
        for p in self.packets:
            if p[0] >> 4 != 4 or p[9] != socket.IPPROTO_TCP:
                continue
            at, size = 4 * (p[0] & 15), struct.unpack_from(">H", p, 2)[0]
            source, sink, seq = struct.unpack_from(">HHI", p, at)
            key = (socket.inet_ntoa(p[12:16]), source, socket.inet_ntoa(p[16:20]), sink)
            if p[at + 13] & SYN:
                start[key], parts[key] = seq + 1, []
            elif key in start:
                parts[key].append(((seq - start[key]) & 0xffffffff, p[at + 4 * (p[at + 12] >> 4):size]))
        return {key: joined(list_) for key, list_ in parts.items()}


def joined(parts):
    """Bytes from (offset, bytes), some of which were sent again; up to the first gap."""
    data = bytearray()
    for offset, part in sorted(parts, key=lambda p: p[0]):
        if offset > len(data):
            break
        data += part[len(data) - offset:]
    return bytes(data)


def zmtp_messages(data):
    """The messages of one direction of a ZeroMQ connection without encryption: lists of frames (ZMTP 3.0, rfc.zeromq.org/23)."""
    messages, frames, at = [], [], 64  # behind the greeting
    while at + 2 <= len(data):
        more, long, command = data[at] & 1, data[at] & 2, data[at] & 4
        size = struct.unpack_from(">Q", data, at + 1)[0] if long else data[at + 1]
        at += 9 if long else 2
        frame, at = data[at:at + size], at + size
        if command or at > len(data):
            continue
        frames.append(frame)
        if not more:
            messages.append(frames)
            frames = []
    return messages
