"""`swarmd signer` as a process before a real chain: upstream's interface, each submission once, no secret anywhere."""

import asyncio
import stat
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import requests

from swarmd.chain.endpoints import RpcPool
from swarmd.chain.senders import make_sender
from swarmd.cli import run_command
from swarmd.config import ProxyConfig
from swarmd.core.commands import Submit
from swarmd.core.events import RegistrationLog, RewardLog, VoteLog
from swarmd.errors import ContractRefused, ExitCode
from swarmd.paths import NodeDirectory
from tests.chain.grounds import CHAIN_ID, Answer, Call, Ground, acting, middleman, refusing
from tests.chain.signing import (
    ADDRESS,
    ORG,
    OWNER,
    PASSPHRASE,
    SECRETS,
    TOKEN,
    Running,
    account_files,
    by_hand,
    fund,
    options,
    sent,
    signing,
    start,
    take_nonce,
    told,
)

pytestmark = pytest.mark.anyio

PEER = "QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N"
OTHER = "Qma9T5YraSnpRDZqRR4krcSJabThc8nwZuJV3LercPHufi"
REWARD = {"orgId": ORG, "roundNumber": 0, "stageNumber": 0, "reward": 7, "peerId": PEER}


@pytest.fixture(autouse=True)
def rich(ground: Ground) -> None:
    fund(ground)


async def until(condition: Any, what: str) -> None:
    """Asks in a thread, for what is asked may need this loop."""
    for _ in range(400):
        if await asyncio.to_thread(condition):
            return
        await asyncio.sleep(0.05)
    raise AssertionError(what)


async def recovered(signer: Running) -> None:
    for _ in range(400):
        if (await signer.register(PEER)).status_code == 200:
            return
        await asyncio.sleep(0.05)
    raise AssertionError("it did not recover")


# --- upstream's interface ---


async def test_a_node_of_rl_swarm_gets_through_its_rounds(ground: Ground, tmp_path: Path) -> None:
    async with signing(tmp_path, *options(ground)) as signer:
        answers = [await signer.register(PEER), await signer.report(PEER, 0, 7), await signer.vote(PEER, 0, PEER)]
        ground.swarm.next_round()
        hashes = [answer.json()["hash"] for answer in (*answers, await signer.report(PEER, 1, 0))]
        assert await signer.stop() == ExitCode.OK
    assert [(entry.account, entry.peer) for entry in told(ground, RegistrationLog)] == [(ADDRESS, PEER)]
    assert [(entry.round, entry.stage, entry.reward) for entry in told(ground, RewardLog)] == [(0, 0, "7"), (1, 0, "0")]
    assert [entry.winners for entry in told(ground, VoteLog)] == [(PEER,)]
    assert all(ground.say("eth_getTransactionReceipt", each)["status"] == "0x1" for each in hashes)


async def test_a_node_of_swarmd_submits_through_it(ground: Ground, tmp_path: Path) -> None:
    async with signing(tmp_path, *options(ground, token_file="token")) as signer:
        settings = ProxyConfig(url=f"{signer.url}/api", org=ORG, account=ADDRESS, token="token")
        config = ground.config(sender="proxy", proxy=settings)
        rpc = RpcPool(config.rpc, config.chain_id, 2.0)
        sender = make_sender(config, NodeDirectory(tmp_path), rpc)
        for command in (
            Submit("a", "a", "register"),
            Submit("b", "b", "reward", reward=7),
            Submit("c", "c", "winners", winners=(PEER,)),
        ):
            prepared = await sender.prepare_attempt(PEER, command, ())
            assert prepared is not None
            assert str(await sender.send_attempt(PEER, command, prepared)).startswith("0x")
        ground.swarm.register(ground.swarm.alice, OTHER)
        with pytest.raises(ContractRefused) as caught:
            await sender.send_attempt(OTHER, Submit("d", "d", "register"), prepared)
        assert caught.value.code == "PeerIdAlreadyRegistered"
        await rpc.close()
    assert sent(ground) == 3


async def test_the_contracts_refusals_have_upstreams_statuses_and_names(ground: Ground, tmp_path: Path) -> None:
    ground.swarm.register(ground.swarm.alice, OTHER)
    async with signing(tmp_path, *options(ground)) as signer:
        assert (await signer.register(PEER)).status_code == 200
        assert (await signer.post("submit-reward", REWARD)).status_code == 200
        vote = {"orgId": ORG, "roundNumber": 0, "winners": [PEER], "peerId": PEER}
        for method, body, status, name in (
            ("register-peer", {"orgId": ORG, "peerId": OTHER}, 400, "PeerIdAlreadyRegistered"),
            ("submit-reward", REWARD | {"reward": 8}, 500, "RewardAlreadySubmitted"),
            ("submit-reward", REWARD | {"roundNumber": 9}, 500, "InvalidRoundNumber"),
            ("submit-reward", REWARD | {"stageNumber": 1}, 500, "InvalidStageNumber"),
            ("submit-reward", REWARD | {"peerId": OTHER}, 500, "InvalidVoterPeerId"),
            ("submit-winner", vote | {"winners": [PEER, PEER]}, 500, "InvalidVote"),
            ("submit-winner", vote | {"roundNumber": 1}, 500, "InvalidRoundNumber"),
            ("submit-winner", vote | {"peerId": OTHER}, 500, "InvalidVoterPeerId"),
        ):
            answer = await signer.post(method, body)
            assert (answer.status_code, answer.json()["error"]) == (status, name), (method, body)
            assert "metaMessages" in answer.json()
        refused = [line["code"] for line in signer.lines("refused")]
        assert len(refused) == 7  # what is in flight with another content needs no question to the contract
    assert sent(ground) == 2


REFUSED: list[tuple[str, Any, int, str]] = [
    ("register-peer", {"orgId": "somebody else", "peerId": PEER}, 404, "user not found"),
    ("submit-reward", REWARD | {"orgId": ""}, 404, "user not found"),
    ("no-such-thing", {"orgId": ORG}, 404, "not found"),
    ("register-peer", {"orgId": ORG}, 400, "bad request"),
    ("register-peer", {"orgId": ORG, "peerId": ""}, 400, "bad request"),
    ("register-peer", {"orgId": ORG, "peerId": "Qm \n1"}, 400, "bad request"),
    ("register-peer", b"", 400, "bad request"),
    ("register-peer", b"{", 400, "bad request"),
    ("register-peer", b"\xff\xfe", 400, "bad request"),
    ("submit-reward", REWARD | {"roundNumber": 2**31}, 400, "bad request"),
    ("submit-reward", REWARD | {"stageNumber": 1.5}, 400, "bad request"),
    ("submit-reward", REWARD | {"reward": 2**63}, 400, "bad request"),
    ("submit-winner", {"orgId": ORG, "roundNumber": 0, "winners": PEER, "peerId": PEER}, 400, "bad request"),
    ("submit-winner", {"orgId": ORG, "roundNumber": 0, "winners": ["a"] * 101, "peerId": PEER}, 400, "bad request"),
    ("register-peer", b" " * 70_000, 413, "a body may have 65536 bytes"),
]


async def test_other_requests_are_refused_and_nothing_is_signed(served: Running, ground: Ground) -> None:
    for method, body, status, name in REFUSED:
        answer = await served.post(method, body, headers={"Content-Type": "application/json"})
        assert (answer.status_code, answer.json()["error"]) == (status, name), (method, body)
        assert served.whats("/") == [], (method, body)
    assert sent(ground) == 0


@pytest.fixture
async def served(ground: Ground, tmp_path: Path):
    async with signing(tmp_path, *options(ground)) as signer:
        yield signer


async def test_what_javascript_takes_is_taken(served: Running, ground: Ground) -> None:
    """Numbers as text, and fields that nobody knows."""
    assert (await served.post("register-peer", {"orgId": ORG, "peerId": PEER, "more": [1]})).status_code == 200
    answer = await served.post("submit-reward", REWARD | {"roundNumber": "0", "stageNumber": 0.0, "reward": "-7"})
    assert answer.status_code == 200
    assert [entry.reward for entry in told(ground, RewardLog)] == ["-7"]


async def test_a_page_in_a_browser_is_refused(served: Running, ground: Ground) -> None:
    """It can reach loopback; a request without a preflight has neither this content type nor no origin."""
    assert (await served.register(PEER, headers={"Origin": "http://evil.example"})).status_code == 403
    plain = b'{"orgId": "' + ORG.encode() + b'", "peerId": "Qm1"}'
    assert (await served.post("register-peer", plain, headers={"Content-Type": "text/plain"})).status_code == 400
    assert sent(ground) == 0


# --- each thing once ---


async def test_a_repeated_request_gets_the_same_answer(ground: Ground, tmp_path: Path) -> None:
    """In flight, mined, confirmed, and after a restart."""
    by_hand(ground)
    ground.swarm.w3.provider.make_request("anvil_setCoinbase", [ground.swarm.owner])
    async with signing(tmp_path, *options(ground)) as signer:
        first = (await signer.register(PEER)).json()
        assert (await signer.register(PEER)).json() == first
        ground.mine()
        assert (await signer.register(PEER)).json() == first
        ground.mine(3)
        await until(lambda: "confirmed" in signer.whats(), "never confirmed")
        assert (await signer.register(PEER)).json() == first
    async with signing(tmp_path, *options(ground)) as signer:
        assert (await signer.register(PEER)).json() == first
    assert sent(ground) == 1


async def test_the_same_request_eight_times_at_once_is_sent_once(ground: Ground, tmp_path: Path) -> None:
    by_hand(ground)
    async with signing(tmp_path, *options(ground)) as signer:
        answers = await asyncio.gather(*(signer.register(PEER) for _ in range(8)))
        assert len({answer.json()["hash"] for answer in answers}) == 1
        assert signer.whats().count("signed") == 1
    ground.mine()
    assert sent(ground) == 1


async def test_two_nodes_share_an_account(ground: Ground, tmp_path: Path) -> None:
    """Their requests cross each other; blocks come when they come."""
    by_hand(ground)
    async with signing(tmp_path, *options(ground)) as signer:
        nodes = (PEER, OTHER)
        answers = await asyncio.gather(*(signer.register(node) for node in nodes))
        ground.mine()
        for round in range(3):
            answers += await asyncio.gather(
                *(signer.report(node, round, round) for node in nodes),
                *(signer.vote(node, round, PEER) for node in nodes),
            )
            ground.say("evm_setAutomine", True)
            ground.mine()
            ground.swarm.next_round()
            by_hand(ground)
        assert {answer.status_code for answer in answers} == {200}
        nonces = [line["nonce"] for line in signer.lines("signed")]
        assert sorted(nonces) == list(range(14))
    counted = Counter((entry.peer, entry.round) for entry in told(ground, RewardLog))
    assert counted == {(peer, round): 1 for peer in (PEER, OTHER) for round in range(3)}
    assert Counter((entry.peer, entry.round) for entry in told(ground, VoteLog)) == counted
    assert sent(ground) == 14


@pytest.mark.parametrize("passed_on", [True, False], ids=["the node has it", "the node never got it"])
@pytest.mark.parametrize("mining", [True, False], ids=["mined meanwhile", "still waiting"])
async def test_a_signer_killed_between_sending_and_replying_does_not_send_twice(
    ground: Ground, tmp_path: Path, passed_on: bool, mining: bool
) -> None:
    ground.swarm.register(ground.swarm.alice, OTHER)
    reached = asyncio.Event()

    async def keep(call: Call) -> Answer:
        if call["method"] == "eth_sendRawTransaction":
            if passed_on:
                ground.say(call["method"], *call["params"])
            reached.set()
            await asyncio.Event().wait()
        return None

    if not mining:
        by_hand(ground)
    async with middleman(ground.url, keep) as between, signing(tmp_path, *options(ground, between.url)) as signer:
        request = asyncio.create_task(signer.register(PEER))
        await asyncio.wait_for(reached.wait(), 20)
        await signer.kill()
        with pytest.raises(requests.ConnectionError):
            await request
        assert signer.whats() == ["started", "signed"]
        signed = signer.audit()[-1]["hash"]
    async with signing(tmp_path, *options(ground)) as signer:
        again = await signer.register(PEER)
        assert (again.status_code, again.json()) == (200, {"hash": signed})
        ground.say("evm_setAutomine", True)
        ground.mine()
        assert (await signer.register(PEER)).json() == {"hash": signed}
        assert signer.whats().count("signed") == 1
    assert [entry.peer for entry in told(ground, RegistrationLog)] == [OTHER, PEER]
    assert sent(ground) == 1


async def test_what_was_out_is_sent_again_after_a_restart_without_being_asked(ground: Ground, tmp_path: Path) -> None:
    by_hand(ground)
    async with signing(tmp_path, *options(ground)) as signer:
        hash = (await signer.register(PEER)).json()["hash"]
        await signer.kill()
    ground.say("anvil_dropTransaction", hash)
    async with signing(tmp_path, *options(ground)) as signer:
        assert ground.say("eth_getTransactionByHash", hash) is not None
        ground.mine(3)
        await until(lambda: signer.whats()[-1] == "confirmed", "never confirmed")
    assert sent(ground) == 1


async def test_a_nonce_that_another_program_takes_costs_nothing(ground: Ground, tmp_path: Path) -> None:
    def take(call: Call) -> None:
        if not sent(ground):
            take_nonce(ground, 0)

    act = acting(take, "eth_sendRawTransaction")
    async with middleman(ground.url, act) as between, signing(tmp_path, *options(ground, between.url)) as signer:
        assert (await signer.register(PEER)).status_code == 200
        assert [line["code"] for line in signer.lines("ended")] == ["not-taken"]
    assert (len(told(ground, RegistrationLog)), sent(ground)) == (1, 2)


# --- trouble ---


async def test_while_the_chain_is_away_requests_fail_and_then_go_on(ground: Ground, tmp_path: Path) -> None:
    async with middleman(ground.url) as between, signing(tmp_path, *options(ground, between.url)) as signer:
        health = f"{signer.url}/healthz"
        await until(lambda: requests.get(health, timeout=9).status_code == 200, "never well")
        await between.stop()
        answer = await signer.register(PEER)
        assert answer.status_code == 500
        assert "no endpoint answers" in answer.json()["error"] and "original" in answer.json()
        assert not any(secret in answer.text for secret in SECRETS)
        await between.start()
        await recovered(signer)
    assert sent(ground) == 1


async def test_a_chain_that_was_reset_is_signed_nothing_for(ground: Ground, tmp_path: Path) -> None:
    async with signing(tmp_path, *options(ground)) as signer:
        assert (await signer.register(PEER)).status_code == 200
        ground.say("anvil_reset")
        answer = await signer.post("submit-reward", REWARD)
        assert answer.status_code == 500
        assert f"no contract at {ground.contract}" in answer.json()["error"]
        assert signer.whats("reward") == []


async def test_an_endpoint_that_may_have_taken_it_is_not_asked_for_a_second_one(ground: Ground, tmp_path: Path) -> None:
    def garble(call: Call) -> Answer:
        ground.say(call["method"], *call["params"])
        return {"nothing": "useful"}

    act = acting(garble, "eth_sendRawTransaction")
    async with middleman(ground.url, act) as between, signing(tmp_path, *options(ground, between.url)) as signer:
        assert (await signer.register(PEER)).status_code == 500
        assert "unsure" in signer.whats()
        between.act = between._pass_on
        await recovered(signer)
        assert signer.whats().count("signed") == 1
    assert sent(ground) == 1


async def test_a_refusal_by_the_node_is_told_and_forgotten(ground: Ground, tmp_path: Path) -> None:
    act = refusing(-32000, "transaction pool is full", "eth_sendRawTransaction")
    async with middleman(ground.url, act) as between, signing(tmp_path, *options(ground, between.url)) as signer:
        answer = await signer.register(PEER)
        assert answer.status_code == 500 and "pool is full" in answer.json()["error"]
        between.act = between._pass_on
        assert (await signer.register(PEER)).status_code == 200
        nonces = [line["nonce"] for line in signer.lines("signed")]
        assert nonces == [0, 0]
    assert sent(ground) == 1


# --- who may ask ---


async def test_a_wrong_token_is_refused_before_anything_is_read(ground: Ground, tmp_path: Path) -> None:
    async with signing(tmp_path, *options(ground, token_file="token")) as signer:
        for given in (
            None,
            "",
            TOKEN,
            "Bearer",
            f"Bearer {TOKEN}x",
            f"Bearer {TOKEN[:-1]}",
            f"Basic {TOKEN}",
            "Bearer é",
        ):
            headers = {} if given is None else {"Authorization": given.encode()}
            answer = await signer.register(PEER, headers=headers)
            assert (answer.status_code, answer.json()) == (401, {"error": "unauthorized"}), given
        assert sent(ground) == 0 and signer.whats("/") == []
        for given in (f"Bearer {TOKEN}", f"bearer  {TOKEN} "):
            answer = await signer.register(PEER, headers={"Authorization": given})
            assert answer.status_code == 200
        assert (await asyncio.to_thread(requests.get, f"{signer.url}/healthz", timeout=9)).status_code == 200
    assert sent(ground) == 1


async def test_only_named_peers_and_organisations_are_served(ground: Ground, tmp_path: Path) -> None:
    args = [*options(ground, org=""), "--org", "one", "--org", "two", "--peer", PEER]
    async with signing(tmp_path, *args) as signer:
        assert (await signer.post("register-peer", {"orgId": "one", "peerId": OTHER})).status_code == 403
        assert (await signer.post("register-peer", {"orgId": "three", "peerId": PEER})).status_code == 404
        assert (await signer.post("register-peer", {"orgId": "two", "peerId": PEER})).status_code == 200
        line = signer.lines("signed")[0]
        assert (line["org"], line["remote"], line["account"]) == ("two", "127.0.0.1", ADDRESS)


async def test_more_than_the_requests_of_a_minute_are_refused(ground: Ground, tmp_path: Path) -> None:
    async with signing(tmp_path, *options(ground, per_minute="3")) as signer:
        statuses = [(await signer.post("submit-reward", REWARD)).status_code for _ in range(5)]
        assert statuses == [500, 500, 500, 429, 429]


# --- beginning and end ---


@pytest.mark.parametrize(
    ("changed", "code", "words"),
    [
        ({"chain_id": "1"}, ExitCode.CHAIN_CONFLICT, "31337"),
        ({"contract": "0x" + "12" * 20}, ExitCode.CHAIN_CONFLICT, "no contract"),
        ({"contract": "0x12"}, ExitCode.BAD_CONFIG, "contract"),
        ({"passphrase_file": "token"}, ExitCode.NO_PERMISSION, "does not open"),
        ({"account": "credential:key"}, ExitCode.NO_INPUT, "LoadCredential"),
        ({"token_file": "none"}, ExitCode.NO_INPUT, "token"),
        ({"listen": "0.0.0.0:0"}, ExitCode.BAD_CONFIG, "--token-file"),
        ({"listen": "somewhere"}, ExitCode.BAD_CONFIG, "HOST:PORT"),
        ({"org": ""}, ExitCode.BAD_CONFIG, "--org"),
        ({"rpc": "ftp://x"}, ExitCode.BAD_CONFIG, "URL"),
        ({"audit": "no/where"}, ExitCode.CANNOT_CREATE, "mkdir"),
    ],
    ids=str,
)
def test_it_refuses_to_start(
    ground: Ground,
    tmp_path: Path,
    changed: dict[str, str],
    code: int,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    account_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("swarmd.cli.servers.disable_core_dumps", lambda: None)
    assert run_command(["signer", *options(ground, **changed)]) == code
    said = capfd.readouterr().err
    assert words in said and "Traceback" not in said
    assert not any(secret in said for secret in SECRETS)


async def test_one_audit_log_has_one_signer_and_one_account(ground: Ground, tmp_path: Path) -> None:
    async with signing(tmp_path, *options(ground)) as signer:
        second = await start(tmp_path, *options(ground))
        assert await second.ended() == ExitCode.IN_USE
        assert "another signer" in "".join(second.said)
        mode = stat.S_IMODE((tmp_path / "audit.jsonl").stat().st_mode)
        assert mode == 0o600
        await signer.stop()
    text = (tmp_path / "audit.jsonl").read_text(encoding="utf-8")
    (tmp_path / "audit.jsonl").write_text(text.replace(ADDRESS, OWNER), encoding="utf-8")
    foreign = await start(tmp_path, *options(ground))
    assert await foreign.ended() == ExitCode.BAD_DATA
    assert OWNER in "".join(foreign.said)


async def test_it_takes_the_chain_of_a_nodes_configuration(ground: Ground, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "urls").write_text(f"{ground.url}\n", encoding="utf-8")
    (tmp_path / "node.toml").write_text(
        f"""[swarm]
id = "digits"
[dht]
bootstrap = ["/ip4/127.0.0.1/tcp/1/p2p/{PEER}"]
[chain]
rpc = ["file:urls"]
chain_id = {CHAIN_ID}
contract = "{ground.contract}"
keystore = "../account.json"
passphrase = "../account.pass"
[chain.proxy]
org = "{ORG}"
""",
        encoding="utf-8",
    )
    async with signing(tmp_path, "--config", "node.toml", "--listen", "127.0.0.1:0", by_exec=True) as signer:
        assert (await signer.register(PEER)).status_code == 200
    assert (tmp_path / "data" / "signer.audit.jsonl").is_file()
    assert PASSPHRASE not in (tmp_path / "data" / "signer.audit.jsonl").read_text(encoding="utf-8")
