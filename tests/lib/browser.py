"""A headless Chromium, told what to do over a pipe in its DevTools protocol: messages in JSON, each with a NUL behind it."""
import base64, json, os, subprocess, tempfile, threading, time

PROGRAM = "chromium"


class Browser:
    """One page. Without a sandbox of its own, which root may not have: what it opens is on this machine."""

    def __init__(self, url, size="1200,900", dark=False):
        self.profile = tempfile.TemporaryDirectory()
        self.number, self.answers, self.problems = 0, {}, []
        self.condition = threading.Condition()
        to_child, from_child = os.pipe(), os.pipe()

        def give():  # it reads 3 and writes 4
            a, b = os.dup(to_child[0]), os.dup(from_child[1])
            os.dup2(a, 3)
            os.dup2(b, 4)

        words = [PROGRAM, "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", f"--window-size={size}",
                 f"--user-data-dir={self.profile.name}"]
        words += ["--blink-settings=preferredColorScheme=0"] if dark else []
        self.process = subprocess.Popen([*words, "about:blank"], preexec_fn=give, close_fds=False, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL)
        os.close(to_child[0])
        os.close(from_child[1])
        self.to, self.of = to_child[1], from_child[0]
        threading.Thread(target=self.read, daemon=True).start()
        target = next(t for t in self.ask("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self.session = self.ask("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Runtime", "Log", "Page"):
            self.ask(domain + ".enable", session=self.session)
        self.ask("Page.navigate", session=self.session, url=url)
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(timeout=30)
        os.close(self.to)
        self.profile.cleanup()

    def read(self):
        rest = b""
        while True:
            data = os.read(self.of, 1 << 16)
            if not data:
                break
            rest += data
            while b"\0" in rest:
                one, rest = rest.split(b"\0", 1)
                message = json.loads(one)
                with self.condition:
                    if "id" in message:
                        self.answers[message["id"]] = message
                    elif message["method"] == "Runtime.exceptionThrown":
                        self.problems.append(message["params"]["exceptionDetails"])
                    elif message["method"] == "Log.entryAdded" and message["params"]["entry"]["level"] == "error":
                        self.problems.append(message["params"]["entry"])
                    self.condition.notify_all()
        os.close(self.of)

    def ask(self, method, session=None, **params):
        self.number += 1
        number = self.number
        message = dict(id=number, method=method, params=params, **({"sessionId": session} if session else {}))
        os.write(self.to, json.dumps(message).encode() + b"\0")
        with self.condition:
            if not self.condition.wait_for(lambda: number in self.answers, 60):
                raise TimeoutError(method)
            answer = self.answers.pop(number)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def value(self, expression):
        r = self.ask("Runtime.evaluate", session=self.session, expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in r:
            raise RuntimeError(f"{expression}: {r['exceptionDetails']}")
        return r["result"].get("value")

    def wait(self, expression, seconds=60):
        end = time.monotonic() + seconds
        while not self.value(expression):
            if time.monotonic() > end:
                raise TimeoutError(expression)
            time.sleep(0.05)

    def type(self, text):
        """Into what has the focus."""
        self.ask("Input.insertText", session=self.session, text=text)

    def press(self, key, code):
        for kind in ("keyDown", "keyUp"):
            self.ask("Input.dispatchKeyEvent", session=self.session, type=kind, key=key, code=key, windowsVirtualKeyCode=code,
                     **({"text": "\r"} if key == "Enter" and kind == "keyDown" else {}))

    def picture(self):
        return base64.b64decode(self.ask("Page.captureScreenshot", session=self.session, format="png")["data"])
