"""A headless Chromium driven over its DevTools pipe, with nothing but the standard library."""

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SECONDS = 60  # to wait for an answer
# Milliseconds from the start of navigation until a report's answers can be searched, once they can.
USABLE = """new Promise((done) => new PerformanceObserver((list) => done(list.getEntries()[0].startTime))
  .observe({ type: "mark", buffered: true }))"""


class Browser:
    """One page of a browser without network. A context manager; raises RuntimeError when a script throws."""

    def __init__(self):
        assert CHROMIUM is not None
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        (commands, self.write), (self.read, answers) = os.pipe(), os.pipe()
        far = [fcntl.fcntl(end, fcntl.F_DUPFD, 100) for end in (commands, answers)]  # clear of 3 and 4
        flags = ["headless=new", "remote-debugging-pipe", f"user-data-dir={self.profile.name}", "no-sandbox"]
        flags += ["no-first-run", "disable-gpu", "disable-dev-shm-usage", "hide-scrollbars"]
        self.process = subprocess.Popen(
            [CHROMIUM, *(f"--{flag}" for flag in flags)],
            pass_fds=(3, 4),
            preexec_fn=lambda: [os.dup2(end, number) for end, number in zip(far, (3, 4), strict=True)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for end in (commands, answers, *far):
            os.close(end)
        self.buffer, self.count, self.session = b"", 0, None
        self.complaints: list[str] = []  # of the page, in the browser's log
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.call("Page.enable")
        self.call("Network.enable")
        self.call("Network.emulateNetworkConditions", offline=True, latency=0, downloadThroughput=0, uploadThroughput=0)
        self.call("Log.enable")
        self.look()

    def look(
        self, *, width: int = 1280, height: int = 900, dark: bool = False, still: bool = False, scripts: bool = True
    ) -> None:
        """How the reader has set up the browser; ``still``: with reduced motion."""
        phone = width < 600
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        media = {"color-scheme": "dark" if dark else "light", "reduced-motion": "reduce" if still else "no-preference"}
        features = [{"name": f"prefers-{name}", "value": value} for name, value in media.items()]
        self.call("Emulation.setEmulatedMedia", features=features)
        self.call("Emulation.setScriptExecutionDisabled", value=not scripts)

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait()
        os.close(self.write)
        os.close(self.read)
        self.profile.cleanup()

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One DevTools command and its result."""
        self.count += 1
        message = {"id": self.count, "method": method, "params": parameters}
        if self.session is not None:
            message["sessionId"] = self.session
        os.write(self.write, json.dumps(message).encode() + b"\0")
        answer = self._wait(lambda message: message.get("id") == self.count)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def open(self, path: Path) -> None:
        """Go to a file and wait until it is loaded."""
        self.call("Page.navigate", url=path.absolute().as_uri())
        self._wait(lambda message: message.get("method") == "Page.loadEventFired")

    def run(self, script: str) -> Any:
        """The value of an expression, or of the promise that it gives."""
        result = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{script}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def press(self, key: str, code: int) -> None:
        """A key goes down and up; ``code`` is its Windows virtual key code."""
        text = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
        known = {"key": key, "windowsVirtualKeyCode": code, "text": text}
        for kind in ("keyDown" if text else "rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, **(known if kind == "keyDown" else {**known, "text": ""}))

    def screenshot(self, path: Path, whole: bool = False) -> None:
        result = self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(result["data"]))

    def _wait(self, wanted: Any) -> dict[str, Any]:
        end = time.monotonic() + SECONDS
        while True:
            while b"\0" in self.buffer:
                message, self.buffer = self.buffer.split(b"\0", 1)
                found = json.loads(message)
                if found.get("method") == "Log.entryAdded":
                    self.complaints.append(found["params"]["entry"]["text"])
                if wanted(found):
                    return found
            if not select.select([self.read], [], [], max(0, end - time.monotonic()))[0]:
                raise TimeoutError(f"Chromium says nothing for {SECONDS} s")
            more = os.read(self.read, 1 << 20)
            if not more:
                raise RuntimeError("Chromium has ended")
            self.buffer += more
