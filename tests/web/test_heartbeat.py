"""The heartbeat pings a real HTTP server: each minute while the node is well, with the reason while it is not."""

import asyncio
import signal
from itertools import pairwise
from pathlib import Path

import pytest
from msgspec.structs import replace

from swarmd.cli import run_command
from swarmd.config import NotifyConfig, check_notify
from swarmd.errors import ConfigError, ExitCode, NotifyFailed
from swarmd.observe.metrics import Metrics
from swarmd.observe.status import Status
from swarmd.web.heartbeat import PING_S, Heartbeat
from swarmd.web.notifications import POLL_S, HealthChanges, HealthNotifier, heartbeat_of
from tests.daemon.node import fake_node
from tests.observe.counting import read
from tests.receiver import Receiver, receiving
from tests.web.test_notifications import DEAD, ILL, MUTE, WELL, private

UUID = "5f2c1d1e-9a4b-4c57-8f0d-3c1a7e6b9d20"
AFTER_S = 60.0


class Recorded(Heartbeat):
    """Keeps when a ping became due, and why the node was unwell."""

    def __init__(self) -> None:
        super().__init__("http://127.0.0.1:1/", Metrics())
        self.pings: list[tuple[float, str]] = []

    def set_health(self, reason: str, now: float) -> None:
        super().set_health(reason, now)
        if self._due.is_set():
            self._due.clear()
            self.pings.append((now, reason))


def watch(*history: tuple[float, Status]) -> list[tuple[float, str]]:
    """The pings of a node that was in each status for so many seconds."""
    now = [0.0]
    heartbeat = Recorded()
    notifier = HealthNotifier(HealthChanges(AFTER_S, 900), [], Metrics(), clock=lambda: now[0], heartbeat=heartbeat)
    for lasts_s, status in history:
        for _ in range(int(lasts_s / POLL_S)):
            notifier.handle_status(replace(status, at=now[0]))
            now[0] += POLL_S
    return heartbeat.pings


def test_a_quiet_day_has_a_ping_a_minute_and_no_false_alarm() -> None:
    flaps = (1800.0, WELL), (AFTER_S - 10, ILL)
    pings = watch(*flaps * 47)
    assert not any(reason for _, reason in pings)
    gaps = [after - before for (before, _), (after, _) in pairwise(pings)]
    assert max(gaps) <= PING_S + POLL_S and min(gaps) >= PING_S - POLL_S


@pytest.mark.parametrize(
    ("status", "words"), [(ILL, "network: no peer"), (DEAD, "process: "), (replace(MUTE, at=WELL.at), "process: ")]
)
def test_a_node_that_is_unwell_says_so_itself_and_once_more_when_it_is_well(status: Status, words: str) -> None:
    pings = watch((600, WELL), (600, status), (600, WELL))
    unwell = [at for at, reason in pings if reason]
    assert 600 + AFTER_S <= unwell[0] <= 600 + AFTER_S + 2 * POLL_S, "at once, not at the next minute"
    assert all(reason.startswith(words) for at, reason in pings if reason)
    assert unwell[-1] < 1200 and (1200.0, "") in [(at, reason) for at, reason in pings]


class Counted(Heartbeat):
    """Says when it has pinged."""

    sent = asyncio.Event()

    async def ping(self, reason: str) -> None:
        asyncio.get_running_loop().call_later(0.1, self.sent.set)
        await super().ping(reason)


def ping(server: Receiver, reason: str, query: str = "") -> None:
    url = f"http://127.0.0.1:{server.server_port}/ping/{UUID}{query}"
    asyncio.run(Heartbeat(url, Metrics()).ping(reason))


def test_a_failure_goes_to_the_checks_fail_path_with_the_reason() -> None:
    with receiving(200) as server:
        ping(server, "")
        ping(server, "network: no peer", "?rid=1")
    assert [(post.path, post.body) for post in server.posted] == [
        (f"/ping/{UUID}", b""),
        (f"/ping/{UUID}/fail?rid=1", b"network: no peer"),
    ]


def test_a_ping_that_fails_is_named_and_counted_without_the_secret() -> None:
    with receiving(404) as server, pytest.raises(NotifyFailed, match="answered with status 404") as refused:
        ping(server, "")
    with pytest.raises(NotifyFailed, match="cannot be pinged") as unreachable:
        ping(server, "")
    assert UUID not in f"{refused.value} {unreachable.value}"

    async def live() -> float:
        metrics = Metrics()
        heartbeat = Counted(f"http://127.0.0.1:1/{UUID}", metrics)
        heartbeat.set_health("", 0.0)
        task = asyncio.create_task(heartbeat.run())
        async with asyncio.timeout(30):
            await heartbeat.sent.wait()
        task.cancel()
        return read(metrics)["swarmd_notifications_total", "failed", "heartbeat"]

    assert asyncio.run(live()) == 1


@pytest.mark.parametrize("url", ["hc-ping.com/1", f"ftp://h/{UUID}", "https://", f"https://[{UUID}"])
def test_what_is_not_a_url_of_http_is_refused_without_the_secret(url: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not an http or https URL") as caught:
        check_notify(NotifyConfig(heartbeat_url=url))
    private(tmp_path / "check.url", url + "\n")
    with pytest.raises(ConfigError, match="not an http or https URL"):
        heartbeat_of(NotifyConfig(heartbeat_url="file:check.url"), tmp_path, Metrics())
    assert UUID not in str(caught.value)


def test_the_process_beside_a_daemon_pings_and_says_when_it_was_killed(tmp_path: Path) -> None:
    with receiving(200) as server, fake_node(tmp_path, rounds=2, silent_s=60.0) as node:
        private(tmp_path / "check.url", f"http://127.0.0.1:{server.server_port}/{UUID}\n")
        with node.config.open("a") as file:
            file.write(f'[notify]\nheartbeat_url = "file:{tmp_path / "check.url"}"\nafter_s = 1\n')
        assert run_command(["notify", "-c", str(node.config)]) == ExitCode.OK
        node.run_rounds()
        node.until(lambda: len(server.posted) > 1)
        node.signal(signal.SIGKILL)
        node.until(lambda: server.posted[-1].path.endswith("/fail"))
    assert [post.path for post in server.posted] == [f"/{UUID}", f"/{UUID}", f"/{UUID}/fail"]
    assert b"it was killed or crashed" in server.posted[-1].body
