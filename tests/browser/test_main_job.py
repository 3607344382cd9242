"""The whole job by clicking: build, start, tune, load-test, tune again, load-test, compare, try it; then a study: plan,
watch, its worker killed, resume, compare, apply the winner."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tritune.plan import JobKind, JobState, TrialState
from tritune.settings import Settings
from tritune.store import Store

pytestmark = [pytest.mark.browser, pytest.mark.integration]

WAIT_MS = 60_000
PAGES = ("", "model", "server", "tune", "load_test", "sweep", "compare", "history", "try_it", "doctor")


class Person:
    """Somebody in front of the browser, who notes every address the page asks."""

    def __init__(self, page: Any, url: str) -> None:
        self.page = page
        self.url = url
        self.asked: set[str] = set()
        page.set_default_timeout(WAIT_MS)
        page.on("request", lambda request: self.asked.add(request.url))
        page.on("websocket", lambda socket: self.asked.add(socket.url))

    def hosts(self) -> set[str]:
        """Hosts that were asked; what is inside the page (data:, blob:) has none."""
        return {host for url in self.asked if (host := urlsplit(url).hostname)}

    def open(self, page: str) -> None:
        self.page.goto(f"{self.url}/{page}")
        self.page.get_by_role("heading", level=1).wait_for()

    def press(self, name: str) -> None:
        """Press a button as soon as it can be pressed."""
        self.page.get_by_role("button", name=name, exact=True).click()

    def follow(self, link: str) -> None:
        """Go to another page by the navigation, in the same session."""
        self.page.get_by_test_id("stSidebar").get_by_role("link", name=link).click()
        self.page.get_by_role("heading", level=1, name=link).wait_for()

    def number(self, label: str, value: float) -> None:
        box = self.page.get_by_role("spinbutton", name=label)
        box.fill(f"{value:g}")
        box.press("Enter")

    def sees(self, text: str) -> None:
        self.page.get_by_text(text).first.wait_for()


def build_and_start(person: Person) -> None:
    person.open("")
    person.press("Build the MNIST model")
    person.press("Start Triton")
    person.press("Tune the batching")
    person.page.get_by_role("heading", level=1, name="Tune").wait_for()


def tune_with_batching(person: Person) -> None:
    sizes = person.page.get_by_role("textbox", name="Preferred batch sizes")
    sizes.fill("999")
    person.sees("Triton would refuse this")
    person.number("Max batch size", 16)
    sizes.fill("4, 8")
    person.number("Max queue delay, µs", 700)
    person.sees("preferred_batch_size: ")
    person.press("Apply and reload")
    person.sees("verified against the configuration")


def tune_without_batching(person: Person, settings: Settings) -> None:
    person.page.get_by_test_id("stCheckbox").filter(has_text="Dynamic batching").locator("label").click()
    person.press("Apply and reload")
    wait_for_finished(settings, JobKind.TUNE, 2)
    person.sees("nothing running")


def wait_for_finished(settings: Settings, kind: JobKind, count: int) -> None:
    """Until so many jobs of this kind have finished: the page alone does not tell the second from the first."""
    store = Store(settings.database_url)
    limit = time.monotonic() + 60
    while sum(job.state is JobState.FINISHED for job in store.jobs([kind])) < count:
        assert time.monotonic() < limit, f"no {count} jobs {kind} finished"
        time.sleep(0.1)
    store.close()


def load_test(person: Person, trial: str) -> None:
    person.page.get_by_role("heading", level=1, name="Load test").wait_for()
    person.number("Measure for, s", 3)
    person.number("Warm up for, s", 1)
    person.press("Start the load test")
    person.sees("Throughput, last second")
    person.sees(f"{trial} ·")


def run_copied_code(person: Person) -> None:
    """The curl command and both Python programs, as they stand on the page, give the answer that the page shows."""
    said = person.page.get_by_test_id("stMetric").filter(has_text="The model says").inner_text().split()[-1]
    texts = person.page.get_by_test_id("stCode").locator("code").all_text_contents()
    curl, over_http, over_grpc = texts[:3]
    done = subprocess.run(["sh", "-c", curl], capture_output=True, text=True, timeout=30, check=True)
    scores = json.loads(done.stdout)["outputs"][0]["data"]
    assert str(scores.index(max(scores))) == said
    for program in (over_http, over_grpc):
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
        values = [float(word) for word in done.stdout.split("[[")[1].split("]]")[0].split()]
        assert len(values) == 10
        assert str(values.index(max(values))) == said


def study(person: Person, settings: Settings) -> None:
    """Plan a study, watch it, kill its worker, resume, compare, apply the best."""
    person.follow("Sweep")
    for label, text in (("Preferred batch sizes", ""), ("Max queue delay, µs", "4000"), ("Clients (closed loop)", "2")):
        person.page.get_by_role("textbox", name=label).fill(text)
    for label, value in (("Rounds", 3), ("Measure for, s", 1), ("Warm up for, s", 0.3)):
        person.number(label, value)
    person.sees("2 configurations under 1 load")
    person.press("Start the study")
    person.sees("Measuring now:")
    store = Store.of(settings)
    wait_until(lambda: store.trials(study_id=f"s{_study(store)}", state=TrialState.FINISHED))
    for pid in workers(settings):
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: store.job(_study(store)).state is JobState.INTERRUPTED)
    person.page.wait_for_timeout(
        3_000
    )  # the page draws itself anew when a job ends, and a click on the old one is lost
    person.press("Resume")
    wait_until(lambda: store.job(_study(store)).state is JobState.FINISHED, 240)
    store.close()
    person.page.get_by_test_id("stMain").get_by_role("link", name="Compare").click()
    person.sees("worse")
    person.press("Apply this configuration")
    person.page.get_by_role("heading", level=1, name="Tune").wait_for()
    person.sees("verified against the configuration")


def _study(store: Store) -> int:
    return store.jobs([JobKind.SWEEP])[0].id


def wait_until(condition: Callable[[], Any], limit_s: float = 60) -> None:
    limit = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < limit, "it did not happen in time"
        time.sleep(0.1)


def workers(settings: Settings) -> list[int]:
    """The processes of this installation's worker."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            line = (entry / "cmdline").read_bytes().split(b"\0")
            if (
                b"tritune.cli" in line
                and b"worker" in line
                and str(settings.results).encode() in (entry / "environ").read_bytes()
            ):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def take_pictures(browser: Any, url: str, folder: Path) -> set[str]:
    """Every page on a desktop and a phone, light and dark; returns the hosts that were asked."""
    hosts: set[str] = set()
    for scheme in ("light", "dark"):
        for width, height in ((1280, 900), (390, 844)):
            context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
            person = Person(context.new_page(), url)
            for name in PAGES:
                person.open(name)
                person.page.wait_for_function(
                    "() => !document.querySelector('[data-testid=stStatusWidget]') && "
                    "!document.querySelector('[data-testid=stSkeleton]')"
                )
                person.page.wait_for_timeout(400)
                full = person.page.evaluate("() => document.querySelector('[data-testid=stMain]').scrollHeight")
                person.page.set_viewport_size({"width": width, "height": max(height, min(full + 8, 6000))})
                person.page.wait_for_timeout(250)
                person.page.screenshot(path=folder / f"{name or 'home'}-{width}-{scheme}.png")
                overflow = person.page.evaluate("() => document.documentElement.scrollWidth - window.innerWidth")
                assert overflow <= 0, f"{name} is {overflow} px wider than a screen of {width} px"
                person.page.set_viewport_size({"width": width, "height": height})
            hosts |= person.hosts()
            context.close()
    return hosts


def test_the_whole_job_by_clicking(app: Any, browser: Any, pictures: Path) -> None:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    person = Person(context.new_page(), app.url)

    build_and_start(person)
    tune_with_batching(person)
    person.follow("Home")
    person.press("Run a load test")
    load_test(person, "t1")

    person.follow("Home")
    person.press("Try a second configuration")
    tune_without_batching(person, app.settings)
    person.follow("Home")
    person.press("Run a load test")
    load_test(person, "t2")

    person.follow("Home")
    person.press("Compare the configurations")
    person.sees("No verdict")
    person.page.locator("[data-testid=stVegaLiteChart] svg").nth(5).wait_for()
    assert person.page.locator("[data-testid=stVegaLiteChart] svg").count() == 6

    person.follow("Try it")
    person.sees("The model says")
    run_copied_code(person)
    study(person, app.settings)
    hosts = person.hosts()
    context.close()

    hosts |= take_pictures(browser, app.url, pictures)
    assert hosts == {"127.0.0.1"}
    assert not (app.settings.results / "app.log").exists(), (app.settings.results / "app.log").read_text()
