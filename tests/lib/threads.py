"""Stops one thread of another process while the others run on. Needs ptrace."""
import ctypes, os

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.ptrace.argtypes = [ctypes.c_ulong, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_void_p]
SEIZE, INTERRUPT, DETACH = 0x4206, 0x4207, 17


def compute_thread(pid):
    """The compute thread of a worker, by its name. The pool's threads, which came later, have the same name."""
    for thread in sorted(map(int, os.listdir(f"/proc/{pid}/task"))):
        with open(f"/proc/{pid}/task/{thread}/comm") as f:
            if f.read() == "compute\n":
                return thread
    raise LookupError(f"process {pid} has no compute thread")


class StoppedThread:
    def __init__(self, thread):
        self.thread = thread

    def __enter__(self):
        for request in (SEIZE, INTERRUPT):
            if LIBC.ptrace(request, self.thread, None, None) != 0:
                raise OSError(ctypes.get_errno(), "ptrace")
        os.waitpid(self.thread, 0x40000000)  # __WALL
        return self

    def __exit__(self, *_):
        LIBC.ptrace(DETACH, self.thread, None, None)
