"""Control groups with limits of their own, for processes of a test. Needs root, and a hierarchy that is writable."""
import os, time, uuid

V1 = {"memory": "/sys/fs/cgroup/memory", "cpu": "/sys/fs/cgroup/cpu"}


def _own_v1(controller):
    """The folder of this process's own group, in which another may be made."""
    with open("/proc/self/cgroup") as f:
        for line in f:
            _, names, path = line.rstrip("\n").split(":", 2)
            if controller in names.split(",") and os.path.isdir(V1[controller] + path):
                return V1[controller] + path
    return None


class Group:
    """A group for memory (bytes=) or processor time (processors=). `prefix` starts a command in it. OSError: it cannot be
    made here."""

    def __init__(self, bytes=None, processors=None):
        controller = "memory" if bytes else "cpu"
        own = _own_v1(controller)
        self.v2 = own is None
        name = f"flotilla-{uuid.uuid4().hex[:12]}"
        if self.v2:
            with open("/sys/fs/cgroup/cgroup.subtree_control") as f:
                if controller not in f.read().split():
                    raise OSError(f"no {controller} controller below /sys/fs/cgroup")
        self.path = os.path.join(own or "/sys/fs/cgroup", name)
        os.mkdir(self.path)
        if bytes:
            self._put("memory.max" if self.v2 else "memory.limit_in_bytes", bytes)
        elif self.v2:
            self._put("cpu.max", f"{int(processors * 100000)} 100000")
        else:
            self._put("cpu.cfs_quota_us", int(processors * 100000))
        self.prefix = ["sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', self.path]

    def _put(self, name, value):
        with open(os.path.join(self.path, name), "w") as f:
            f.write(str(value))

    def _get(self, name):
        with open(os.path.join(self.path, name)) as f:
            return f.read()

    def kills(self):
        """Processes that the kernel killed because of the limit."""
        text = self._get("memory.events" if self.v2 else "memory.oom_control")
        return int(next(l.split()[1] for l in text.splitlines() if l.startswith("oom_kill ")))

    def used(self):
        """Bytes in use, without cached files."""
        stat = dict(l.split() for l in self._get("memory.stat").splitlines())
        total = int(self._get("memory.current" if self.v2 else "memory.usage_in_bytes"))
        t = "" if self.v2 else "total_"
        return total - int(stat[t + "inactive_file"]) - int(stat[t + "active_file"])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for _ in range(100):  # a group that has just been left may be busy
            try:
                return os.rmdir(self.path)
            except OSError:
                time.sleep(0.05)
        os.rmdir(self.path)
