"""The judge model, against a double on loopback that answers well, badly, much, late and not at all."""

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from swarmd.swarms.plan import StageId
from swarmd.swarms.proposer.running import ANSWER_BYTES_MAX, FAILURES_MAX, JudgeClient
from tests.swarms.making import take
from tests.swarms.proposer.texts import fence, make_plan

ENDED = threading.Event()


def chat(content: object) -> bytes:
    return json.dumps({"choices": [{"message": {"content": content}}]}).encode()


class Endpoint(BaseHTTPRequestHandler):
    """Answers by what the problem says."""

    asked: list[dict[str, str]]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        material = json.loads(body["messages"][-1]["content"])
        self.asked.append({**material, "model": body["model"], "path": self.path})
        problem = material["problem"]
        if problem == "refused":
            self.send_error(500)
            return
        self.send_response(200)
        self.end_headers()
        if problem == "slow":
            for _ in range(1000):
                if ENDED.wait(0.05):
                    break
                self.wfile.write(b" ")
        bodies = {"long": b" " * (ANSWER_BYTES_MAX + 1), "broken": b"{", "mute": chat("I cannot say"), "odd": chat(7)}
        verdict = json.dumps({"is_correct": "right" in material["program"]})
        self.wfile.write(bodies.get(problem, chat(f"Well. ```json\n{verdict}\n```")))

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    Endpoint.asked = []
    with ThreadingHTTPServer(("127.0.0.1", 0), Endpoint) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,)).start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        ENDED.set()
        server.shutdown()


def test_it_says_who_is_right(url: str) -> None:
    judge = JudgeClient(url, "small", 10.0)
    assert [judge.judge_program("add", program) for program in ("right", "wrong")] == [True, False]
    last = Endpoint.asked[-1]
    assert (last["program"], last["model"], last["path"]) == ("wrong", "small", "/v1/chat/completions")


@pytest.mark.parametrize("problem", ["refused", "long", "broken", "mute", "odd"])
def test_what_is_no_verdict_is_none(url: str, problem: str) -> None:
    assert JudgeClient(url, "", 10.0).judge_program(problem, "right") is None


def test_it_waits_no_longer_than_it_should(url: str) -> None:
    begun = time.monotonic()
    assert JudgeClient(url, "", 0.3).judge_program("slow", "right") is None
    assert time.monotonic() - begun < 25.0, "half of what the answer takes"


def test_after_some_failures_nobody_is_asked_until_the_next_stage(url: str) -> None:
    judge, before = JudgeClient(url, "", 10.0), len(Endpoint.asked)
    for _ in range(FAILURES_MAX + 2):
        assert judge.judge_program("refused", "right") is None
    assert len(Endpoint.asked) - before == FAILURES_MAX
    assert judge.judge_program("add", "right") is None
    judge.begin_stage()
    assert judge.judge_program("add", "right") is True


def test_its_verdict_is_a_part_of_the_reward_and_its_absence_is_none(url: str) -> None:
    plan = make_plan(judge=url, judge_reward=0.25)
    question = take(plan, 1, StageId("a", 0, 1))[0]
    texts = [fence("def solve(x): return 'right'"), fence("def solve(x): return 0"), "nothing"]
    parts = [score.parts.get("judge") for score in plan.score(question, texts)]
    assert parts == [0.25, 0.0, None]
    gone = make_plan(judge="http://127.0.0.1:9/v1", judge_s=1.0)
    scores = gone.score(question, texts)
    assert [("judge" in score.parts, score.failed) for score in scores] == [(False, False)] * 3
