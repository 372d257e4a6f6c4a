"""Numbers from outside, each as extreme as can be: they are refused, or within their bounds when they are taken."""

import ast
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

import swarmd
from swarmd.bounds import is_bounded
from swarmd.chain.signer_http import RegisterBody, RewardBody, WinnerBody
from swarmd.dht.evidence import EvidenceMessage, decode_evidence_message
from swarmd.dht.gossip import Hint
from swarmd.dht.store.parts import FindFilter, KeyPart, decode_key_part
from swarmd.dht.wire.bodies import LeaderboardBody, decode_leaderboard
from swarmd.dht.wire.invitations import Invitation
from swarmd.dht.wire.records import Payload, SignedRecord, decode_payload, decode_signed
from swarmd.errors import FrameError, RecordRejected
from swarmd.swarms.rollouts import Rollouts, decode_rollouts
from swarmd.training.reference.frame import MAGIC, PREFIX, VERSION, JobHeader, ResultHeader, _split_frame
from tests import extremes

DIGEST = "a" * 64


class Outside(NamedTuple):
    """A type that others fill: how it is encoded, and how it is read."""

    kind: Any
    read: Callable[[bytes], object]
    encode: Callable[[Any], bytes] = msgspec.msgpack.encode
    greatest: Mapping[str, int] = {}  # by field, where it may hold more than others: nothing is added to it


def json_of(kind: Any) -> Outside:
    return Outside(kind, msgspec.json.Decoder(kind, strict=False).decode, msgspec.json.encode, {"reward": 2**63 - 1})


def frame_of(kind: Any) -> Outside:
    def encode(value: Any) -> bytes:
        header = msgspec.msgpack.encode(value)
        return PREFIX.pack(MAGIC, VERSION, kind.NUMBER, len(header)) + header

    return Outside(kind, lambda body: _split_frame(body, kind)[0], encode)


OUTSIDE = [
    Outside(Payload, decode_payload, greatest={"work": 2**63 - 1}),
    Outside(SignedRecord, decode_signed),
    *(Outside(kind, msgspec.msgpack.Decoder(kind).decode) for kind in (Hint, Invitation)),
    Outside(EvidenceMessage, decode_evidence_message),
    Outside(FindFilter, msgspec.msgpack.Decoder(FindFilter).decode),
    Outside(KeyPart, lambda encoded: decode_key_part(encoded, 2**20)),
    Outside(LeaderboardBody, decode_leaderboard),
    Outside(Rollouts, decode_rollouts),
    *(json_of(kind) for kind in (RegisterBody, RewardBody, WinnerBody)),
    *(frame_of(kind) for kind in (JobHeader, ResultHeader)),
]
NAMED: dict[str, Any] = {"digest": DIGEST, "job": DIGEST, "model": DIGEST, "id": "a", "version": 1, "dtype": "int32"}
NAMED |= {"cut": [0], "turns": []}
REFUSED = (RecordRejected, FrameError, msgspec.DecodeError)

# What everything that is decoded into a type is, by the type's name where it is decoded. Read from outside: `OUTSIDE`
# above, or held in bounds by what reads it (block numbers are texts of 16 hex digits, which `swarmd.chain` looks at one
# by one). All else is a file of this node, its operator's, or what its own processes tell each other.
FROM_OUTSIDE = {
    *("Payload", "SignedRecord", "SignedTransaction", "Hint", "Invitation", "FindFilter", "KeyPart", "WorkerMessage"),
    *("EvidenceMessage", "LeaderboardBody", "Rollouts", "_RolloutsVersion", "kind"),
}
CHECKED = {
    *(
        "BlockHeader",
        "BoundedTarHeader",
        "SegmentHeader",
        "OwnRecordEntry",
        "LogEntry",
        "SignedSubmission",
        "RpcMessage",
    ),
    *(
        "ProbeAnswer",
        "Answer",
        "SubscriptionNotification",
        "self.type",
        "_UploadHeader",
        "_HeaderEntry",
        "WeightsOffer",
        "WeightsManifest",
        "PushOutcome",
    ),
    *("StepOutcome", "Outcome", "str", "list[str | None]", "list[str]", "list[Name]"),
}
OWN = {
    *("BackupManifest", "BundleManifest", "Manifest", "Backup", "Keystore", "ScryptParams", "Pbkdf2Params"),
    *("JournalContent", "Record", "AuditLine", "OutputLine", "UnitLine", "Line", "ChainConfig", "Config"),
    *("InitProfile", "SimProfile", "Status", "ControlRequest", "StopReply", "HttpRequest", "Copied"),
    *("SandboxLayout", "SavedStandings", "Summary", "PartialHistory", "_LeaderboardsSnapshot", "ChainSnapshot"),
    *(
        "SavedWithdrawals",
        "BackupNote",
        "Reference",
        "list[OwnRecordEntry]",
        "list[LogEntry]",
        "list[SignedSubmission]",
    ),
    *("list[ProbeQuestion]", "list[Question]", "list[RpcMessage]", "list[ProbeAnswer]", "list[Answer]"),
    *("list[DialResult]", "Commit", "Snapshot", "State", "list[Member]", "list[Report]", "EmbeddedRecipe"),
    *("ManifestRecipe", "CommandBase", "SignerSetup", "WebProcessSetup", "PushOrder"),
    *(
        "DifficultyLevel",
        "dict[str, CurriculumLevel]",
        "DatasetSource",
        "ConfigSource",
        "Source",
        "TrainingConfig",
        "RlSwarmName",
    ),
    *("Groups", "CheckpointMeta", "CheckpointListing", "SavedSizes", "ModelChoice", "NodeHealthState"),
    *("int", "tuple[str, ...]", "tuple[IssuedInvitation, ...]", "BookmarkHeader", "HistorySnapshot", "list[Keyframe]"),
    *("KeptLedger", "KeptTrained", "EventCounts", "tuple[list[UnreadBody], list[str], list[str]]"),
    *("tuple[list[StageRow], list[SkipRow], float]", "tuple[int, list[float], bytes, list[RoundMark]]"),
    *("dict[str, bytes]", "dict[str, msgspec.Raw]", "dict[str, Any]", "dict[str, int]", "dict[str, object]"),
    *("Message", "ToolDescription", "_RawRow", "list[_RawRow]", "dict[str, Digest]", "dict[str, dict[str, Any]]"),
}


def decoded_types() -> set[str]:
    """The types that the package decodes something into, as they are written there; the simulator has no outside."""
    package, found = Path(swarmd.__file__).parent, set()
    for file in package.rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        if "msgspec" in text and "sim" not in file.relative_to(package).parts:
            calls = (call for call in ast.walk(ast.parse(text)) if isinstance(call, ast.Call))
            found |= {ast.unparse(kind) for call in calls if (kind := _type_of(call)) is not None}
    return found


def _type_of(call: ast.Call) -> ast.expr | None:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    if name not in ("decode", "Decoder", "convert") or not ast.unparse(call.func).startswith("msgspec."):
        return None
    if name == "decode":
        return next((word.value for word in call.keywords if word.arg == "type"), None)
    return call.args[name == "convert"]


def test_of_everything_that_is_decoded_it_is_known_who_wrote_it() -> None:
    named = {kind for kind in decoded_types() if "(" not in kind}
    assert named - FROM_OUTSIDE - CHECKED - OWN == set(), "who fills these types, and what bounds their numbers?"


def test_whoever_minds_bytes_that_cannot_be_decoded_minds_those_nested_without_an_end() -> None:
    """msgspec raises RecursionError then, which is no DecodeError, and ends whoever did not expect it."""
    careless = []
    for file in Path(swarmd.__file__).parent.rglob("*.py"):
        for caught in (each for each in ast.walk(ast.parse(file.read_text())) if isinstance(each, ast.ExceptHandler)):
            names = ast.unparse(caught.type) if caught.type is not None else ""
            if "msgspec.DecodeError" in names and "RecursionError" not in names:
                careless.append(f"{file.name}:{caught.lineno}")
    assert careless == [], "catch swarmd.bounds.DECODE_ERRORS"


@pytest.mark.parametrize("outside", OUTSIDE, ids=lambda outside: getattr(outside.kind, "__name__", "Payload"))
def test_no_number_from_outside_is_beyond_its_bounds(outside: Outside) -> None:
    assert any(_taken(outside, example) for example in extremes.examples(outside.kind, NAMED)), "its example is none"
    for path, value in extremes.extremes(outside.kind, NAMED):
        try:
            taken = outside.read(outside.encode(value))
        except REFUSED:
            continue
        number = extremes.at(value, path)
        assert is_bounded(taken) or abs(number) <= outside.greatest.get(str(path[-1]), 0), (path, number)


def _taken(outside: Outside, value: Any) -> bool:
    try:
        outside.read(outside.encode(value))
    except REFUSED:
        return False
    return True
