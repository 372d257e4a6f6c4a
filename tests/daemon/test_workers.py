"""Workers that die, hang, lie or fail: each is seen, said and mended, or ends the node with the right exit code."""

import os
import signal
import time
from pathlib import Path

from swarmd.core.events import NodeStopped, StageTrained, WorkerExited, WorkerStarted
from swarmd.errors import EXIT_FOR_ROOM
from swarmd.eventlog.replay import verify_log
from tests.daemon.fake_worker import CANARY
from tests.daemon.node import FakeNode, fake_node


def test_a_killed_worker_is_started_again_and_the_stage_goes_on(tmp_path: Path) -> None:
    with fake_node(tmp_path, rounds=30) as node:
        node.start()
        node.until(lambda: len(node.events_of(StageTrained)) >= 2)
        pid = node.worker_pid("training")
        os.kill(pid, signal.SIGKILL)
        node.until(lambda: len(node.events_of(StageTrained)) >= 6)
        assert node.stop() == 0
        exited = node.events_of(WorkerExited)[0]
        assert (exited.worker, exited.signal, exited.permanent) == ("trainer", signal.SIGKILL, False)
        assert "not by this daemon; out of memory?" in exited.reason
        assert "fake trainer worker" in exited.reason, "the last output belongs to the reason"
        rounds = [trained.round for trained in node.events_of(StageTrained)]
        assert rounds == sorted(set(rounds))
        verify_log(node.paths.events)


def test_a_silent_worker_is_killed_and_started_again(tmp_path: Path) -> None:
    with fake_node(tmp_path, silent_s=1.0) as node:
        node.start(trainer="deaf+once")
        node.until(lambda: len(node.events_of(StageTrained)) >= 1)
        exited = node.events_of(WorkerExited)[0]
        assert exited.worker == "trainer"
        assert exited.reason.startswith("answered no ping for 1 s, killed")


def test_garbage_from_a_worker_ends_only_that_worker(tmp_path: Path) -> None:
    with fake_node(tmp_path) as node:
        node.start(network="garbage+once")
        node.until_finished()
        exited = node.events_of(WorkerExited)[0]
        assert exited.reason.startswith("broken output: a frame of 4294967295 bytes was announced")
        assert node.stop() == 0


def test_a_permanent_fault_ends_the_node_with_its_code(tmp_path: Path) -> None:
    with fake_node(tmp_path) as node:
        node.start(trainer="fault")
        assert node.wait() == 66
        exited = node.events_of(WorkerExited)[0]
        assert exited.permanent and exited.exit_code == 66
        assert exited.reason == "there is no model in /nowhere. Name another"
        stopped = node.events()[-1]
        assert isinstance(stopped, NodeStopped) and stopped.code == 66
        assert len([started for started in node.events_of(WorkerStarted) if started.worker == "trainer"]) == 1


def test_a_worker_that_always_crashes_spends_its_budget(tmp_path: Path) -> None:
    with fake_node(tmp_path, restarts_max=1) as node:
        node.start(trainer="crash")
        assert node.wait() == 69
        reasons = [exited.reason for exited in node.events_of(WorkerExited) if exited.worker == "trainer"]
        assert reasons[0] == "ValueError: a plain bug"
        traceback = next(line for line in node.lines() if "Traceback" in line["message"])
        assert traceback["level"] == "error" and "a plain bug" in traceback["message"]


def test_a_worker_that_others_fill_or_kill_never_spends_the_budget(tmp_path: Path) -> None:
    with fake_node(tmp_path, restarts_max=1) as node:
        node.start(network="full")
        for nth in range(1, 4):
            node.until(lambda: len(ends_of(node, "network")) > nth)  # noqa: B023
            os.kill(node.worker_pid("training"), signal.SIGKILL)
            node.until(lambda: len(ends_of(node, "trainer")) >= nth)  # noqa: B023
        ends = [*ends_of(node, "network"), *ends_of(node, "trainer")]
        assert all(end.outside and not end.permanent for end in ends)
        assert {end.code for end in ends} == {EXIT_FOR_ROOM, None}
        worker = node.status()["training"]["worker"]
        assert worker["outside"] >= 2 and worker["restarts"] == 0
        assert node.stop() == 0
        verify_log(node.paths.events)


def ends_of(node: FakeNode, worker: str) -> list[WorkerExited]:
    return [each for each in node.events_of(WorkerExited) if each.worker == worker]


def test_a_trainer_that_retires_after_each_stage_costs_nothing_of_the_budget(tmp_path: Path) -> None:
    with fake_node(tmp_path, rounds=4, restarts_max=1) as node:
        node.start(trainer="retire")
        node.until(lambda: len(node.events_of(WorkerExited)) >= 4, 30.0)
        assert [trained.round for trained in node.events_of(StageTrained)] == [0, 1, 2, 3]
        assert all(exited.planned and exited.reason == "recycled" for exited in node.events_of(WorkerExited))
        assert node.status()["training"]["worker"]["restarts"] == 0
        assert node.stop() == 0


def test_output_is_captured_folded_cut_and_redacted(tmp_path: Path) -> None:
    with fake_node(tmp_path) as node:
        node.start(trainer="chatty")
        node.until_finished()
        assert node.stop() == 0
        said = [line for line in node.lines() if line["logger"] == "swarmd.worker" and line["worker"] == "trainer"]
        same = [line for line in said if "the same again" in line["message"]]
        assert [line.get("repeated") for line in same] == [None, 99]
        assert {line["level"] for line in same} == {"warning"}
        assert any("more characters)" in line["message"] for line in said)
        assert any("[redacted]" in line["message"] for line in said)
        assert CANARY not in node.output.read_text()


def test_a_suspended_daemon_blames_nobody(tmp_path: Path) -> None:
    with fake_node(tmp_path, silent_s=1.0) as node:
        node.run_rounds()
        node.signal(signal.SIGSTOP)
        time.sleep(2)  # twice silent_s
        node.signal(signal.SIGCONT)
        node.until(lambda: node.status().get("healthy"))
        assert node.events_of(WorkerExited) == []
