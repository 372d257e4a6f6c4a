"""A confined process that goes on: what it answers, what it may not do, and what comes of its end."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from swarmd.sandbox.service import ConfinedService, ServiceFailed, find_places, service_command

SCRIPT = """
import json, os, sys, threading

def run(code):
    try:
        return repr(eval(code))
    except Exception as error:
        return type(error).__name__

print(json.dumps({"arguments": sys.argv[1:]}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    if asked["code"] == "end":
        os._exit(3)
    if asked["code"] == "nest":
        print(100_000 * "[", flush=True)
    elif asked["code"] == "deaf":
        os.close(1)
        threading.Event().wait(60)
    elif asked["code"] != "silence":
        print(json.dumps({"id": asked["id"], "result": run(asked["code"])}), flush=True)
"""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> ConfinedService:
    home = tmp_path_factory.mktemp("home")
    (home / "identity.key").write_text("secret")
    interpreter = Path(sys.executable)
    return ConfinedService(
        service_command(interpreter, SCRIPT, ["one", "two"], find_places(interpreter, home), "namespaces")
    )


def ask(service: ConfinedService, code: str) -> str:
    return str(service.request({"code": code}, 30.0))


@pytest.mark.needs("unshare")
def test_it_answers_and_may_start_threads_but_no_processes(service: ConfinedService) -> None:
    assert service.read_hello() == {"arguments": ["one", "two"]}
    assert ask(service, "1 + 1") == "2"
    thread = "threading.Thread(target=len, args=('',))"
    assert ask(service, f"(lambda thread: (thread.start(), thread.join()))({thread})") == "(None, None)"
    assert ask(service, "os.fork()") == "BlockingIOError"
    assert ask(service, "__import__('subprocess').run(['/bin/true'])") in ("BlockingIOError", "FileNotFoundError")


@pytest.mark.needs("unshare")
def test_it_sees_no_network_no_other_process_and_no_file_of_the_machine(service: ConfinedService) -> None:
    assert ask(service, "__import__('socket').socket()") == "PermissionError"
    assert ask(service, "os.listdir('/proc')") == "FileNotFoundError"
    assert ask(service, "open('/etc/passwd')") == "FileNotFoundError"
    assert ask(service, "open('/usr/here', 'w')") == "OSError"
    assert ask(service, "sorted(os.environ)[:2]") == "['HF_HUB_OFFLINE', 'HOME']"
    assert ask(service, "open(os.environ['HOME'] + '/here', 'w').write('x')") == "1"


@pytest.mark.needs("unshare")
@pytest.mark.parametrize("code", ["nest", "deaf"])
def test_output_that_cannot_be_read_on_ends_it_and_the_request(service: ConfinedService, code: str) -> None:
    """Nested without an end, or closed by a process that goes on."""
    with pytest.raises(ServiceFailed, match="its process ended"):
        service.request({"code": code}, 30.0)
    assert ask(service, "1 + 1") == "2"


@pytest.mark.needs("unshare")
def test_after_its_end_there_is_another(service: ConfinedService) -> None:
    with pytest.raises(ServiceFailed, match="ended with code 3"):
        ask(service, "end")
    assert ask(service, "1 + 1") == "2"
    with pytest.raises(ServiceFailed, match="did not answer within"):
        service.request({"code": "silence"}, 0.2)
    service.restart()
    assert ask(service, "2 + 2") == "4"
