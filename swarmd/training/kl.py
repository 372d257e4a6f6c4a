"""The KL term's reference: always the model that the node began with, here or in a reference server.

* TRL 1.16 loads a reference of its own when its `beta` is above 0. `SwarmTrainer` is made with 0, so it loads none, and
  is given the weight and a `KlReference` afterwards: TRL then asks for the log-probabilities of its `ref_model`, and
  those come from here. Only with adapters and no server is it left to TRL, which switches them off for its reference:
  the base does not train, so it is what the node began with.
* To a reference server go token ids, log-probabilities come back. Every call ends in time, and is made again a bounded
  number of times under the same id, so that nothing is computed twice. What cannot be had is an error: there is no
  training without the KL term that was asked for.
"""

from __future__ import annotations

import copy
import hashlib
import time
from pathlib import Path
from typing import Any, Protocol

import httpx
import msgspec
import numpy as np
import torch
from transformers import PreTrainedModel

from swarmd.bounds import DECODE_ERRORS, Backoff
from swarmd.config import TrainingConfig
from swarmd.errors import ConfigError, FrameError, ReferenceFailed, ReferenceMismatch
from swarmd.http_client import HttpFailed, HttpRequest, ask
from swarmd.http_server import load_token
from swarmd.training.cancellation import Cancellation, CancellationSource, Cancelled
from swarmd.training.models.model import Policy
from swarmd.training.reference.frame import JobHeader, Logs, ScoringBatch, decode_result, encode_job
from swarmd.training.reference.scoring import Frozen, ReferenceScorer, freeze

REFERENCE_KEY = "ref_per_token_logps"  # TRL's, of a batch
GAP_MAX = 10.0  # nats that a token may be likelier to the reference; further is as far
ATTEMPTS_MAX = 16  # over a minute and a half, where each is refused at once: a server that restarts is waited for
BACKOFF = Backoff(0.25, 8.0)
CALL_S = 120.0  # one attempt ends within this
GIVE_UP_S = 2.0  # for telling the server that a job is not wanted any more
WAIT_S = 2.0  # of one request for a result; a cancelled stage ends within this
ANSWER_BYTES_MAX = 256 << 20
REASON_CHARS_MAX = 200
FINAL = frozenset({400, 401, 403, 405, 409, 413})  # another try of the same would be answered in the same way
HINTS = {
    401: "It wants another bearer token: check training.reference.token",
    403: "It lets nobody in from here: check what stands between",
    405: "Something else listens there: check training.reference.url",
    413: "Raise its --body-mib, or train fewer questions in a step",
}


class KlReference(Protocol):
    """Whatever stands in TRL's `ref_model`."""

    def log_probabilities(self, ids: torch.Tensor, mask: torch.Tensor, keep: int) -> torch.Tensor:
        """Log-probabilities (batch, keep), float32, of the last `keep` tokens, fewer than all; 0 where the mask is 0.

        `ids` and `mask` are (batch, width): prompts padded on the left, completions on the right.
        """


class FrozenCopy:
    """A copy of the policy as it is now, which stays so. Its logits are divided by the temperature."""

    def __init__(self, policy: Policy, temperature: float) -> None:
        model = freeze(copy.deepcopy(policy.model))
        model.__dict__.pop("forward", None)  # one that TRL has put there computes with the policy's own weights
        self._reference = ReferenceScorer(Frozen(model, policy.device, policy.mixed))
        self._temperature = temperature

    def log_probabilities(self, ids: torch.Tensor, mask: torch.Tensor, keep: int) -> torch.Tensor:
        """See `KlReference`."""
        return self._reference.log_probabilities(ids, mask, keep, self._temperature)


class _Again(Exception):
    """The attempt failed in a way that may pass."""


class ReferenceClient:
    """Asks a reference server.

    Args:
        model: digest of the weights that it must hold.
        temperature: that its logits are divided by.
        name: of this client; part of the ids of its jobs.
        cancellation: gives that of the running stage.

    Raises:
        ConfigError: the URL is none.
    """

    def __init__(
        self,
        url: str,
        model: str,
        temperature: float,
        token: str = "",
        name: str = "trainer",
        cancellation: CancellationSource = Cancellation,
    ) -> None:
        self._url = _check_url(url)
        self._model = model
        self._temperature = temperature
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._name = name
        self._cancellation = cancellation

    def log_probabilities(self, ids: torch.Tensor, mask: torch.Tensor, keep: int) -> torch.Tensor:
        """See `KlReference`.

        Raises:
            ReferenceFailed: the server cannot be reached, refuses, or answers nonsense, after all attempts.
            ReferenceMismatch: it holds another model.
            Cancelled: the stage was cancelled meanwhile.
        """
        batch = ScoringBatch(
            ids.cpu().numpy().astype(np.int64), mask.cpu().numpy().astype(np.uint8), keep, self._temperature
        )
        rows, width = batch.ids.shape
        content = hashlib.sha256(batch.ids.tobytes() + batch.mask.tobytes() + f"{keep} {self._temperature}".encode())
        id = f"{self._name}-{content.hexdigest()[:32]}"
        frame = encode_job(JobHeader(id, rows, width, keep, "int32", self._temperature, self._model), batch)
        logs = self._ask(id, frame)
        if logs.shape != (rows, keep):
            raise ReferenceMismatch(f"the reference server {self._url} answered for another batch")
        return torch.from_numpy(logs).to(ids.device)

    def _ask(self, id: str, frame: bytes) -> Logs:
        """Attempt after attempt until there is a result."""
        trouble = ""
        for failures in range(ATTEMPTS_MAX):
            self._cancellation().wait(BACKOFF.after(failures) if failures else 0.0)
            try:
                return self._attempt(id, frame, time.monotonic() + CALL_S)
            except _Again as error:
                trouble = str(error)
            except Cancelled:
                self._acknowledge(id, time.monotonic() + GIVE_UP_S)
                raise
        raise ReferenceFailed(
            f"the reference server {self._url} gave no log-probabilities in {ATTEMPTS_MAX} attempts: {trouble}",
            "Start it, or empty training.reference.url to keep the reference model in this process",
        )

    def _attempt(self, id: str, frame: bytes, deadline: float) -> Logs:
        status, body = self._exchange("POST", "/v1/jobs", frame, deadline)
        self._check(status, body)
        while status != 200 or body[:1] == b"{":
            self._cancellation().check()
            wait_s = max(min(WAIT_S, deadline - time.monotonic()), 0.0)
            status, body = self._exchange("GET", f"/v1/jobs/{id}?wait_s={wait_s:.3f}", b"", deadline)
            self._check(status, body)
        logs = self._read(id, hashlib.sha256(frame).hexdigest(), body)
        self._acknowledge(id, deadline)
        return logs

    def _acknowledge(self, id: str, deadline: float) -> None:
        """The result is here, or not wanted any more. A server that does not hear of it forgets the job by itself."""
        try:
            self._exchange("DELETE", f"/v1/jobs/{id}", b"", deadline)
        except _Again:
            return

    def _read(self, id: str, job: str, body: bytes) -> Logs:
        try:
            header, logs = decode_result(body)
        except FrameError as error:
            raise ReferenceFailed(f"the reference server {self._url} sent nonsense: {error.message}") from None
        self._check_model(header.model)
        if header.id != id or header.job != job:
            raise ReferenceMismatch(f"the reference server {self._url} answered for another job")
        return logs

    def _check_model(self, digest: str) -> None:
        if digest != self._model:
            raise ReferenceMismatch(
                f"the reference server {self._url} holds the weights {digest[:16]}, this node began with "
                f"{self._model[:16]}",
                "Start it with this node's training.model, training.revision and training.dtype",
            )

    def _check(self, status: int, body: bytes) -> None:
        """Raise unless the answer is a good one."""
        if status in (200, 202):
            if body[:1] == b"{":
                self._check_model(str(_table(body).get("model", "")))
            return
        table = _table(body)
        if status == 409 and "model" in table:
            self._check_model(str(table["model"]))
        reason = str(table.get("error", ""))[:REASON_CHARS_MAX]
        if status in FINAL:
            raise ReferenceFailed(f"the reference server {self._url} refused: {status} {reason}", HINTS.get(status, ""))
        raise _Again(f"{status} {reason}")

    def _exchange(self, method: str, path: str, body: bytes, deadline: float) -> tuple[int, bytes]:
        """One request and its answer. Raises _Again where there is none in time."""
        headers = self._headers | ({"Content-Type": "application/x-swarmd-reference"} if body else {})
        try:
            return ask(HttpRequest(method, self._url + path, body, headers), deadline, ANSWER_BYTES_MAX)
        except HttpFailed as error:
            raise _Again(str(error)) from None


def _check_url(url: str) -> str:
    """The URL without a final slash. Raises ConfigError."""
    try:
        parts = httpx.URL(url)
    except httpx.InvalidURL:  # also of a host whose name is none in DNS
        parts = httpx.URL()
    odd = not parts.host or parts.query or parts.fragment or parts.userinfo or " " in url
    if odd or parts.scheme not in ("http", "https"):
        raise ConfigError(f"training.reference.url: {url!r} is no HTTP address", "For example http://127.0.0.1:59807")
    return url.rstrip("/")


def _table(body: bytes) -> dict[str, object]:
    """A JSON object; empty where the body is none."""
    try:
        return msgspec.json.decode(body, type=dict[str, object])
    except DECODE_ERRORS:
        return {}


def make_reference(
    policy: Policy, training: TrainingConfig, root: Path, name: str, cancellation: CancellationSource
) -> KlReference | None:
    """The reference of a node; None where there is none, or adapters are switched off instead.

    To be called while the policy has the weights that the node began with: before a checkpoint is loaded.

    `root` is the data directory, where a token's file lies; `name` is part of the ids of jobs.

    Raises:
        ConfigError: the server's URL or token is unusable, or the policy's numbers cannot be a server's.
    """
    if not training.beta:
        return None
    if not training.reference.url:
        return FrozenCopy(policy, training.temperature) if isinstance(policy.model, PreTrainedModel) else None
    if getattr(policy.model, "is_quantized", False) or training.quantization != "none":
        raise ConfigError(
            "training.reference.url is set, but a quantised model is no other's reference",
            "Leave training.reference.url empty: the adapters are switched off for the reference",
        )
    model, token = policy.frozen_digest or policy.digest, load_token(training.reference.token, root)
    return ReferenceClient(training.reference.url, model, training.temperature, token, name, cancellation)


def use_reference(trainer: Any, beta: float, reference: KlReference | None) -> None:
    """Have a trainer that was made with TRL's beta at 0 train with a KL term of weight `beta`."""
    trainer.beta = beta
    trainer.ref_model = reference


def bound_reference(batch: dict[str, Any], now: torch.Tensor) -> None:
    """Have the reference's log-probabilities in a batch of TRL's lie no more than `GAP_MAX` above those of the policy.

    TRL computes exp(gap) - gap - 1. From some 18 nats on float32 has no digits left for anything but exp(gap), and from
    88 on that is infinite. What the policy draws itself lies so far less than once in e**`GAP_MAX` tokens; peers can
    write what only the reference would.

    `now`: log-probabilities under the policy as it is, (rows, tokens).
    """
    if REFERENCE_KEY in batch:
        batch[REFERENCE_KEY] = torch.minimum(batch[REFERENCE_KEY], now.detach() + GAP_MAX)
