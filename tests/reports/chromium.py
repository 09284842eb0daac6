"""A headless Chromium driven over its own protocol through two pipes: no package, no port, no network."""

import json
import os
import select
import shutil
import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
)
LAUNCH = """
import fcntl, os, sys
commands, answers = (fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3])
os.dup2(commands, 3)
os.dup2(answers, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""  # the browser reads commands from descriptor 3 and answers on 4
PATIENCE_SECONDS = 60.0
KEYS = {"Tab": 9, "Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}


@cache
def browser() -> str | None:
    """The program, where one is installed that starts: a name may stand for a note on how to install it."""
    for program in filter(None, map(shutil.which, NAMES)):
        if subprocess.run([program, "--version"], capture_output=True, check=False).returncode == 0:
            return program
    return None


class Chromium:
    """One page, at `page` once somebody has set it. `complaints` has every console message, every exception, and
    every request that failed or left for a network."""

    page: Path

    def __init__(self, profile: Path) -> None:
        program = browser()
        assert program is not None
        read_commands, self._commands = os.pipe()
        self._answers, write_answers = os.pipe()
        user = f"--user-data-dir={profile}"
        launch = [sys.executable, "-c", LAUNCH, str(read_commands), str(write_answers)]
        self._process = subprocess.Popen(
            [*launch, program, *FLAGS, user, "about:blank"],
            pass_fds=(read_commands, write_answers),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read_commands)
        os.close(write_answers)
        self._rest, self._number, self._session = b"", 0, ""
        self._events: list[dict[str, Any]] = []
        self.complaints: list[str] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._commands)  # it ends when its pipe does
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._answers)

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """A command and its result.

        Raises:
            RuntimeError: the browser refused it.
        """
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while (answer := self._receive()).get("id") != self._number:
            self._note(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        result: dict[str, Any] = answer["result"]
        return result

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            if not select.select([self._answers], [], [], PATIENCE_SECONDS)[0]:
                raise RuntimeError("the browser does not answer")
            piece = os.read(self._answers, 1 << 20)
            if not piece:
                raise RuntimeError("the browser has ended")
            self._rest += piece
        text, self._rest = self._rest.split(b"\0", 1)
        answer: dict[str, Any] = json.loads(text)
        return answer

    def _note(self, event: dict[str, Any]) -> None:
        method, given = event.get("method", ""), event.get("params", {})
        self._events.append(event)
        if method == "Runtime.exceptionThrown":
            self.complaints.append(f"exception: {given['exceptionDetails']}")
        elif method == "Runtime.consoleAPICalled":
            self.complaints.append(f"console.{given['type']}: {given['args']}")
        elif method == "Log.entryAdded":
            self.complaints.append(f"log: {given['entry']}")
        elif method == "Network.loadingFailed":
            self.complaints.append(f"failed: {given}")
        elif method == "Network.requestWillBeSent" and not given["request"]["url"].startswith(("file:", "data:")):
            self.complaints.append(f"network: {given['request']['url']}")

    def open(self, path: Path) -> None:
        """Show a file and wait until it is loaded."""
        self._events.clear()
        self.send("Page.navigate", url=path.resolve().as_uri())
        begun = time.monotonic()
        while not any(event.get("method") == "Page.loadEventFired" for event in self._events):
            assert time.monotonic() - begun < PATIENCE_SECONDS, "the page does not load"
            self._note(self._receive())

    def evaluate(self, expression: str) -> Any:
        """The value of an expression in the page.

        Raises:
            RuntimeError: it throws.
        """
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(str(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        """Press and release a key."""
        text = {"text": "\r"} if key == "Enter" else {}
        code: dict[str, Any] = {"key": key, "code": key, "windowsVirtualKeyCode": KEYS[key]}
        self.send("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", **code, **text)
        self.send("Input.dispatchKeyEvent", type="keyUp", **code)

    def click(self, selector: str) -> None:
        """Click the middle of the first element that a selector finds, after scrolling it into view."""
        box = self.evaluate(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            "e.scrollIntoView({block: 'center', inline: 'center', behavior: 'instant'});"
            "const r = e.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )
        place = {"x": box[0], "y": box[1], "button": "left", "clickCount": 1}
        self.send("Input.dispatchMouseEvent", type="mousePressed", **place)
        self.send("Input.dispatchMouseEvent", type="mouseReleased", **place)

    def show_as(self, width: int, height: int, *, dark: bool = False) -> None:
        """Set the size of the window in CSS pixels and the colour scheme; nothing scrolls smoothly."""
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        wishes = {"prefers-color-scheme": "dark" if dark else "light", "prefers-reduced-motion": "reduce"}
        features = [{"name": name, "value": value} for name, value in wishes.items()]
        self.send("Emulation.setEmulatedMedia", media="screen", features=features)
