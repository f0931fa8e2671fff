"""A headless Chromium that is told what to do over a pipe, without a test tool: open a page, ask it, print it."""

import base64
import json
import os
import select
import shutil
import subprocess
import sys

import patience
from patience import PATIENCE_S

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
_FLAGS = (
    "--headless=new",
    "--no-sandbox",  # tests may run as root
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--remote-debugging-pipe",
)
# Chromium reads commands from descriptor 3 and writes answers to 4.
_LAUNCH = """
import fcntl, os, sys
asked, answered = (fcntl.fcntl(int(given), fcntl.F_DUPFD, 10) for given in sys.argv[1:3])
os.dup2(asked, 3), os.dup2(answered, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Browser:
    """One Chromium with a profile folder of its own; `with Browser(folder) as browser`."""

    def __init__(self, folder):
        self._folder = folder

    def __enter__(self):
        asked, self._asks = os.pipe()
        self._answers, answered = os.pipe()
        command = [sys.executable, "-c", _LAUNCH, str(asked), str(answered), CHROMIUM, *_FLAGS]
        with open(self._folder / "chromium.log", "wb") as log:
            self._process = subprocess.Popen(
                [*command, f"--user-data-dir={self._folder / 'chromium'}"],
                pass_fds=(asked, answered),
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )
        os.close(asked), os.close(answered)
        self._read = b""
        self._number = 0
        self._events = []
        self._session = None
        try:
            target = self.call("Target.createTarget", url="about:blank")["targetId"]
            self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network"):
                self.call(f"{domain}.enable")
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_):
        try:
            self._session = None
            self.call("Browser.close")
            self._process.wait(timeout=PATIENCE_S)
        finally:
            self._end()

    def _end(self):
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        os.close(self._asks), os.close(self._answers)

    def call(self, method, **parameters):
        """The answer to one command; what happens meanwhile is kept."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._asks, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self._events.append(answer)

    def open(self, path, *, width=1280, height=900, dark=False):
        """Open a file and wait until the page says how many plots it has drawn."""
        self._events.clear()
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.scheme(dark=dark)
        self.call("Page.navigate", url=path.as_uri())
        self.until("document.documentElement?.dataset.drawn !== undefined")

    def scheme(self, *, dark):
        """What the reader's system prefers."""
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=features)

    def until(self, condition):
        """Wait until a JavaScript expression is true."""
        patience.until(lambda: self.ask(condition), condition)

    def ask(self, expression, *, gesture=False):
        """The value of a JavaScript expression; promises are awaited. `gesture`: as if the reader had clicked."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True, userGesture=gesture
        )
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def complaints(self):
        """Errors and warnings that the page logged, and exceptions that nobody caught."""
        found = []
        for event in self._events:
            method, parameters = event.get("method"), event.get("params", {})
            if method == "Runtime.exceptionThrown":
                found.append(str(parameters["exceptionDetails"]))
            elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
                found.append(str(parameters["args"]))
            elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
                found.append(parameters["entry"]["text"])
        return found

    def requested(self):
        """Addresses of all that the page asked for."""
        events = [event for event in self._events if event.get("method") == "Network.requestWillBeSent"]
        return [event["params"]["request"]["url"] for event in events]

    def printed(self, path):
        """The page as a PDF on A4."""
        printed = self.call("Page.printToPDF", printBackground=True, paperWidth=8.27, paperHeight=11.69)
        path.write_bytes(base64.b64decode(printed["data"]))

    def _next(self):
        """The next message; Chromium ends each with a zero byte."""
        while b"\0" not in self._read:
            ready, _, _ = select.select([self._answers], [], [], PATIENCE_S)
            if not ready:
                raise TimeoutError(f"Chromium said nothing for {PATIENCE_S:g} s; its log is in {self._folder}")
            part = os.read(self._answers, 1 << 20)
            if not part:
                raise EOFError(f"Chromium ended; its log is in {self._folder}")
            self._read += part
        message, self._read = self._read.split(b"\0", 1)
        return json.loads(message)
