"""Endpoints, contract and account against real chains."""

import shutil
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tomlkit
from aiohttp import web

from swarmd.chain.fees import GWEI
from swarmd.cli import run_command
from swarmd.core.events import ChainUp, SubmissionPrepared, WorkerStarted
from swarmd.core.values import BlockRef, ChainSettings, SubmissionAttempt
from swarmd.dht.identity.identity import generate_identity
from swarmd.doctor.chain import EndpointReplies, judge_endpoints
from swarmd.doctor.checks import choose_checks
from swarmd.doctor.examination import examine
from tests.anvil import running_anvil
from tests.chain.grounds import acting, middleman, refusing
from tests.cli.owning import LISTEN, OwnChain, Shell
from tests.doctor.making import Made, ids

REFUSED = "http://127.0.0.1:1"


@pytest.fixture(scope="module")
def chain() -> Iterator[OwnChain]:
    with running_anvil() as url:
        yield OwnChain(url)


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Shell:
    return Shell(capsys, tmp_path)


@pytest.fixture(scope="module")
def origin(chain: OwnChain, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The creator's node of a swarm on the chain."""
    root = tmp_path_factory.mktemp("origin") / "a"
    command = ["swarm", "new", "Digits", "--dir", str(root), "--rpc", chain.url, "--listen", LISTEN]
    run_command(command)
    chain.fund(root)
    assert run_command(command) == 0
    return root


@pytest.fixture
def made(origin: Path, chain: OwnChain, tmp_path: Path) -> Iterator[Made]:
    """A copy of it; the chain is put back afterwards."""
    before = chain.say("evm_snapshot")
    shutil.copytree(origin, tmp_path / "a")
    node = Made.of(tmp_path / "a" / "config.toml", tmp_path / "a")
    node.peer = tomllib.loads(node.config.read_text())["dht"]["peer"]
    yield node
    chain.say("evm_revert", before)


def change(made: Made, **keys: Any) -> None:
    document = tomlkit.parse(made.config.read_text())
    document["chain"].update(keys)  # type: ignore[union-attr]
    made.config.write_text(tomlkit.dumps(document))


def severities(made: Made, name: str) -> dict[str, str]:
    return made.severities(name, offline=False)


def test_a_node_on_a_chain_that_is_well(made: Made, chain: OwnChain) -> None:
    report = made.report("rpc", "account", offline=False)
    assert ids(report, "warning", "error") == []
    assert set(ids(report, "ok")) == {"rpc", "account"} and ids(report, "note") == ["account.unregistered"]


@pytest.mark.anyio
async def test_every_endpoint_is_judged_by_itself(made: Made, chain: OwnChain) -> None:
    async with (
        middleman(chain.url, acting(lambda call: web.Response(status=401))) as denied,
        middleman(chain.url, acting(lambda call: web.Response(status=429, headers={"Retry-After": "7"}))) as throttled,
        middleman(chain.url, refusing(-32005, "daily quota used up")) as spent,
    ):
        with running_anvil("--chain-id", "999") as foreign:
            change(made, rpc=[denied.url, throttled.url, spent.url, foreign, REFUSED, chain.url])
            report = await examine(made.subject(offline=False), choose_checks(["rpc"]))
    assert "secret-key" not in repr(report)
    kinds = {(finding.id, finding.severity) for finding in report.findings}
    assert kinds == {
        ("rpc.denied", "warning"),
        ("rpc.throttled", "warning"),
        ("rpc.chain-id", "error"),
        ("rpc.unreachable", "warning"),
    }
    assert [finding.id for finding in report.findings].count("rpc.throttled") == 2
    told = next(finding.evidence for finding in report.findings if finding.id == "rpc.chain-id")
    assert "is of chain 999, chain.chain_id is 31337" in told


def test_a_chain_that_stopped(made: Made) -> None:
    change(made, rpc=[REFUSED])
    found = made.find("rpc", offline=False)
    assert found["rpc.none"].severity == "error" and REFUSED in found["rpc.none"].evidence
    assert severities(made, "account") == {"contract.unread": "warning"}


def test_endpoints_of_two_chains_with_one_id(made: Made, chain: OwnChain) -> None:
    with running_anvil("--timestamp", "1700000000") as other:
        change(made, rpc=[chain.url, other])
        assert severities(made, "rpc")["rpc.genesis"] == "error"


def seen(number: int = 100, at: float = 1000.0) -> EndpointReplies:
    return EndpointReplies("https://a.example", "a", 1, number, at, "g")


def test_an_endpoint_that_lags_and_a_chain_that_stands_still() -> None:
    behind = [each.id for each in judge_endpoints([seen(), seen(90)], 1, 1000.0)]
    assert behind == ["rpc.lag"]
    assert [each.id for each in judge_endpoints([seen()], 1, 1000.0 + 301)] == ["rpc.stale"]
    assert [each.id for each in judge_endpoints([seen()], 1, 1000.0 - 16)] == ["rpc.ahead"]
    assert list(judge_endpoints([seen(), seen(97)], 1, 1010.0)) == []


# --- the contract ---


def test_no_contract_at_the_address(made: Made) -> None:
    change(made, contract="0x" + "11" * 20)
    found = made.find("account", offline=False)["contract.missing"]
    assert found.severity == "error" and "0x1111" in found.evidence and "manifest" in found.fix


def test_a_contract_with_other_stages(made: Made) -> None:
    text = made.config.read_text()
    made.config.write_text(text.replace('kind = "digits"', 'kind = "gsm8k"').replace("stages = 1", "stages = 3", 1))
    found = made.find("account", offline=False)["contract.stages"]
    assert "counts 1 stages in a round, swarm.stages is 3" in found.evidence


def test_a_chain_that_was_reset(made: Made, chain: OwnChain) -> None:
    head = BlockRef(1, "0x" + "ab" * 32)
    up = ChainUp(31337, "0x" + "22" * 20, "0x" + "cd" * 32, head, 1, 0, 0, 0.0)
    made.log(WorkerStarted("chain", 1, 1), up, chain=ChainSettings(drive="never"))
    found = made.find("account", offline=False)["contract.reset"]
    assert found.severity == "error" and "0x" + "cd" * 32 in found.evidence


# --- the account ---


def coins(chain: OwnChain, made: Made, wei: int) -> str:
    address = chain.address(made.data)
    chain.say("anvil_setBalance", address, hex(wei))
    return address


def test_an_account_that_cannot_pay(made: Made, chain: OwnChain) -> None:
    address = coins(chain, made, 0)
    found = made.find("account", offline=False)["account.empty"]
    assert found.severity == "error" and f"{address} has 0 coins" in found.evidence
    assert found.fix == f"Send coins to {address} on chain 31337"
    coins(chain, made, 3 * 401_000 * GWEI)
    assert severities(made, "account")["account.low"] == "warning"


def test_a_days_budget_that_is_too_small_or_nearly_spent(made: Made, chain: OwnChain) -> None:
    coins(chain, made, 10**18)
    plain = made.config.read_text()
    made.config.write_text(plain + "\n[chain.fees]\nday_coins_max = 0.000001\n")
    found = made.find("account", offline=False)["account.budget"]
    assert found.severity == "warning" and "chain.fees.day_coins_max is 1e-06 coins" in found.evidence
    made.config.write_text(plain + "\n[chain.fees]\nday_coins_max = 1.0\n")
    assert "account.budget" not in made.find("account", offline=False)
    attempt = SubmissionAttempt("0xa", 4, b"signed", "9", str(9 * 10**17))
    head = BlockRef(1, "0x" + "ab" * 32)
    up = ChainUp(31337, "0x" + "22" * 20, "0x" + "cd" * 32, head, 1, 0, 0, 0.0)
    known = ChainSettings(drive="never", sends=True)
    made.log(WorkerStarted("chain", 1, 1), up, SubmissionPrepared("register", attempt), chain=known, at=time.time())
    assert "0.9 coins of 1 coins are signed for today" in made.find("account", offline=False)["account.budget"].evidence


def test_gas_that_is_dearer_than_allowed(made: Made, chain: OwnChain) -> None:
    text = made.config.read_text() + "\n[chain.fees]\nmax_gwei = 0.000000001\n"
    made.config.write_text(text)
    assert severities(made, "account")["account.fees"] == "warning"


@pytest.mark.parametrize(
    ("spoil", "evidence"),
    [
        (lambda data: (data / "account.pass").unlink(), "there is no passphrase file"),
        (lambda data: (data / "account.json").chmod(0o644), "others may read it"),
        (lambda data: (data / "account.pass").write_text("another passphrase\n"), "does not open"),
    ],
    ids=["no passphrase", "open to all", "wrong passphrase"],
)
def test_an_account_whose_key_cannot_be_used(made: Made, spoil: Callable[[Path], object], evidence: str) -> None:
    spoil(made.data)
    found = made.find("account")["account.keystore"]
    assert found.severity == "error" and evidence in found.evidence


def test_a_peer_that_another_account_registered(made: Made, chain: OwnChain, shell: Shell) -> None:
    from swarmd.chain.contract import encode_call

    holder = chain.w3.eth.accounts[0]
    contract = tomllib.loads(made.config.read_text())["chain"]["contract"]
    call = "0x" + bytes(encode_call("registerPeer(string)", made.peer)).hex()
    chain.w3.eth.wait_for_transaction_receipt(
        chain.w3.eth.send_transaction({"from": holder, "to": contract, "data": call})
    )
    found = made.find("account", offline=False)["account.registered"]
    assert found.severity == "error" and f"Use the account {holder}" in found.fix


def test_a_closed_swarm(shell: Shell, chain: OwnChain) -> None:
    command = ("swarm", "new", "Closed", "--dir", shell.root / "a", "--rpc", chain.url, "--listen", LISTEN, "--closed")
    shell(*command)
    chain.fund(shell.root / "a")
    shell.well(*command)
    made = Made.of(shell.root / "a" / "config.toml", shell.root / "a")
    assert "account.allowed" not in severities(made, "account")
    stranger = generate_identity()
    (made.data / "identity.key").unlink()
    (made.data / "identity.key").write_bytes(stranger.encode())
    text = made.config.read_text()
    made.config.write_text(text.replace(tomllib.loads(text)["dht"]["peer"], stranger.peer_id))
    found = made.find("account", offline=False)["account.allowed"]
    assert found.fix == f"Ask the swarm's creator for `swarmd swarm allow swarm.toml {stranger.peer_id}`"
    shutil.rmtree(shell.root / "a")
