"""`flotilla chat` at a terminal and from a pipe, and `generate --chat`: what they say is what the API says of the same messages."""
import fcntl, json, os, pty, re, select, signal, socket, struct, sys, tempfile, termios, time, unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "lib"))
from cluster import MODEL, Cluster, program, run
from raw_http import post

FIGURES = re.compile(r"\[(\d+) tokens, first after \d+ ms, [\d.]+ tokens/s; (\d+) of (\d+) prompt tokens were cached(; [a-z ]+)?\]\r?\n")
PASTE, PASTED = "\033[200~", "\033[201~"
ANSWERS = "\033[?2004l"  # behind what was typed: the terminal need not mark pasted blocks any more
# The terminal is asked to mark pasted blocks; the prompt comes when it gives each key as it is pressed.
WAITS = re.escape("\033[?2004h") + "[^>.]*[>.] "


class Terminal:
    """A program at a terminal of its own. `text`: what it showed and nobody took yet."""

    def __init__(self, *words, **env):
        pid, self.fd = pty.fork()
        if pid == 0:
            os.environ.update(TERM="xterm", LC_ALL="C.UTF-8", **env)
            os.execv(program("flotilla"), ["flotilla", *words])
        self.pid, self.text = pid, ""
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 500, 0, 0))

    def read(self, seconds):
        """False: it ended."""
        if not select.select([self.fd], [], [], seconds)[0]:
            raise AssertionError(f"nothing more for {seconds} s behind {self.text!r}")
        try:
            data = os.read(self.fd, 65536)
        except OSError:  # nobody holds the other end any more
            return False
        self.text += data.decode(errors="replace")
        return bool(data)

    def until(self, pattern, seconds=240):
        """Takes what was shown up to the pattern's end; returns the match and what was before."""
        end = time.monotonic() + seconds
        while True:
            m = re.search(pattern, self.text)
            if time.monotonic() > end:
                raise AssertionError(f"not within {seconds} s: {self.text[-2000:]!r}")
            if m:
                before, self.text = self.text[:m.start()], self.text[m.end():]
                return m, before
            if not self.read(max(end - time.monotonic(), 0.1)):
                raise AssertionError(f"ended: {self.text!r}")

    def type(self, text):
        os.write(self.fd, text.encode())

    def ready(self):
        self.until(WAITS)

    def answer(self):
        """Of what was typed last: its text, and its figures."""
        self.until(re.escape(ANSWERS))
        m, text = self.until(FIGURES)
        self.ready()
        return text.replace("\r\n", "\n").removesuffix("\n"), m

    def say(self, text):
        self.type(text + "\r")
        return self.answer()

    def end(self):
        while self.read(240):
            pass
        status = os.waitpid(self.pid, 0)[1]
        os.close(self.fd)
        return status


class Chat(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.c = Cluster(workers=2, threads=1, kv_tokens=8192)

    @classmethod
    def tearDownClass(cls):
        cls.c.stop()

    def api(self, *messages, **kw):
        """What the cluster says to these messages, the user's and its own by turns, and its usage."""
        roles = ("user", "assistant")
        system = [{"role": "system", "content": kw.pop("system")}] if "system" in kw else []
        body = dict({"messages": system + [{"role": roles[i % 2], "content": m} for i, m in enumerate(messages)], "temperature": 0,
                     "max_tokens": 40}, **kw)
        r = post(self.c.http, "/v1/chat/completions", body).json()
        return r["choices"][0]["message"]["content"], r["usage"]

    def open(self, *words):
        t = Terminal("chat", "--cluster", self.c.address, "--temp", "0", *words)
        t.ready()
        return t

    def test_two_turns(self):
        """The second prompt begins with the first, which is found computed."""
        t = self.open("--tokens", "40")
        first, _ = t.say("What is the capital of France?")
        want, usage = self.api("What is the capital of France?")
        self.assertEqual(first, want)
        second, m = t.say("And of Italy?")
        want, after = self.api("What is the capital of France?", first, "And of Italy?")
        self.assertEqual((second, int(m[3])), (want, after["prompt_tokens"]))
        self.assertGreater(after["prompt_tokens"], usage["prompt_tokens"])
        self.assertGreaterEqual(int(m[2]), usage["prompt_tokens"] // 16 * 16)
        t.type("\x04")
        self.assertEqual(t.end(), 0)

    def test_interrupt(self):
        """^C ends the answer, on the cluster too; what it said stays part of the conversation. At the prompt ^C drops the line."""
        t = self.open()
        t.type("Write a very long story about a ship.\r")
        t.until(re.escape(ANSWERS))
        while len(t.text) < 40:
            t.read(240)
        t.type("\x03")
        m, text = t.until(FIGURES)
        t.ready()
        self.assertEqual(m[4], "; interrupted")
        self.c.wait(lambda s: s["requests"] == {"running": 0, "queued": 0}, 10)
        first = text.replace("^C", "").replace("\r\n", "\n").removesuffix("\n")
        whole, _ = self.api("Write a very long story about a ship.", max_tokens=int(m[1]) + 40)
        self.assertTrue(whole.startswith(first) and len(first) < len(whole), (first, whole))
        t.type("nonsense\x03")
        t.ready()
        t.type("What is 1+1?\r")
        t.until(re.escape(ANSWERS))
        m, second = t.until(FIGURES)
        prompt = post(self.c.http, "/tokenize", {"messages": [
            {"role": "user", "content": "Write a very long story about a ship."}, {"role": "assistant", "content": first},
            {"role": "user", "content": "What is 1+1?"}]}).json()
        self.assertEqual(int(m[3]), prompt["count"])
        t.ready()
        t.type("\x04")
        self.assertEqual(t.end(), 0)

    def test_interrupt_of_the_start(self):
        """Nobody has to wait for a cluster that is silent."""
        with socket.create_server(("127.0.0.1", 0)) as silent:
            t = Terminal("chat", "--cluster", "tcp://127.0.0.1:%d" % silent.getsockname()[1])
            peer, _ = silent.accept()
            t.type("\x03")
            self.assertEqual(t.end(), signal.SIGINT)
            peer.close()

    def test_lines_and_commands(self):
        t = self.open("--tokens", "8", "--system", "Be brief.")
        several = "One.\nTwo, ü.\nThree."
        want, _ = self.api(several, system="Be brief.", max_tokens=8)
        t.type("One.\\\r")
        t.ready()
        t.type("Two, ü.\\\r")
        t.ready()
        self.assertEqual(t.say("Three.")[0], want)
        t.type("/reset\r")
        t.ready()
        answer, m = t.say(PASTE + several.replace("\n", "\r") + "\r" + PASTED)
        self.assertEqual(answer, want)
        # The history has it as one message; editing changes it.
        t.type("/reset\r")
        t.ready()
        t.type("/system\r")
        t.ready()
        self.assertEqual(t.say("\033[A\033[A\033[A" + "\x7f!")[0], self.api(several[:-1] + "!", max_tokens=8)[0])
        t.type("/help\r")
        self.assertIn("/reset", t.until(WAITS)[1])
        t.type("/nonsense\r")
        self.assertIn("'/nonsense' is no command", t.until(WAITS)[1])
        t.type("/system Answer in French.\r")
        t.ready()
        t.type("/reset\r")
        t.ready()
        self.assertEqual(t.say("Hello")[0], self.api("Hello", system="Answer in French.", max_tokens=8)[0])
        t.type("\x04")
        self.assertEqual(t.end(), 0)

    def test_pipe(self):
        """Without a terminal: a line is a message, stdout has the answers alone, and failures are told by the status."""
        first, _ = self.api("Hello")
        second, usage = self.api("Hello", first, "And then?\nSay it.")
        words = ["chat", "--cluster", self.c.address, "--temp", "0", "--tokens", "40"]
        r = run(*words, input="Hello\n\nAnd then?\\\nSay it.".encode())
        self.assertEqual((r.returncode, r.stdout.decode()), (0, f"{first}\n{second}\n"), r.stderr)
        self.assertEqual(int(FIGURES.findall(r.stderr.decode())[1][2]), usage["prompt_tokens"])
        for text, why in ((b"Hello\n" + b"7" * 9000 + b"\n", "fit the context"), (b"\xff\n", "not UTF-8"), (b"a\0b\n", "or has a NUL"),
                          (b"/nonsense\n", "no command"), (b"x" * (5 << 20), "bytes")):
            r = run(*words, input=text)
            self.assertEqual(r.returncode, 1, text[:20])
            self.assertIn(why, r.stderr.decode())
        r = run("chat", "--temp", "0")
        self.assertEqual((r.returncode, b"--cluster" in r.stderr), (2, True))

    def test_the_first_key(self):
        """Who sees the prompt can type: the terminal hands over each key by then, so that ^D ends the program and is not lost."""
        held = {"LD_PRELOAD": os.path.join(os.path.dirname(program("")), "..", "lib", "libfirst_flush.so")}
        for env in ({}, held):
            t = Terminal("chat", "--cluster", self.c.address, **env)
            t.until(re.escape("\033[?2004h"))
            if env:  # the program stands behind what was read just now
                self.assertTrue(os.WIFSTOPPED(os.waitpid(t.pid, os.WUNTRACED)[1]))
            self.assertFalse(termios.tcgetattr(t.fd)[3] & termios.ICANON)
            t.type("\x04")
            if env:
                os.kill(t.pid, signal.SIGCONT)
            self.assertEqual(t.end(), 0)

    def test_a_signal_breaks_no_output_off(self):
        """A terminal that takes nothing more holds the program in the middle of a write; its size changes meanwhile."""
        t = Terminal("chat", "--cluster", self.c.address)
        t.ready()
        os.set_blocking(t.fd, False)
        typed, since = 0, time.monotonic()
        while time.monotonic() - since < 1:  # it reads no key any more
            try:
                typed += os.write(t.fd, b"x" * 100)
                since = time.monotonic()
            except BlockingIOError:
                time.sleep(0.01)
        os.set_blocking(t.fd, True)
        os.kill(t.pid, signal.SIGWINCH)
        shown = 0
        while shown < typed:
            t.read(60)
            shown, t.text = shown + t.text.count("x"), ""
        t.type("\x15\x04")  # the line is given up
        self.assertEqual(t.end(), 0)

    def test_engine_alone(self):
        """The same conversation in this process; what was computed is not computed again, and ^C ends an answer."""
        words = ["chat", "--model", MODEL, "--temp", "0"]
        first, one = self.api("Hello")
        second, two = self.api("Hello", first, "And then?")
        r = run(*words, "--tokens", "40", input=b"Hello\nAnd then?\n/reset\nHello\n")
        self.assertEqual((r.returncode, r.stdout.decode()), (0, f"{first}\n{second}\n{first}\n"), r.stderr)
        figures = [tuple(map(int, x[:3])) for x in FIGURES.findall(r.stderr.decode())]
        self.assertEqual([x[2] for x in figures], [one["prompt_tokens"], two["prompt_tokens"], one["prompt_tokens"]])
        self.assertEqual((figures[0][1], figures[2][1]), (0, one["prompt_tokens"] - 1))
        self.assertGreaterEqual(figures[1][1], one["prompt_tokens"])
        t = Terminal(*words)
        t.ready()
        t.type("Write a very long story about a ship.\r")
        t.until(re.escape(ANSWERS))
        while len(t.text) < 40:
            t.read(240)
        t.type("\x03")
        self.assertEqual(t.until(FIGURES)[0][4], "; interrupted")
        t.ready()
        t.type("\x04")
        self.assertEqual(t.end(), 0)
        for more, why in ((["--cluster", self.c.address], "or --model"), (["--key", "x"], "--key")):
            r = run(*words, *more)
            self.assertEqual((r.returncode, why in r.stderr.decode()), (2, True), r.stderr)
        r = run(*words, "--ctx", "64", input=b"7" * 400)
        self.assertEqual((r.returncode, b"fit the context of 64" in r.stderr), (1, True), r.stderr)

    def test_generate(self):
        """One message through the model's template, by the cluster and by the engine alone."""
        want, usage = self.api("Hello", system="Be brief.", max_tokens=12)
        with tempfile.NamedTemporaryFile("w") as f:
            f.write("Hello")
            f.flush()
            for where in (["--cluster", self.c.address], ["--model", MODEL]):
                for given, stdin in ((["--prompt", "Hello"], b""), (["--file", f.name], b""), (["--file", "-"], b"Hello"),
                                     (["--prompt", "-"], b"Hello")):
                    r = run("generate", *where, "--chat", "--system", "Be brief.", *given, "--tokens", "12", "--json", input=stdin)
                    self.assertEqual(r.returncode, 0, r.stderr)
                    got = json.loads(r.stdout)
                    self.assertEqual((got["text"], len(got["prompt_tokens"])), (want, usage["prompt_tokens"]))
        # The same without a template's help: the prompt alone.
        r = run("generate", "--cluster", self.c.address, "--prompt", "Hello", "--json", "--tokens", "1")
        self.assertEqual(len(json.loads(r.stdout)["prompt_tokens"]), 1)
        for words, why in ((["--system", "x", "--prompt", "y"], "--chat"), (["--chat", "--prompt-tokens", "1"], "--prompt"),
                           (["--chat", "--special", "--prompt", "x"], "--special")):
            r = run("generate", "--cluster", self.c.address, *words)
            self.assertEqual((r.returncode, why in r.stderr.decode()), (2, True), words)
        r = run("generate", "--cluster", self.c.address, "--chat", "--file", "-", input=b"\xff")
        self.assertEqual((r.returncode, b"UTF-8" in r.stderr), (2, True))


if __name__ == "__main__":
    unittest.main(verbosity=2)
