"""A chain with the built contracts on it, and what tests say and ask there."""

import json
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

import requests
from eth_utils.abi import abi_to_signature
from web3 import HTTPProvider, Web3
from web3.contract import Contract
from web3.exceptions import ContractCustomError, ContractLogicError

BUILD = Path(__file__).resolve().parents[2] / "contracts" / "build"
GAS_PRICE_WEI = 2 * 10**9
GAS_LIMIT = 29_000_000  # of a block of anvil; given with each transaction, so that none is estimated first
OWNER, ALICE, BOB, CAROL = range(4)  # places among anvil's accounts
INT_REWARD = "submitReward(uint256,uint256,int256,string)"
UINT_REWARD = "submitReward(uint256,uint256,uint256,string)"
SUBMITTED_BY_PEER = "hasSubmittedRoundStageReward(uint256,uint256,string)"
SUBMITTED_BY_ACCOUNT = "hasSubmittedRoundStageReward(uint256,uint256,address)"

Address = str


class Call(NamedTuple):
    """A call, encoded; results are decoded as the types of `returned`."""

    name: str
    content: bytes
    returned: tuple[str, ...]


class Said(NamedTuple):
    """An event as a test names it."""

    name: str
    values: tuple[Any, ...]


@cache
def artefact(name: str) -> dict[str, Any]:
    """A file of contracts/build by its name without the suffix."""
    loaded: dict[str, Any] = json.loads((BUILD / f"{name}.json").read_text(encoding="utf-8"))
    return loaded


@cache
def error_names() -> dict[str, str]:
    """The names of the contracts' errors by their selectors, 0x and eight digits."""
    entries = [entry for name in ("SwarmCoordinator-3", "ERC1967Proxy") for entry in artefact(name)["abi"]]
    return {
        Web3.keccak(text=abi_to_signature(entry))[:4].to_0x_hex(): entry["name"]
        for entry in entries
        if entry["type"] == "error"
    }


def connect(url: str) -> Web3:
    """Without what web3 asks beyond the call itself: the chain's id and the last block, before each transaction."""
    session = requests.Session()
    session.trust_env = False  # no proxy is looked for
    w3 = Web3(HTTPProvider(url, session=session))
    for name in ("validation", "gas_price_strategy", "ens_name_to_address"):
        w3.middleware_onion.remove(name)
    w3.eth.default_account = w3.eth.accounts[OWNER]
    return w3


def deploy(w3: Web3, name: str, *arguments: Any) -> Contract:
    """Puts a built contract on the chain, from the owner's account."""
    return deployed(w3, name, *arguments)[0]


def deployed(w3: Web3, name: str, *arguments: Any) -> tuple[Contract, int]:
    """The same, with the gas that it took."""
    built = artefact(name)
    factory = w3.eth.contract(abi=built["abi"], bytecode=built["bytecode"])
    creation = factory.constructor(*arguments).data_in_transaction
    receipt = mined(w3, w3.eth.send_transaction({"data": creation, "gas": GAS_LIMIT, "gasPrice": GAS_PRICE_WEI}))
    assert receipt["status"] == 1, f"{name} was not deployed"
    return w3.eth.contract(address=receipt["contractAddress"], abi=built["abi"]), receipt["gasUsed"]


class Swarm:
    """A coordinator, and anvil's accounts under names."""

    def __init__(self, w3: Web3, contract: Contract, stages: int) -> None:
        self.w3 = w3
        self.contract = contract
        self.stages = stages
        self.accounts: list[str] = [*w3.eth.accounts]
        self.owner, self.alice, self.bob, self.carol = self.accounts[:4]

    def call(self, name: str, *arguments: Any) -> Call:
        """A call of a function by its name, or by its signature where the name is overloaded.

        Encoded here: web3 picks an overload by what the arguments look like, and takes peer ids for ENS names.
        """
        entry = function_entry(self.contract.abi, name)
        types = [given["type"] for given in entry["inputs"]]
        content = Web3.keccak(text=abi_to_signature(entry))[:4] + self.w3.codec.encode(types, arguments)
        return Call(name, bytes(content), tuple(result["type"] for result in entry["outputs"]))

    def ask(self, name: str, *arguments: Any, sender: Address | None = None) -> Any:
        """What a call returns: the value, or a list where there are several."""
        call = self.call(name, *arguments)
        answer = self.w3.eth.call({"from": sender or self.carol, "to": self.contract.address, "data": call.content})
        values = [_plain(kind, value) for kind, value in zip(call.returned, self._decode(call, answer), strict=True)]
        return values[0] if len(values) == 1 else values

    def send(self, sender: Address, name: str, *arguments: Any) -> list[Said]:
        """Sends a transaction that must succeed; gives the events that it left, in order."""
        receipt = self._mine(sender, self.call(name, *arguments))
        assert receipt["status"] == 1, f"{name}{arguments} was reverted"
        return [self._said(log) for log in receipt["logs"]]

    def gas_of(self, sender: Address, name: str, *arguments: Any) -> int:
        receipt = self._mine(sender, self.call(name, *arguments))
        assert receipt["status"] == 1, f"{name}{arguments} was reverted"
        return int(receipt["gasUsed"])

    def refusal(self, sender: Address, name: str, *arguments: Any) -> str:
        """The error of a call that must not succeed, by name, or the text that it was reverted with."""
        call = self.call(name, *arguments)
        reason = self.reason(sender, call)
        assert self._mine(sender, call)["status"] == 0, f"{name}{arguments} is refused when asked and not when sent"
        return reason

    def reason(self, sender: Address, call: Call, value: int = 0) -> str:
        """Why a call with `value` wei is refused; it must be."""
        asked = {"from": sender, "to": self.contract.address, "data": call.content, "gas": GAS_LIMIT, "value": value}
        try:
            self.w3.eth.call(asked)
        except ContractCustomError as error:
            return error_names()[str(error.data)[:10]]
        except ContractLogicError as error:
            return str(error.message).removeprefix("execution reverted: ")
        raise AssertionError(f"{call.name} was not refused")

    def _decode(self, call: Call, answer: bytes) -> tuple[Any, ...]:
        decoded: tuple[Any, ...] = self.w3.codec.decode(call.returned, answer)
        return decoded

    def _mine(self, sender: Address, call: Call) -> Any:
        sent = {"from": sender, "to": self.contract.address, "data": call.content, "gas": GAS_LIMIT}
        return mined(self.w3, self.w3.eth.send_transaction({**sent, "gasPrice": GAS_PRICE_WEI}))

    def _said(self, log: Any) -> Said:
        event = self._events.get(log["topics"][0])
        assert event is not None, f"an event of no known kind: {log['topics'][0].to_0x_hex()}"
        arguments = event.process_log(log)["args"]
        return Said(event.event_name, tuple(arguments[entry["name"]] for entry in event.abi["inputs"]))

    @cached_property
    def _events(self) -> dict[bytes, Any]:
        """The contract's events by what their logs begin with."""
        return {Web3.keccak(text=abi_to_signature(event.abi)): event for event in self.contract.events}

    # What most tests begin with

    def register(self, sender: Address, *peers: str) -> None:
        for peer in peers:
            self.send(sender, "registerPeer", peer)

    def move_on(self, times: int = 1) -> None:
        for _ in range(times):
            self.send(self.owner, "updateStageAndRound")

    def next_round(self) -> None:
        self.move_on(self.stages - self.ask("currentStage"))

    def place(self) -> tuple[int, int]:
        return self.ask("currentRound"), self.ask("currentStage")

    def role(self, name: str) -> bytes:
        role: bytes = self.ask(name)
        return role

    def wait(self, seconds: int) -> None:
        """Puts the next block's time so much after the stage's beginning."""
        self.set_time(self.ask("stageStartedAt") + seconds)

    def set_time(self, seconds: int) -> None:
        """Mines a block of this time, in seconds since 1970."""
        self.w3.provider.make_request("evm_setNextBlockTimestamp", [seconds])
        self.w3.provider.make_request("evm_mine", [])


def function_entry(abi: Any, name: str) -> Any:
    """The function of that name or signature; there must be one."""
    found = [e for e in abi if e["type"] == "function" and name in (e["name"], abi_to_signature(e))]
    assert len(found) == 1, f"{len(found)} functions are called {name}"
    return found[0]


def mined(w3: Web3, transaction: bytes) -> Any:
    """The receipt, which anvil has at once."""
    return w3.eth.wait_for_transaction_receipt(transaction, timeout=30, poll_latency=0.01)


def _plain(kind: str, value: Any) -> Any:
    """Lists in the place of tuples, and addresses with their checksum."""
    if isinstance(value, tuple):
        return [_plain(kind, item) for item in value]
    return Web3.to_checksum_address(value) if kind.startswith("address") else value


def deploy_swarm(w3: Web3, stages: int, implementation: Contract) -> Swarm:
    """A proxy of its own before the implementation, initialised for the owner."""
    return deployed_swarm(w3, stages, implementation)[0]


def deployed_swarm(w3: Web3, stages: int, implementation: Contract) -> tuple[Swarm, int]:
    """The same, with the gas that the proxy took."""
    begin = implementation.encode_abi("initialize", args=[w3.eth.accounts[OWNER]])
    proxy, gas = deployed(w3, "ERC1967Proxy", implementation.address, begin)
    return Swarm(w3, w3.eth.contract(address=proxy.address, abi=implementation.abi), stages), gas
