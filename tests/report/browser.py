"""Chromium without a window, spoken to through a pipe in its DevTools protocol: no driver, no port, no package."""

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def find() -> str | None:
    """Return the path of a browser: $CHROMIUM, or the first known name on the path. An empty $CHROMIUM means none."""
    if "CHROMIUM" in os.environ:
        return os.environ["CHROMIUM"] or None
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One page in a fresh profile. Every event is kept in ``events``."""

    def __init__(self, program: str, width: int = 1200, height: int = 900) -> None:
        self.profile = tempfile.mkdtemp(prefix="steadygrad-browser-")
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()

        def connect() -> None:  # the protocol wants to read from 3 and to write to 4
            spare = os.dup(theirs_out)
            os.dup2(theirs_in, 3)
            os.dup2(spare, 4)

        self.process = subprocess.Popen(
            [
                program,
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--disable-background-networking",
                "--no-first-run",
                "--hide-scrollbars",
                "--remote-debugging-pipe",
                f"--user-data-dir={self.profile}",
                f"--window-size={width},{height}",
                "about:blank",
            ],
            close_fds=False,
            preexec_fn=connect,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self.reader, self.writer = os.fdopen(ours_in, "rb", buffering=0), os.fdopen(ours_out, "wb", buffering=0)
        self.buffer, self.count, self.session = b"", 0, None
        self.events: list[dict[str, Any]] = []
        target = next(t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page")
        found = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self.session = found["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.wait()
        self.reader.close()
        self.writer.close()
        shutil.rmtree(self.profile, ignore_errors=True)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self.count += 1
        message = {"id": self.count, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        self.writer.write(json.dumps(message).encode() + b"\0")
        while (answer := self.receive()).get("id") != self.count:
            self.events.append(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def receive(self) -> dict[str, Any]:
        while b"\0" not in self.buffer:
            part = self.reader.read(1 << 16)
            if not part:
                raise RuntimeError("the browser has gone")
            self.buffer += part
        message, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(message)

    def open(self, page: Path) -> None:
        self.call("Page.navigate", url=page.resolve().as_uri())
        self.until(lambda: self.js("document.readyState") == "complete")

    def js(self, expression: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def until(self, condition: Callable[[], Any], seconds: float = 20.0) -> None:
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                raise TimeoutError("the page did not become what it should")
            time.sleep(0.02)

    def mouse(self, kind: str, x: float, y: float, button: str = "none") -> None:
        pressed = {"buttons": 1} if button == "left" else {}
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button=button, clickCount=1, **pressed)

    def click(self, selector: str) -> None:
        x, y = self.middle(selector)
        self.mouse("mousePressed", x, y, "left")
        self.mouse("mouseReleased", x, y, "left")

    def middle(self, selector: str) -> tuple[float, float]:
        """Of an element, scrolled into view."""
        box = self.js(
            f"(() => {{ const node = document.querySelector({json.dumps(selector)});"
            "node.scrollIntoView({ block: 'center', behavior: 'instant' });"
            "const box = node.getBoundingClientRect();"
            "return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        return box[0], box[1]

    def key(self, name: str) -> None:
        text = {"text": name} if len(name) == 1 else {}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=name, **text)

    def errors(self) -> list[str]:
        """What the console had to complain about."""
        found = []
        for event in self.events:
            match event.get("method"), event.get("params", {}):
                case "Runtime.exceptionThrown", parameters:
                    found.append(str(parameters["exceptionDetails"]))
                case "Log.entryAdded", {"entry": {"level": "error" | "warning", "text": text}}:
                    found.append(text)
                case "Runtime.consoleAPICalled", {"type": "error" | "warning", "args": arguments}:
                    found.append(str(arguments))
        return found

    def requests(self) -> list[str]:
        """Addresses that were asked for."""
        sent = [event["params"] for event in self.events if event.get("method") == "Network.requestWillBeSent"]
        return [parameters["request"]["url"] for parameters in sent]
