"""A headless Chromium driven through a pipe: pages of any width, light and dark, real clicks and keys, screenshots.

    with Browser() as browser:
        page = browser.page(url, width=390)
        page.run("return document.title")         the value that a function with this body returns; it may await
        page.key("Enter")
        page.png()                                what is in sight

The messages are those of the DevTools protocol, JSON that ends with a zero byte. No package is needed.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import tempfile
import time
from types import TracebackType
from typing import Any

import numpy as np

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
KEYS = {"Enter": 13, "Escape": 27, "Tab": 9, "ArrowDown": 40, "ArrowUp": 38, "ArrowLeft": 37, "ArrowRight": 39}
PATIENCE = 60.0  # seconds for one answer: a busy machine starts a browser slowly


class Refused(AssertionError):
    """The browser answered a command with an error."""

    @property
    def left(self) -> bool:
        """Whether the page was left while the command ran: a link that was just pressed leads to another."""
        return any(said in str(self) for said in ("navigated", "context was destroyed", "Cannot find"))


class Browser:
    """One process; each page has an origin-free context of its own."""

    def __init__(self) -> None:
        self.home = tempfile.TemporaryDirectory(prefix="ckptconv-chromium-", ignore_cleanup_errors=True)
        ours, theirs = os.pipe(), os.pipe()  # theirs: what the browser writes
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in (ours[0], theirs[1])]  # away from 3 and 4
        command = [
            str(CHROMIUM), "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
            "--remote-debugging-pipe", "--font-render-hinting=none", f"--user-data-dir={self.home.name}", "about:blank",
        ]  # fmt: skip
        silent = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_WRONLY, 0) for fd in (1, 2)]
        pipes = [(os.POSIX_SPAWN_DUP2, high[0], 3), (os.POSIX_SPAWN_DUP2, high[1], 4)]
        self.process = os.posix_spawn(
            command[0], command, os.environ | {"HOME": self.home.name}, file_actions=[*silent, *pipes]
        )
        for fd in high:
            os.close(fd)
        os.close(ours[0])
        os.close(theirs[1])
        self.out, self.back, self.last, self.read = ours[1], theirs[0], 0, b""
        self.events: list[dict[str, Any]] = []

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, at: TracebackType | None) -> None:
        os.kill(self.process, signal.SIGKILL)
        os.waitpid(self.process, 0)
        os.close(self.out)
        os.close(self.back)
        self.home.cleanup()

    def ask(self, method: str, session: str = "", **params: Any) -> dict[str, Any]:
        """Send a command and wait for its answer; events that arrive meanwhile are kept."""
        self.last += 1
        message = {"id": self.last, "method": method, "params": params} | ({"sessionId": session} if session else {})
        os.write(self.out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self.last:
                if "error" in answer:
                    raise Refused(method, answer["error"])
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def _next(self) -> dict[str, Any]:
        end = time.monotonic() + PATIENCE
        while b"\0" not in self.read:
            ready, _, _ = select.select([self.back], [], [], max(0.0, end - time.monotonic()))
            chunk = os.read(self.back, 1 << 20) if ready else b""
            assert chunk, "the browser does not answer"
            self.read += chunk
        message, _, self.read = self.read.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer

    def page(self, url: str, width: int = 1280, height: int = 900, *, dark: bool = False, until: str = "") -> Page:
        """Open a page and wait until it is drawn: data-ready of the document, or the expression `until`."""
        context = self.ask("Target.createBrowserContext")["browserContextId"]
        target = self.ask("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session, context)
        page.resize(width, height)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        page.ask("Emulation.setEmulatedMedia", features=scheme)
        for domain in ("Runtime", "Log", "Network", "Page"):
            page.ask(f"{domain}.enable")
        page.ask("Page.navigate", url=url)
        page.wait(until or "document.documentElement?.dataset.ready === 'yes'")
        return page


class Page:
    """A tab."""

    def __init__(self, browser: Browser, session: str, context: str) -> None:
        self.browser, self.session, self.context = browser, session, context

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        return self.browser.ask(method, self.session, **params)

    def resize(self, width: int, height: int) -> None:
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def run(self, body: str) -> Any:
        """What a function with this body returns; an exception fails the test."""
        code = f"(async () => {{ {body} }})()"
        got = self.ask("Runtime.evaluate", expression=code, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in got, got["exceptionDetails"]
        return got["result"].get("value")

    def holds(self, expression: str) -> bool:
        """Whether an expression is true; it is not while the page that was asked makes way for the next."""
        try:
            return bool(self.run(f"return Boolean({expression})"))
        except Refused as e:
            if not e.left:
                raise
            return False

    def wait(self, expression: str) -> None:
        """Wait until an expression is true, on this page or on the one to which it is leading."""
        end = time.monotonic() + PATIENCE
        while not self.holds(expression):
            assert not self.complaints()
            assert time.monotonic() < end, f"never true: {expression}"
            time.sleep(0.03)

    def key(self, key: str) -> None:
        text = "\r" if key == "Enter" else key if len(key) == 1 else ""
        code = KEYS.get(key, ord(key.upper()) if len(key) == 1 else 0)
        for kind in ("keyDown", "keyUp"):
            self.ask("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code,
                     **({"text": text} if text and kind == "keyDown" else {}))  # fmt: skip

    def click(self, selector: str) -> None:
        """Press the middle of an element that is brought into sight."""
        x, y = self.run(
            f"const node = document.querySelector({json.dumps(selector)}); node.scrollIntoView({{block: 'center'}});"
            "const box = node.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2];"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def png(self, *, whole: bool = False) -> bytes:
        """What is in sight, or the whole page."""
        got = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        return base64.b64decode(got["data"])

    def complaints(self) -> list[str]:
        """Errors that scripts and the content security policy have reported so far."""
        found = []
        for event in self._events():
            if event["method"] == "Runtime.exceptionThrown":
                found.append(str(event["params"]["exceptionDetails"]))
            elif event["method"] == "Log.entryAdded" and event["params"]["entry"]["level"] == "error":
                found.append(event["params"]["entry"]["text"])
        return found

    def _events(self) -> list[dict[str, Any]]:
        return [e for e in self.browser.events if e.get("sessionId") == self.session]

    def requests(self) -> list[str]:
        """The addresses that were asked for so far."""
        sent = (e["params"] for e in self._events() if e["method"] == "Network.requestWillBeSent")
        return [p["request"]["url"] for p in sent]


# --- pixels -----------------------------------------------------------------------------------------------------


def cells(browser: Browser, png: bytes, side: int = 8) -> np.ndarray:
    """The mean colours of the cells of a picture, rows x columns x 3; the browser decodes it."""
    page = browser.page("about:blank", until="document.body")
    found = page.run(f"""
        const got = await fetch("data:image/png;base64,{base64.b64encode(png).decode()}");
        const image = await createImageBitmap(await got.blob());
        const canvas = new OffscreenCanvas(Math.floor(image.width / {side}), Math.floor(image.height / {side}));
        const pen = canvas.getContext("2d");
        pen.imageSmoothingQuality = "high";
        pen.drawImage(image, 0, 0, canvas.width, canvas.height);
        const {{ data }} = pen.getImageData(0, 0, canvas.width, canvas.height);
        return [canvas.height, canvas.width, Array.from(data)];
    """)
    high, wide, data = found
    return np.array(data, np.uint8).reshape(high, wide, 4)[:, :, :3]


def unlike(a: np.ndarray, b: np.ndarray) -> float:
    """The share of cells whose colours differ visibly: fonts are smoothed differently on other machines."""
    if a.shape != b.shape:
        return 1.0
    return float((np.abs(a.astype(np.int16) - b).max(axis=2) > 40).mean())
