"""simple_GRPO's side, written from the description of its wire format: plain requests and torch.save."""

import io
import json
import pickle
import struct
import zipfile
from collections.abc import Callable
from typing import Any

import pytest
import requests
import torch

from swarmd.training.reference.scoring import ReferenceScorer
from tests.training.reference.conftest import CALL_S, Serving, frame_of

Serve = Callable[..., Serving]
PROMPT = 5


def saved(value: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    torch.save(value, file, **options)
    return file.getvalue()


def pack(items: list[bytes]) -> bytes:
    return b"".join([struct.pack(">I", len(items)), *(struct.pack(">I", len(item)) + item for item in items)])


def unpack(body: bytes) -> list[Any]:
    """A frame's items: JSON first, tensors after it."""
    (count,) = struct.unpack_from(">I", body)
    place, items = 4, []
    for _ in range(count):
        (length,) = struct.unpack_from(">I", body, place)
        items.append(body[place + 4 : place + 4 + length])
        place += 4 + length
    assert place == len(body)
    return [json.loads(items[0]), *(torch.load(io.BytesIO(item), weights_only=True) for item in items[1:])]


def group_of(vocabulary: int, completion: int = 7, rows: int = 4, seed: int = 0) -> list[torch.Tensor]:
    """Inputs, advantages, log-probabilities of the generation, and two kinds of scores."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randint(0, vocabulary, (rows, PROMPT + completion), generator=generator)
    inputs[:, -2:] = 0  # padding on the right
    logs = -torch.rand(rows, completion, generator=generator)
    return [inputs, torch.randn(rows, generator=generator), logs, torch.ones(rows), torch.zeros(rows)]


def upload(server: Serving, tensors: list[torch.Tensor], plen: int = PROMPT) -> requests.Response:
    body = pack([json.dumps({"plen": plen}).encode(), *map(saved, tensors)])
    return requests.post(f"{server.url}/upload", data=body, timeout=CALL_S)


def get(server: Serving) -> list[Any]:
    """Asks until there is something, as the trainer does, only more often."""
    for _ in range(200):
        body = requests.get(f"{server.url}/get", timeout=CALL_S).content
        if body != b"empty":
            return unpack(body)
        server.reference.begun.acquire(timeout=0.05)
    raise AssertionError("nothing came")


def forward(reference: ReferenceScorer, inputs: torch.Tensor, plen: int) -> torch.Tensor:
    """What simple_GRPO's own server computes: no mask, all positions, cut from plen - 1."""
    logits = reference.model(inputs).logits[:, :-1]
    logs = logits.log_softmax(-1).gather(2, inputs[:, 1:, None]).squeeze(2)
    return logs[:, plen - 1 :]


@pytest.mark.parametrize(("sent", "received"), [(6, 7), (4, 5), (3, 4)])
def test_a_group_comes_back_with_the_references_log_probabilities(
    serve: Serve, embedded: ReferenceScorer, sent: int, received: int
) -> None:
    server = serve(compat=True)
    tensors = group_of(embedded.vocabulary_size)[: sent - 1]
    answer = upload(server, tensors)
    assert (answer.status_code, answer.content) == (200, b"tensor")
    head, inputs, rewards, logs, *others = items = get(server)
    assert len(items) == received and head == {"plen": PROMPT}
    for got, expected in zip([inputs, rewards, *others], tensors, strict=True):
        assert torch.equal(got, expected) and got.dtype == expected.dtype
    torch.testing.assert_close(logs, forward(embedded, tensors[0], PROMPT), atol=1e-5, rtol=1e-5)
    assert requests.get(f"{server.url}/get", timeout=CALL_S).content == b"empty"


def test_groups_come_back_in_the_order_in_which_they_came(serve: Serve, embedded: ReferenceScorer) -> None:
    server = serve(compat=True)
    for seed in range(4):
        upload(server, group_of(embedded.vocabulary_size, seed=seed))
    for seed in range(4):
        assert torch.equal(get(server)[1], group_of(embedded.vocabulary_size, seed=seed)[0])


def test_the_two_interfaces_do_not_take_each_others_results(serve: Serve, embedded: ReferenceScorer) -> None:
    server = serve(compat=True)
    server.ask("POST", "/v1/jobs", frame_of(embedded, "job-1"))
    assert server.ask("GET", "/v1/jobs/job-1?wait_s=20").status_code == 200
    assert server.ask("GET", "/get").content == b"empty"
    upload(server, group_of(embedded.vocabulary_size))
    assert server.ask("GET", "/v1/jobs/upload-1").status_code == 404
    assert len(get(server)) == 7


class Bomb:
    """Unpickles as a call."""

    def __reduce__(self) -> Any:
        return (bytearray, (1 << 36,))


def rewritten(item: bytes, compression: int = zipfile.ZIP_STORED, **files: bytes) -> bytes:
    """Pack the archive again, with files replaced."""
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(item)) as old, zipfile.ZipFile(file, "w", compression) as new:
        for name in old.namelist():
            new.writestr(name, files.get(name.rpartition("/")[2].replace(".", "_"), old.read(name)))
    return file.getvalue()


def hostile() -> dict[str, bytes]:
    plain = saved(torch.ones(2, 6, dtype=torch.long))
    return {
        "not an archive": b"PK\x03\x04 and so on",
        "a pickle": pickle.dumps(Bomb()),
        "a call": rewritten(plain, data_pkl=pickle.dumps(Bomb(), 2)),
        "an endless pickle": rewritten(plain, data_pkl=b"\x80\x02" + b"N0" * 5000 + b"N."),
        "compressed": rewritten(saved(torch.zeros(1000, 1000, dtype=torch.long)), zipfile.ZIP_DEFLATED),
        "expanded": saved(torch.ones(1, dtype=torch.long).expand(1 << 20, 1 << 20)),
        "a dictionary": saved({"inputs": torch.ones(2, 6)}),
        "an old format": saved(torch.ones(2, 6, dtype=torch.long), _use_new_zipfile_serialization=False),
        "no numbers of tokens": saved(torch.ones(2, 6)),
        "one row": saved(torch.ones(6, dtype=torch.long)),
        "nothing": saved(torch.ones(0, 6, dtype=torch.long)),
        "negative": saved(-torch.ones(2, 6, dtype=torch.long)),
        "unknown tokens": saved(torch.full((2, 6), 1 << 40)),
    }


@pytest.mark.parametrize("name", hostile())
def test_hostile_inputs_are_refused(serve: Serve, name: str) -> None:
    server = serve(compat=True)
    body = pack([b'{"plen": 3}', hostile()[name], saved(torch.ones(2))])
    answer = requests.post(f"{server.url}/upload", data=body, timeout=CALL_S)
    assert answer.status_code == 400 and answer.json()["error"]
    assert server.reference.count == 0


@pytest.mark.parametrize("head", [b"", b"{", b"[]", b"{}", b'{"plen": 0}', b'{"plen": "5"}', b'{"plen": 12}', b"\xff"])
def test_hostile_heads_are_refused(serve: Serve, embedded: ReferenceScorer, head: bytes) -> None:
    server = serve(compat=True)
    body = pack([head, *map(saved, group_of(embedded.vocabulary_size))])
    assert requests.post(f"{server.url}/upload", data=body, timeout=CALL_S).status_code == 400


def test_scores_of_another_shape_are_refused(serve: Serve, embedded: ReferenceScorer) -> None:
    server = serve(compat=True)
    for place in range(1, 5):
        tensors = group_of(embedded.vocabulary_size)
        tensors[place] = torch.ones(3)
        assert upload(server, tensors).status_code == 400
    assert upload(server, group_of(embedded.vocabulary_size)[:4]).status_code == 400  # five items
