"""A headless Chromium, told what to do over a pipe: the DevTools protocol, with nothing but the standard library."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), ""
)
MISSING = "no Chromium here (Debian: apt-get install chromium)"
PATIENCE_S = 60.0


class Page:
    """A page of the browser.

    `complaints` collects what its console is told, with errors of the network and of the page's policy; `requested` the
    addresses that were asked for since a file was opened.
    """

    def __init__(self, to: int, back: int) -> None:
        self._to, self._back, self._buffer, self._number = to, back, b"", 0
        self.complaints: list[str] = []
        self.requested: list[str] = []
        self._session = ""
        target = self._send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._send(f"{domain}.enable")

    def open(self, path: Path, fragment: str = "", *, width: int = 1400, dark: bool = False) -> None:
        """Load a file at a width in px, and wait until it is there."""
        self.look(width, dark)
        self._send("Page.navigate", url="about:blank")
        self.requested.clear()
        self._send("Page.navigate", url=path.as_uri() + fragment)
        until = time.monotonic() + PATIENCE_S
        while self.run("document.readyState + location.protocol") != "completefile:":
            assert time.monotonic() < until, f"{path} does not load"
            time.sleep(0.02)

    def look(self, width: int, dark: bool, height: int = 900) -> None:
        self._send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._send("Emulation.setEmulatedMedia", features=[scheme])

    def without_scripts(self) -> None:
        """Pages that are opened from now on run no scripts of their own."""
        self._send("Emulation.setScriptExecutionDisabled", value=True)

    def run(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        found = self._send("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def type(self, text: str) -> None:
        self._send("Input.insertText", text=text)

    def press(self, key: str) -> None:
        """A key by its name: "Tab", "ArrowRight", "Enter"."""
        code = {"Tab": 9, "Enter": 13, "ArrowRight": 39, "ArrowLeft": 37}[key]
        for kind in ("rawKeyDown", "keyUp"):
            self._send("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    def picture(self, place: str = "") -> bytes:
        """A PNG of the whole page, or of what a selector finds."""
        element = f"document.querySelector({json.dumps(place)})" if place else "document.documentElement"
        box = self.run(
            f"(() => {{ const b = {element}.getBoundingClientRect();"
            " return [b.left + scrollX, b.top + scrollY, b.width, b.height]; })()"
        )
        clip = dict(zip(("x", "y", "width", "height"), box, strict=True)) | {"scale": 1}
        found = self._send("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
        return base64.b64decode(found["data"])

    def close(self) -> None:
        """End the browser."""
        self._session = ""
        self._send("Browser.close")

    def _send(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result
            self._notice(answer.get("method", ""), answer.get("params", {}))

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            assert select.select([self._back], [], [], PATIENCE_S)[0], "the browser does not answer"
            more = os.read(self._back, 1 << 20)
            assert more, "the browser has ended"
            self._buffer += more
        line, _, self._buffer = self._buffer.partition(b"\0")
        found: dict[str, Any] = json.loads(line)
        return found

    def _notice(self, event: str, told: dict[str, Any]) -> None:
        if event == "Log.entryAdded":
            self.complaints.append(told["entry"]["text"])
        elif event == "Runtime.consoleAPICalled":
            self.complaints.append(str(told["args"]))
        elif event == "Runtime.exceptionThrown":
            self.complaints.append(str(told["exceptionDetails"]))
        elif event == "Page.javascriptDialogOpening":
            self.complaints.append(f"dialog: {told['message']}")
        elif event == "Network.requestWillBeSent":
            self.requested.append(told["request"]["url"])


@contextmanager
def browser(profile: Path) -> Iterator[Page]:
    """A page of a browser that ends with the block; `profile` is an empty folder for what it keeps."""
    there, to = os.pipe()
    back, here = os.pipe()
    program = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe",
               "--disable-dev-shm-usage", f"--user-data-dir={profile}", "--no-first-run"]  # fmt: skip

    def place_pipes() -> None:
        """Chromium reads commands from 3 and answers on 4."""
        spare_in, spare_out = os.dup(there), os.dup(here)
        os.dup2(spare_in, 3)
        os.dup2(spare_out, 4)

    child = subprocess.Popen(
        program, preexec_fn=place_pipes, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    os.close(there)
    os.close(here)
    try:
        page = Page(to, back)
        yield page
    finally:
        try:
            page.close()
        except (OSError, AssertionError):
            child.terminate()
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait(10)
        os.close(to)
        os.close(back)
