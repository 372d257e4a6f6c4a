"""What peers send, shown: markup, control characters, megabytes; and what the node wrote that looks like a secret."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from swarmd.core.events import (
    ChainDegraded,
    MemberSeen,
    ReportSeen,
    RolloutsGathered,
    WorkerExited,
)
from swarmd.core.state import State
from swarmd.core.values import RolloutsRef
from swarmd.eventlog.blobs import BlobStore
from swarmd.swarms.rollouts import BODY_BYTES_MAX, Group, Rollouts, encode_rollouts
from swarmd.web import shapes
from swarmd.web.gossip import PEERS_PER_STAGE
from swarmd.web.moments import add_covered_secrets, redact_and_cut, to_json_value
from tests.core.story import Story, coordinator_settings, settings
from tests.eventlog.making import NODE, open_log, write_story
from tests.web.serving import Listener, Served, served, until

HOSTILE = (
    "<script>alert(1)</script>",
    "\"'><img src=x onerror=alert(1)>",
    "</textarea></style></script>",
    "a\x00b\x1b[31mc\r\n\x7f\x85",
    "\u202egnp.exe\u2066",
    "\U0001f600\ufeff\ufffe",
    "n" * 1_000_000,
    "data: x\n\nevent: swarm\ndata: {}\n\n",
    "${jndi:ldap://evil}{{7*7}}",
)


def ref(peer: str, body: bytes, digest: str, round_: int = 0) -> RolloutsRef:
    return RolloutsRef(peer, round_, 0, digest, len(body), 1)


def shared(blobs: BlobStore, peer: str, *texts: str, round_: int = 0, **other: Any) -> RolloutsRef:
    """Rollouts of a peer in the blob store."""
    groups = tuple(Group("sums", "c" * 8, 1, index, (text[:16384] or " ",)) for index, text in enumerate(texts))
    body = encode_rollouts(
        Rollouts(**({"version": 1, "swarm": "test", "peer": peer} | other), round=round_, stage=0, groups=groups)
    )
    return ref(peer, body, blobs.put(body), round_)


def gathering(*refs: RolloutsRef) -> RolloutsGathered:
    return RolloutsGathered("gather/0/0", 0, 0, refs)


def follower(directory: Path, *events: Any) -> Path:
    story = Story.joined(settings(peer=NODE))
    with open_log(directory / "events") as log:
        write_story(log, [*story.recorded, *events], State(), group=1)
    return directory


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_names_and_completions_come_out_as_json_and_nothing_else(tmp_path: Path, text: str) -> None:
    story = Story.joined(coordinator_settings(min_peers=3))
    story.tell(MemberSeen("peer", text), MemberSeen(text[:200_000], "b"), ReportSeen("peer", 0, 0, 0.5))
    named = shared(BlobStore(tmp_path / "blobs"), "peer", text)
    with open_log(tmp_path / "events") as log:
        write_story(log, [*story.recorded, gathering(named)], State(), group=1)
    with served(tmp_path) as server:
        end = server.json("/api/v1/node/events")["end"]
        paths = [path for path in server.json("/api/openapi.json")["paths"] if path != "/api/v1/stream"]
        for path in (path.replace("{seq}", str(end - 4)) for path in paths):
            answer = server.get(path)
            assert answer.status_code < 500 or path in ("/livez", "/readyz", "/productivez")
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert "html" not in answer.headers["content-type"]
            assert len(answer.content) < 300_000
        (row,) = [row for row in server.json("/api/v1/swarm")["peers"] if row["id"] == "peer"]
        assert row["name"].startswith(text[:10]) and len(row["name"]) <= 132
        (message,) = server.json("/api/v1/swarm/gossip")["messages"]
        assert message["text"] == text[:16384][: shapes.GOSSIP_CHARACTERS_MAX]


def test_hostile_text_cannot_make_events_of_its_own_in_the_stream(tmp_path: Path) -> None:
    follower(tmp_path, MemberSeen("x\n\nevent: swarm\ndata: {}\n\n", "a\ndata: y\r\revent: z"))
    with served(tmp_path) as server:
        end = server.json("/api/v1/node/events")["end"]
        listener = Listener(server, after=end - 2)
        assert {kind for kind, _, _ in listener.events} <= {"event", "charts", "status", "swarm"}
        (told,) = listener.of("event")
        assert msgspec.json.decode(told[2], type=shapes.EventRow).seq == end - 1
        until(lambda: listener.of("swarm"))
        assert all(msgspec.json.decode(body) != {} for _, _, body in listener.of("swarm"))
        listener.close()


# --- rollouts ---


def messages_of(server: Served) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = server.json("/api/v1/swarm/gossip")["messages"]
    return found


def test_bodies_that_cannot_be_trusted_are_left_out(tmp_path: Path) -> None:
    blobs = BlobStore(tmp_path / "blobs")
    good = shared(blobs, "good", "an answer")
    large = b"\x00" * (BODY_BYTES_MAX + 1)
    junk = b"\xff\xfe not msgpack"
    damaged = shared(blobs, "damaged", "it was")
    path = tmp_path / "blobs" / damaged.digest[:2] / damaged.digest
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    refs = (
        ref("large", large, blobs.put(large)),
        ref("liar", b"", blobs.put(large[:-1] + b"x")),  # says that it is small
        ref("junk", junk, blobs.put(junk)),
        ref("absent", b"x", "a" * 64),
        ref("traveller", b"x", "../../../../etc/passwd"),
        damaged,
        shared(blobs, "other", "x", swarm="another"),
        msgspec.structs.replace(shared(blobs, "real", "stolen"), peer="thief"),
        good,
    )
    with served(follower(tmp_path, gathering(*refs))) as server:
        assert [(message["peer"], message["text"]) for message in messages_of(server)] == [("good", "an answer")]


def test_gossip_is_bounded_and_the_newest_comes_first(tmp_path: Path) -> None:
    blobs = BlobStore(tmp_path / "blobs")
    refs = [shared(blobs, f"peer{number}", *["text"] * 10, round_=number % 7) for number in range(60)]
    many = [gathering(*refs[start : start + 30]) for start in range(0, 60, 30)]
    with served(follower(tmp_path, *many)) as server:
        messages = messages_of(server)
        assert len({message["peer"] for message in messages}) == 2 * PEERS_PER_STAGE
        assert len(messages) == 4 * 2 * PEERS_PER_STAGE <= shapes.GOSSIP_KEPT
        assert len({message["id"] for message in messages}) == len(messages)
        times = [message["at"] for message in messages]
        assert times == sorted(times, reverse=True)
        late = server.json("/api/v1/swarm/gossip?since_round=5")["messages"]
        assert 0 < len(late) < len(messages)
        by_round = {message["id"]: message["round"] for message in messages}
        assert all(by_round[message["id"]] >= 5 for message in late)


# --- secrets ---

CANARY = "hf_CanaryCanaryCanaryCanary"
KNOWN = "quite-an-ordinary-word"


def test_what_looks_like_a_secret_is_covered_everywhere(tmp_path: Path) -> None:
    url = "https://user:CanaryPassword@rpc.example/v2/CanaryCanaryCanary0123"
    events = [
        WorkerExited("network", f"it ended; last output:\ntoken={CANARY} {KNOWN}"),
        ChainDegraded(f"no answer from {url}"),
    ]
    add_covered_secrets([KNOWN])
    try:
        with served(follower(tmp_path, *events)) as server:
            end = server.json("/api/v1/node/events")["end"]
            listener = Listener(server, after=0)
            until(lambda: listener.of("swarm"))
            texts = [body for _, _, body in listener.events]
            for path in server.json("/api/openapi.json")["paths"]:
                if path != "/api/v1/stream":
                    texts += [server.get(path.replace("{seq}", str(end - number))).text for number in (1, 2)]
            listener.close()
    finally:
        from swarmd.web import moments

        moments._covered.clear()
        moments._redact_and_cut_cached.cache_clear()
    assert any("[redacted]" in text for text in texts)
    for secret in ("Canary", KNOWN):
        assert not [text for text in texts if secret in text]


def test_half_of_a_secret_at_a_cut_is_covered_too() -> None:
    assert "hf_" not in redact_and_cut("x" * 90 + " " + CANARY, 100)


def test_any_value_becomes_json() -> None:
    strange = {"a": float("nan"), "b": (float("inf"), b"\x00" * 9, 2**70, "\ud800"), "c": ["x"] * 1000}
    made = to_json_value(strange)
    assert made["a"] == "nan" and made["b"] == ["inf", "<9 bytes>", str(2**70), "?"]
    assert len(made["c"]) == 257 and made["c"][-1] == "... 744 more"
    assert msgspec.json.encode(made)
