"""A real Chromium for the tests of the console, driven by Playwright, and axe-core's opinion of a page."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

REPOSITORY: Final = Path(__file__).parents[2]
READY: Final = REPOSITORY / ".cache" / "chromium" / "READY"
TIMEOUT_MS: Final = 20_000
ARGUMENTS: Final = (
    "--no-sandbox",  # as root, Chromium starts only without
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-quic",
)
DESK: Final = {"width": 1280, "height": 900}
PHONE: Final = {"width": 390, "height": 800}
SERIOUS: Final = frozenset({"serious", "critical"})


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser; one for a file of tests."""
    subprocess.run([REPOSITORY / "scripts" / "install-chromium.sh"], check=True, capture_output=True)
    program = READY.read_text().splitlines()[0]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(ARGUMENTS))
        try:
            yield browser
        finally:
            browser.close()


class Window:
    """A page, and everything that went wrong in it: errors of scripts, dialogs that no test expects."""

    def __init__(self, context: BrowserContext) -> None:
        context.set_default_timeout(TIMEOUT_MS)
        self.context = context
        self.page: Page = context.new_page()
        self.faults: list[str] = []
        self.dialogs: list[str] = []
        self.page.on("pageerror", lambda error: self.faults.append(f"script: {error}"))
        self.page.on("console", self._hear)
        self.page.on("dialog", self._answer)

    def _hear(self, message: Any) -> None:
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.faults.append(f"console: {message.text}")

    def _answer(self, dialog: Any) -> None:
        self.dialogs.append(dialog.message)
        dialog.accept()

    def serious_faults(self) -> list[str]:
        """What axe-core calls serious or critical in the page as it is now."""
        found = Axe().run(self.page).response["violations"]
        return [
            f"{each['id']}: {each['help']}: {each['nodes'][0]['html'][:200]}"
            for each in found
            if each["impact"] in SERIOUS
        ]

    def is_wider_than_its_window(self) -> bool:
        """Whether a person has to scroll the whole page sideways."""
        width: int = self.page.evaluate("document.documentElement.scrollWidth")
        size = self.page.viewport_size
        assert size is not None
        return width > size["width"]


@contextmanager
def window(
    browser: Browser, *, is_phone: bool = False, is_dark: bool = False, **more: Any
) -> Iterator[Window]:
    """A window with cookies of its own."""
    context = browser.new_context(
        viewport=PHONE if is_phone else DESK,  # type: ignore[arg-type]
        color_scheme="dark" if is_dark else "light",
        has_touch=is_phone,
        **more,
    )
    try:
        yield Window(context)
    finally:
        context.close()
