"""What submissions go out through: a wallet's nonces and prices, and what a signer proxy answers."""

import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import RawTestServer
from eth_account import Account
from hypothesis import given
from hypothesis import strategies as st

from swarmd.chain import senders as wallet_module
from swarmd.chain.endpoints import RpcPool
from swarmd.chain.ethereum import EthereumClient
from swarmd.chain.fees import GWEI, max_gas_price_wei, min_replacement_price_wei, quote_gas_price, replacement_price
from swarmd.chain.ports import Price
from swarmd.chain.senders import (
    KNOWN,
    POOR,
    TOKEN,
    UNTIMELY,
    AccountSigner,
    MinedAttempt,
    ProxySender,
    SignedTransaction,
    encode_submission_call,
    make_sender,
    make_wallet,
)
from swarmd.config import ChainConfig, FeesConfig, ProxyConfig
from swarmd.core.commands import Submit
from swarmd.core.events import (
    CommandFailed,
    RegistrationLog,
    SubmissionConfirmed,
    SubmissionPrepared,
    SubmissionRefused,
    SubmissionSent,
)
from swarmd.core.values import SubmissionAttempt
from swarmd.errors import (
    ChainError,
    ContractRefused,
    EndpointFailed,
    KeystoreError,
    RpcRefused,
    SignerError,
)
from swarmd.http_server import load_token
from swarmd.paths import NodeDirectory
from tests.chain.faults import Calls, Node, Places, account_named, nonce_of, settings, stop_all
from tests.chain.grounds import CHAIN_ID, Ground, ScriptedRpc

pytestmark = pytest.mark.anyio

REGISTER = Submit("submit/register/1", "register", "register")
KEY = Account.from_key("0x" + 32 * "17")
PRICES = st.integers(0, 10**14)
SIGNED = st.builds(
    SignedTransaction,
    nonce=st.integers(0, 2**32),
    price=st.builds(Price, st.integers(1, 10**14), st.none() | st.just(1)),
    gas=st.integers(21_000, 10**7),
    to=st.sampled_from(["", Account.from_key("0x" + 32 * "18").address]),
    content=st.binary(max_size=300),
)


# --- prices ---


@given(earlier=PRICES, tip=PRICES, asked=PRICES, asked_tip=PRICES, cap_gwei=st.integers(1, 10**5))
def test_a_replacement_is_an_eighth_dearer_and_within_the_bound(
    earlier: int, tip: int, asked: int, asked_tip: int, cap_gwei: int
) -> None:
    fees = FeesConfig(max_gwei=float(cap_gwei))
    price = replacement_price(Price(earlier, min(tip, earlier)), Price(asked, min(asked_tip, asked)), fees)
    if price is None:
        assert (
            max(asked, min_replacement_price_wei(earlier)) > max_gas_price_wei(fees)
            or min_replacement_price_wei(min(tip, earlier)) > min_replacement_price_wei(earlier) - 1
        )
        return
    assert price.tip_wei is not None
    assert earlier * 1.125 <= price.fee_wei <= max_gas_price_wei(fees)
    assert min(tip, earlier) * 1.125 <= price.tip_wei <= price.fee_wei
    assert price.fee_wei >= asked


@given(earlier=PRICES, asked=PRICES)
def test_a_replacement_without_1559_has_one_price(earlier: int, asked: int) -> None:
    price = replacement_price(Price(earlier), Price(asked), FeesConfig(max_gwei=1e9))
    assert price == Price(max(asked, min_replacement_price_wei(earlier)))


@given(said=SIGNED)
def test_what_is_signed_can_be_read_back(said: SignedTransaction) -> None:
    assert AccountSigner.decode_signed(AccountSigner(KEY, 7).sign_transaction(said)) == said


@given(raw=st.binary(max_size=120))
def test_any_bytes_are_a_transaction_or_said_to_be_none(raw: bytes) -> None:
    try:
        AccountSigner.decode_signed(SubmissionAttempt("0x12", 1, raw))
    except ChainError as error:
        assert "holds no transaction" in error.message


WORDS = {
    KNOWN: ("already known", "Known transaction", "AlreadyKnown", "transaction already imported"),
    UNTIMELY: (
        *("nonce too low: next nonce 5, tx nonce 4", "OldNonce", "replacement transaction underpriced"),
        *("max fee per gas less than block base fee: address 0x0", "ReplacementNotAllowed", "FeeTooLow"),
        *("transaction underpriced: gas tip cap 0, minimum needed 1", "Gas price below configured minimum gas price"),
    ),
    POOR: (
        *("insufficient funds for gas * price + value", "INSUFFICIENT_FUNDS", "Upfront cost exceeds account balance"),
        "sender doesn't have enough funds to send tx",
    ),
}


@pytest.mark.parametrize(("pattern", "message"), [(pattern, word) for pattern in WORDS for word in WORDS[pattern]])
def test_the_words_of_ethereums_clients_are_understood(pattern: re.Pattern[str], message: str) -> None:
    assert [each for each in WORDS if each.search(message)] == [pattern]


# --- what is signed ---


def registrations(ground: Ground) -> list[Any]:
    """Registrations on the chain."""
    return [log for logs in ground.logs().values() for log in logs if isinstance(log, RegistrationLog)]


def as_of_old(method: str, answer: Any) -> Any:
    """What a chain without EIP-1559 answers."""
    if method == "eth_getBlockByNumber":
        answer.pop("baseFeePerGas")
    return hex(3 * GWEI) if method == "eth_gasPrice" else answer


@pytest.mark.parametrize("old", [False, True])
async def test_the_price_is_of_the_chains_kind(ground: Ground, calls: RpcPool, old: bool) -> None:
    wallet = make_wallet(
        settings(ground, tip_gwei=0.5, legacy=old),
        Calls(calls, change=as_of_old) if old else calls,
        account_named(ground, "alice"),
    )
    ground.say("evm_setAutomine", False)
    first = await wallet.prepare_attempt("me", REGISTER, ())
    assert first is not None and await wallet.send_attempt("me", REGISTER, first) == first.hash
    second = await wallet.prepare_attempt("me", REGISTER, [first])
    assert second is not None and await wallet.send_attempt("me", REGISTER, second) == second.hash
    ground.say("evm_mine")
    prices = [AccountSigner.decode_signed(each).price for each in (first, second)]
    if old:
        assert prices == [Price(3 * GWEI), Price(min_replacement_price_wei(3 * GWEI))]
    else:
        assert [each.tip_wei for each in prices] == [GWEI // 2, min_replacement_price_wei(GWEI // 2)]
        assert prices[0].fee_wei > GWEI
    mined = await wallet.trace_attempts([first, second])
    assert isinstance(mined, MinedAttempt) and mined.succeeded and mined.hash == second.hash
    assert mined.block.hash == ground.hash_of(mined.block.number)


@pytest.mark.parametrize("drive", ["policy", "manager"])
async def test_every_call_is_the_contracts(ground: Ground, drive: Any) -> None:
    calls = {
        "register": ground.swarm.call("registerPeer", "pé\x00er"),
        "reward": ground.swarm.call("submitReward(uint256,uint256,int256,string)", 3, 1, -5, "pé\x00er"),
        "winners": ground.swarm.call("submitWinners", 3, ["a", "b"], "pé\x00er"),
        "advance": ground.swarm.call("advance" if drive == "policy" else "updateStageAndRound"),
    }
    for kind, call in calls.items():
        command = Submit("submit/x/1", "x", kind, 3, 1, -5, ("a", "b"))  # type: ignore[arg-type]
        assert encode_submission_call(command, "pé\x00er", drive) == call.content


async def test_a_node_that_drives_nothing_signs_no_step(ground: Ground, calls: RpcPool) -> None:
    wallet = make_wallet(settings(ground, drive="never"), calls, account_named(ground, "alice"))
    with pytest.raises(ChainError, match=r"chain\.drive"):
        await wallet.prepare_attempt("me", Submit("submit/advance/0/0/1", "advance/0/0", "advance"), ())


async def test_gas_has_a_margin_and_a_bound(ground: Ground, calls: RpcPool, monkeypatch: pytest.MonkeyPatch) -> None:
    account = account_named(ground, "alice")
    prepared = await make_wallet(settings(ground), calls, account).prepare_attempt("me", REGISTER, ())
    assert prepared is not None
    used = 166_000  # of the account's first registration, docs/CONTRACT.md; a shorter peer id takes less
    assert used // 2 < AccountSigner.decode_signed(prepared).gas < used * 1.3
    monkeypatch.setattr(wallet_module, "GAS_MAX", 50_000)
    with pytest.raises(ChainError, match="no more than 50000"):
        await make_wallet(settings(ground), calls, account).prepare_attempt("me", REGISTER, ())


async def test_the_bound_on_prices_holds(ground: Ground, calls: RpcPool) -> None:
    fees = FeesConfig(max_gwei=5.0, tip_gwei=100.0)
    ground.say("anvil_setNextBlockBaseFeePerGas", hex(4 * GWEI))
    ground.say("evm_mine")
    assert await quote_gas_price(EthereumClient(calls), fees) == Price(5 * GWEI, 5 * GWEI)
    ground.say("anvil_setNextBlockBaseFeePerGas", hex(5 * GWEI + 1))
    ground.say("evm_mine")
    with pytest.raises(ChainError, match=r"chain\.fees\.max_gwei is 5"):
        await quote_gas_price(EthereumClient(calls), fees)


async def test_a_refusal_of_the_contract_is_named_before_anything_is_signed(ground: Ground, calls: RpcPool) -> None:
    ground.swarm.register(ground.swarm.bob, "me")
    wallet = make_wallet(settings(ground), calls, account_named(ground, "alice"))
    with pytest.raises(ContractRefused) as refused:
        await wallet.prepare_attempt("me", REGISTER, ())
    assert refused.value.code == "PeerIdAlreadyRegistered"


async def test_a_replacement_keeps_the_nonce_and_withdrawing_does_nothing(ground: Ground, calls: RpcPool) -> None:
    account = account_named(ground, "alice")
    wallet = make_wallet(settings(ground), calls, account)
    ground.say("evm_setAutomine", False)
    first = await wallet.prepare_attempt("me", REGISTER, ())
    assert first is not None
    await wallet.send_attempt("me", REGISTER, first)
    assert await wallet.is_attempt_known(first) and await wallet.trace_attempts([first]) == "waiting"
    assert await wallet.send_attempt("me", REGISTER, first) == first.hash, "sent twice is sent once"
    second = await wallet.prepare_attempt("me", REGISTER, [first])
    third = await wallet.prepare_withdrawal([first, second])
    assert second is not None and third is not None
    for prepared in (second, third):
        assert prepared.nonce == first.nonce
        assert await wallet.send_attempt("me", REGISTER, prepared) == prepared.hash
    assert await wallet.send_attempt("me", REGISTER, first) is None, "too cheap by now"
    ground.say("evm_mine")
    mined = await wallet.trace_attempts([first, second, third])
    assert isinstance(mined, MinedAttempt) and mined.hash == third.hash and not mined.succeeded
    assert await wallet.trace_attempts([first, second]) == "gone"
    assert await wallet.send_attempt("me", REGISTER, first) is None, "its nonce is spent"
    assert nonce_of(ground, account) == 1 and not registrations(ground)


@pytest.mark.parametrize("words", ["intrinsic gas too low", "out of gas", "exceeds block gas limit"])
async def test_what_an_endpoint_refuses_for_want_of_gas_is_no_word_of_the_contract(words: str) -> None:
    def refuse(method: str, params: list[Any]) -> Any:
        raise RpcRefused(-32000, words)

    config = ChainConfig(rpc=("http://127.0.0.1:1",), chain_id=CHAIN_ID, contract="0x" + "c" * 40)
    signed = AccountSigner(KEY, CHAIN_ID).sign_transaction(
        SignedTransaction(0, Price(GWEI, GWEI), 9_000, KEY.address, b"")
    )
    with pytest.raises(RpcRefused, match=words):
        await make_wallet(config, ScriptedRpc(refuse), KEY).send_attempt("me", REGISTER, signed)


async def test_without_a_key_there_is_no_wallet(ground: Ground, calls: RpcPool, tmp_path: Any) -> None:
    with pytest.raises(KeystoreError):
        make_sender(settings(ground), NodeDirectory(tmp_path), calls)
    assert make_sender(settings(ground, sender="none"), NodeDirectory(tmp_path), calls) is None


REWARD = Submit("submit/reward/3/1/1", "reward/3/1", "reward", round=3, stage=1, reward=-7)
WINNERS = Submit("submit/winners/3/1", "winners/3", "winners", round=3, winners=("Qm1", "Qmé"))
Answerer = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
REWARD_CALL = "submitReward(uint256,uint256,int256,string)"


class LoginServer:
    """What upstream's server does with the account of alice. `spoil` may answer in its stead, before or after."""

    def __init__(self, ground: Ground) -> None:
        self.swarm = ground.swarm
        self.url = ""
        self.requests: list[tuple[str, bytes, dict[str, str]]] = []
        self.before: Answerer | None = None
        self.after: Answerer | None = None

    @property
    def posts(self) -> int:
        return len(self.requests)

    async def serve(self, request: web.BaseRequest) -> web.StreamResponse:
        content = await request.read()
        self.requests.append((request.path, content, dict(request.headers)))
        if self.before is not None:
            return await self.before(request)
        answer = self._submit(request.path.rsplit("/", 1)[1], json.loads(content))
        return await self.after(request) if self.after is not None else answer

    def _submit(self, method: str, body: dict[str, Any]) -> web.Response:
        peer = body["peerId"]
        place = [body[name] for name in ("roundNumber", "stageNumber", "reward", "winners") if name in body]
        name, status = {
            "register-peer": ("registerPeer", 400),
            "submit-reward": (REWARD_CALL, 500),
            "submit-winner": ("submitWinners", 500),
        }[method]
        arguments = (*place, peer)
        call = self.swarm.call(name, *arguments)
        try:
            error = self.swarm.reason(self.swarm.alice, call)
        except AssertionError:
            self.swarm.send(self.swarm.alice, name, *arguments)
            return web.json_response({"hash": "0x" + 64 * "a"})
        return web.json_response({"error": error, "metaMessages": []}, status=status)


@pytest.fixture
async def server(ground: Ground) -> AsyncIterator[LoginServer]:
    double = LoginServer(ground)
    async with RawTestServer(double.serve, shutdown_timeout=0.1) as served:
        double.url = str(served.make_url("/api"))
        yield double
        await stop_all()


def config_of(ground: Ground, server: LoginServer, account: str = "", **given: Any) -> ChainConfig:
    proxy = ProxyConfig(url=server.url, org="4f-org", account=account)
    return settings(ground, **({"sender": "proxy", "proxy": proxy, "stuck_s": 0.15} | given))


class Mortal(ProxySender):
    """One whose process may die around a request."""

    def __init__(self, config: ChainConfig, calls: Calls, places: Places) -> None:
        super().__init__(config, calls)
        self._places = places

    async def _post_request(self, method: str, body: dict[str, Any]) -> tuple[int, bytes]:
        self._places.pass_by("before the request")
        answer = await super()._post_request(method, body)
        self._places.pass_by("after the request")
        return answer


def answering(status: int = 200, text: str | None = None, **fields: Any) -> Answerer:
    """This answer to every request; a redirection leads to where nobody listens."""

    async def answer(request: web.BaseRequest) -> web.Response:
        where = {"Location": "http://127.0.0.1:1/"}
        return web.Response(status=status, text=json.dumps(fields) if text is None else text, headers=where)

    return answer


def proxy_node(ground: Ground, config: ChainConfig, *deaths: int) -> Node:
    places = Places(*deaths)
    return Node(ground, config, lambda calls: Mortal(config, calls, places), "me", places)


async def registering(ground: Ground, config: ChainConfig, *deaths: int) -> Node:
    """One that has wanted to be registered, and is through with it."""
    node = proxy_node(ground, config, *deaths)
    node.want("register")
    await node.run()
    return node


def once(ground: Ground, node: Node, name: str) -> None:
    assert len(node.of(SubmissionConfirmed, name)) == 1, node.story()
    assert len(registrations(ground)) == 1, node.story()


# --- the requests ---


async def test_requests_are_upstreams_byte_for_byte(ground: Ground, server: LoginServer, calls: RpcPool) -> None:
    server.before = answering(hash="0x12")
    proxy = ProxySender(config_of(ground, server), calls)
    for command in (REGISTER, REWARD, WINNERS):
        assert await proxy.send_attempt("Qmme", command, SubmissionAttempt()) == "0x12"
    assert [(path, content) for path, content, _ in server.requests] == [
        ("/api/register-peer", b'{"orgId": "4f-org", "peerId": "Qmme"}'),
        (
            "/api/submit-reward",
            b'{"orgId": "4f-org", "roundNumber": 3, "stageNumber": 1, "reward": -7, "peerId": "Qmme"}',
        ),
        (
            "/api/submit-winner",
            b'{"orgId": "4f-org", "roundNumber": 3, "winners": ["Qm1", "Qm\\u00e9"], "peerId": "Qmme"}',
        ),
    ]
    for _, _, headers in server.requests:
        assert headers["Content-Type"] == "application/json" and "Authorization" not in headers


async def test_a_bearer_token_goes_along_and_is_in_no_error(
    ground: Ground, server: LoginServer, calls: RpcPool
) -> None:
    server.before = answering(401, error="no")
    with pytest.raises(SignerError) as error:
        await ProxySender(config_of(ground, server), calls, "s3cret-token").send_attempt(
            "me", REGISTER, SubmissionAttempt()
        )
    assert server.requests[0][2]["Authorization"] == "Bearer s3cret-token"
    assert error.value.status == 401 and "chain.proxy.token" in str(error.value)
    assert "s3cret" not in str(error.value) and "/api" not in str(error.value)


@pytest.mark.parametrize(
    ("content", "mode"), [(None, 0), (b"", 0o600), (b"a b", 0o600), (b"\xff", 0o600), (b"abc", 0o644)]
)
def test_a_token_that_is_none_or_readable_by_others_is_refused(tmp_path: Any, content: bytes | None, mode: int) -> None:
    if content is not None:
        (tmp_path / "token").write_bytes(content)
        (tmp_path / "token").chmod(mode)
    with pytest.raises(KeystoreError) as error:
        load_token("token", tmp_path, TOKEN, chars_min=1)
    assert "token" in str(error.value)


# --- the answers ---


@pytest.mark.parametrize(
    ("status", "body", "kind", "words"),
    [
        (400, '{"error":"bad request generic"}', SignerError, "chain.proxy.org"),
        (404, '{"error":"user not found"}', SignerError, "user not found"),
        (302, "", SignerError, "302"),
        (429, "slow down", SignerError, "less often"),
        (500, '{"error":"An unexpected error occurred","original":{}}', EndpointFailed, "unexpected"),
        (200, "no json", EndpointFailed, "200"),
        (200, "[" * 30_000, EndpointFailed, "200"),
        (500, '{"error": {"a": 1}}', EndpointFailed, "500"),
        (500, '{"error":"' + "x" * 100_000 + '"}', EndpointFailed, "500"),
        (400, '{"error":"PeerIdAlreadyRegistered","metaMessages":[]}', ContractRefused, "PeerIdAlreadyRegistered"),
        (400, '{"error":"\\u001b[31mred"}', SignerError, "[31mred"),
    ],
)
async def test_every_answer_is_a_typed_error(
    ground: Ground, server: LoginServer, calls: RpcPool, status: int, body: str, kind: type[Exception], words: str
) -> None:
    server.before = answering(status, body)
    with pytest.raises(kind) as error:
        await ProxySender(config_of(ground, server), calls).send_attempt("me", REGISTER, SubmissionAttempt())
    assert words in str(error.value) and len(str(error.value)) < 600 and str(error.value).isprintable()


@pytest.mark.parametrize("hash", ["0xab\\ud800", "0x\\u001b[2Jab"])
async def test_what_a_hash_may_not_hold_is_left_out(
    ground: Ground, server: LoginServer, calls: RpcPool, hash: str
) -> None:
    """Half of a character fits into no log: the submission would have failed after it was sent."""

    server.before = answering(text=f'{{"hash":"{hash}"}}')
    name = await ProxySender(config_of(ground, server), calls).send_attempt("me", REGISTER, SubmissionAttempt())
    assert name is not None and name.isprintable() and name.startswith("0x")
    msgspec.msgpack.encode(SubmissionSent("register", name))


async def test_a_proxy_that_is_not_there_or_does_not_answer(
    ground: Ground, server: LoginServer, calls: RpcPool
) -> None:
    async def hang(request: web.BaseRequest) -> web.Response:
        request.transport.close() if request.transport else None
        return web.Response()

    server.before = hang
    with pytest.raises(EndpointFailed, match="broke off"):
        await ProxySender(config_of(ground, server), calls).send_attempt("me", REGISTER, SubmissionAttempt())
    nowhere = ProxyConfig(url="http://127.0.0.1:1/api", org="x")
    with pytest.raises(SignerError, match="is it running"):
        await ProxySender(settings(ground, proxy=nowhere), calls).send_attempt("me", REGISTER, SubmissionAttempt())


# --- exactly once ---


@pytest.mark.parametrize("known", [True, False])
async def test_every_kind_goes_through_once(ground: Ground, server: LoginServer, known: bool) -> None:
    node = await registering(ground, config_of(ground, server, ground.swarm.alice if known else ""))
    names = [node.want("reward", reward=5).submission, node.want("winners", winners=("me",)).submission]
    await node.run()
    assert server.posts == 3
    assert all(len(node.of(SubmissionConfirmed, name)) == 1 for name in ("register/0/0", *names))
    assert all(each.hash == "0x" + 64 * "a" for each in node.of(SubmissionSent))


@pytest.mark.parametrize("known", [True, False])
async def test_a_death_at_any_place_asks_once(ground: Ground, server: LoginServer, known: bool) -> None:
    config = config_of(ground, server, ground.swarm.alice if known else "")
    start = ground.say("evm_snapshot")
    deaths = 0
    while True:
        server.requests.clear()
        node = await registering(ground, config, deaths)
        await node.stop()
        once(ground, node, "register/0/0")
        assert server.posts == 1, f"died {node.places.names[deaths : deaths + 1]}: {node.story()}"
        if node.lives == 1:
            break
        ground.say("evm_revert", start)
        start = ground.say("evm_snapshot")
        deaths += 1
    assert deaths > 10


async def test_an_answer_that_is_lost_is_found_on_the_chain(ground: Ground, server: LoginServer) -> None:
    server.after = answering(502)
    node = await registering(ground, config_of(ground, server))
    once(ground, node, "register/0/0")
    assert server.posts == 1 and "may have submitted" in node.of(CommandFailed)[0].reason


async def test_what_a_proxy_took_and_never_sent_is_asked_for_again(ground: Ground, server: LoginServer) -> None:
    async def pretend(request: web.BaseRequest) -> web.Response:
        if server.posts > 1:
            server.before = None
        return web.json_response({"hash": "0x12"})

    server.before = pretend
    node = await registering(ground, config_of(ground, server))
    once(ground, node, "register/0/0")
    assert server.posts == 3
    assert all("does not have it 0.15 s after" in each.reason for each in node.of(CommandFailed))
    assert len({each.prepared for each in node.of(SubmissionPrepared)}) == 1


async def test_a_clear_no_is_asked_again_without_waiting(ground: Ground, server: LoginServer) -> None:
    async def refuse(request: web.BaseRequest) -> web.Response:
        if server.posts > 3:
            server.before = None
        return web.json_response({"error": "user not found"}, status=404)

    server.before = refuse
    node = await registering(ground, config_of(ground, server, stuck_s=1000))
    once(ground, node, "register/0/0")
    assert server.posts == 5


@pytest.mark.parametrize("known", [True, False])
async def test_registered_already_is_success_or_the_end(ground: Ground, server: LoginServer, known: bool) -> None:
    ground.swarm.register(ground.swarm.bob, "me")
    node = await registering(ground, config_of(ground, server, ground.swarm.alice if known else ""))
    if known:
        assert [(each.code, each.permanent) for each in node.of(SubmissionRefused)] == [("taken", True)]
    else:
        once(ground, node, "register/0/0")
    assert server.posts == 0


@pytest.mark.parametrize("known", [True, False])
async def test_a_refusal_by_name_is_recorded(ground: Ground, server: LoginServer, known: bool) -> None:
    """If the account is known, before the proxy is asked."""
    ground.swarm.register(ground.swarm.alice, "me")
    node = proxy_node(ground, config_of(ground, server, ground.swarm.alice if known else ""))
    node.want("winners", winners=("a", "a"))
    await node.run()
    assert node.codes() == ["InvalidVote"] and server.posts == (0 if known else 1)


async def test_a_step_of_the_contract_is_not_offered(ground: Ground, server: LoginServer) -> None:
    node = proxy_node(ground, config_of(ground, server))
    node.want("advance")
    await node.run()
    assert node.codes() == ["not-offered"] and server.posts == 0


@pytest.mark.parametrize("known", [True, False])
async def test_one_registered_while_the_proxy_is_asked(ground: Ground, server: LoginServer, known: bool) -> None:
    async def overtaken(request: web.BaseRequest) -> web.Response:
        ground.swarm.register(ground.swarm.bob, "me")
        return web.json_response({"error": "PeerIdAlreadyRegistered", "metaMessages": []}, status=400)

    server.before = overtaken
    node = await registering(ground, config_of(ground, server, ground.swarm.alice if known else ""))
    assert node.codes() == (["taken"] if known else []) and server.posts == 1


async def test_a_request_that_may_have_been_taken_is_not_made_again_at_once(
    ground: Ground, server: LoginServer
) -> None:
    server.before = answering(hash="0x12")
    node = proxy_node(ground, config_of(ground, server, stuck_s=1000))
    node.want("register")
    await node.run(lambda: bool(node.of(SubmissionSent)))
    await node.stop()
    since = node.ticks
    await node.run(lambda: node.ticks > since + 20)
    assert server.posts == 1 and not node.of(CommandFailed)
    ground.swarm.register(ground.swarm.alice, "me")
    await node.run()
    once(ground, node, "register/0/0")
    assert server.posts == 1
