"""The KL term's reference: always the model that the node began with, here or in a reference server.

* TRL 1.16 loads a reference model of its own if its `beta` is above 0. So `SwarmTrainer` is made with 0 and gets beta
and a `KlReference` afterwards: TRL then asks for the log-probabilities of its `ref_model`, which come from here. With
adapters and no server TRL itself switches the adapters off: the base, which is not trained, is the reference. * Token
ids go to a reference server, log-probabilities come back. Every call is limited in time and repeated a limited number
of times under the same id, so that nothing is computed twice. If all fail, that is an error: the model is not trained
without the configured KL term.
"""

import copy
import hashlib
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy as np
import torch
from transformers import PreTrainedModel

from swarmd.bounds import DECODE_ERRORS, Backoff
from swarmd.config import TrainingConfig
from swarmd.errors import ConfigError, FrameError, ReferenceFailed, ReferenceMismatch
from swarmd.http_client import HttpFailed, HttpRequest, send_request
from swarmd.http_server import load_token
from swarmd.training.cancellation import Cancellation, CancellationSource, Cancelled
from swarmd.training.models.model import Policy
from swarmd.training.reference.frame import JobHeader, Logs, ScoringBatch, decode_result, encode_job
from swarmd.training.reference.scoring import ReferenceScorer, freeze_model

REFERENCE_KEY = "ref_per_token_logps"  # TRL's key in a batch
GAP_MAX = 10.0  # nats by which the reference may find a token likelier; larger gaps are cut to this
ATTEMPTS_MAX = 16  # spread over more than 90 s even if each is refused at once, so that a server can restart
BACKOFF = Backoff(0.25, 8.0)
CALL_S = 120.0  # longest attempt
GIVE_UP_S = 2.0  # for telling the server that a job is no longer wanted
WAIT_S = 2.0  # longest single request for a result, within which a cancelled stage ends
ANSWER_BYTES_MAX = 256 << 20
REASON_CHARS_MAX = 200
FINAL = frozenset({400, 401, 403, 405, 409, 413})  # statuses that another try would get again
HINTS = {
    401: "It wants another bearer token: check training.reference.token",
    403: "It lets nobody in from here: check what stands between",
    405: "Something else listens there: check training.reference.url",
    413: "Raise its --body-mib, or train fewer questions in a step",
}


# Called with ids and mask, (batch, width), prompts padded on the left and completions on the right, and `keep`. Returns
# log-probabilities (batch, keep), float32, of the last `keep` tokens, fewer than all; 0 where the mask is 0.
KlReference = Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]


def make_frozen_reference(policy: Policy, temperature: float) -> KlReference:
    """Make a reference from a copy of the present policy. Its logits are divided by the temperature."""
    model = freeze_model(copy.deepcopy(policy.model))
    model.__dict__.pop("forward", None)  # TRL's own forward, which computes with the policy's weights
    scorer = ReferenceScorer(model, policy.device, policy.precision.mixed)
    return partial(scorer.log_probabilities, temperature=temperature)


class _RetryableError(Exception):
    """The attempt failed in a way that may be temporary."""


@dataclass(eq=False)
class ReferenceClient:
    """Client of a reference server. Raises ConfigError if the URL is not an HTTP address."""

    url: str
    model: str  # digest of the weights that the server must have
    temperature: float  # divides the logits
    token: str = ""
    name: str = "trainer"  # prefix of its jobs' ids
    cancellation: CancellationSource = Cancellation  # returns the running stage's cancellation

    def __post_init__(self) -> None:
        self.url = _check_url(self.url)

    def log_probabilities(self, ids: torch.Tensor, mask: torch.Tensor, keep: int) -> torch.Tensor:
        """Compute log-probabilities on the server; see `KlReference`.

        Raises:
            ReferenceFailed: after all attempts, the server cannot be reached, refuses, or sends an invalid answer.
            ReferenceMismatch: it has another model.
            Cancelled: the stage was cancelled meanwhile.
        """
        batch = ScoringBatch(
            ids.cpu().numpy().astype(np.int64), mask.cpu().numpy().astype(np.uint8), keep, self.temperature
        )
        rows, width = batch.ids.shape
        content = hashlib.sha256(batch.ids.tobytes() + batch.mask.tobytes() + f"{keep} {self.temperature}".encode())
        id = f"{self.name}-{content.hexdigest()[:32]}"
        frame = encode_job(JobHeader(id, rows, width, keep, "int32", self.temperature, self.model), batch)
        logs = self._request_result(id, frame)
        if logs.shape != (rows, keep):
            raise ReferenceMismatch(f"the reference server {self.url} answered for another batch")
        return torch.from_numpy(logs).to(ids.device)

    def _request_result(self, id: str, frame: bytes) -> Logs:
        """Make attempts until there is a result."""
        trouble = ""
        for failures in range(ATTEMPTS_MAX):
            self.cancellation().sleep(BACKOFF.after(failures) if failures else 0.0)
            try:
                return self._attempt_request(id, frame, time.monotonic() + CALL_S)
            except _RetryableError as error:
                trouble = str(error)
            except Cancelled:
                self._acknowledge(id, time.monotonic() + GIVE_UP_S)
                raise
        raise ReferenceFailed(
            f"the reference server {self.url} gave no log-probabilities in {ATTEMPTS_MAX} attempts: {trouble}",
            "Start it, or empty training.reference.url to keep the reference model in this process",
        )

    def _attempt_request(self, id: str, frame: bytes, deadline: float) -> Logs:
        status, body = self._send_request("POST", "/v1/jobs", frame, deadline)
        self._check(status, body)
        while status != 200 or body[:1] == b"{":
            self.cancellation().raise_if_requested()
            wait_s = max(min(WAIT_S, deadline - time.monotonic()), 0.0)
            status, body = self._send_request("GET", f"/v1/jobs/{id}?wait_s={wait_s:.3f}", b"", deadline)
            self._check(status, body)
        logs = self._decode_result(id, hashlib.sha256(frame).hexdigest(), body)
        self._acknowledge(id, deadline)
        return logs

    def _acknowledge(self, id: str, deadline: float) -> None:
        """Tell the server that the result has arrived or is no longer wanted; otherwise the job expires there."""
        with suppress(_RetryableError):
            self._send_request("DELETE", f"/v1/jobs/{id}", b"", deadline)

    def _decode_result(self, id: str, job: str, body: bytes) -> Logs:
        try:
            header, logs = decode_result(body)
        except FrameError as error:
            raise ReferenceFailed(f"the reference server {self.url} sent nonsense: {error.message}") from None
        self._check_model(header.model)
        if header.id != id or header.job != job:
            raise ReferenceMismatch(f"the reference server {self.url} answered for another job")
        return logs

    def _check_model(self, digest: str) -> None:
        if digest != self.model:
            raise ReferenceMismatch(
                f"the reference server {self.url} holds the weights {digest[:16]}, this node began with "
                f"{self.model[:16]}",
                "Start it with this node's training.model, training.revision and training.dtype",
            )

    def _check(self, status: int, body: bytes) -> None:
        """Raise if the answer is an error, or comes from another model."""
        if status in (200, 202):
            if body[:1] == b"{":
                self._check_model(str(_decode_object(body).get("model", "")))
            return
        table = _decode_object(body)
        if status == 409 and "model" in table:
            self._check_model(str(table["model"]))
        reason = str(table.get("error", ""))[:REASON_CHARS_MAX]
        if status in FINAL:
            raise ReferenceFailed(f"the reference server {self.url} refused: {status} {reason}", HINTS.get(status, ""))
        raise _RetryableError(f"{status} {reason}")

    def _send_request(self, method: str, path: str, body: bytes, deadline: float) -> tuple[int, bytes]:
        """Make one request and return status and body. Raises _RetryableError if no answer comes in time."""
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        headers |= {"Content-Type": "application/x-swarmd-reference"} if body else {}
        try:
            return send_request(HttpRequest(method, self.url + path, body, headers), deadline, ANSWER_BYTES_MAX)
        except HttpFailed as error:
            raise _RetryableError(str(error)) from None


def _check_url(url: str) -> str:
    """The URL without a final slash. Raises ConfigError."""
    try:
        parts = httpx.URL(url)
    except httpx.InvalidURL:  # raised also for a host name that is invalid in DNS
        parts = httpx.URL()
    odd = not parts.host or parts.query or parts.fragment or parts.userinfo or " " in url
    if odd or parts.scheme not in ("http", "https"):
        raise ConfigError(
            f"training.reference.url: {url!r} is not an HTTP address", "For example http://127.0.0.1:59807"
        )
    return url.rstrip("/")


def _decode_object(body: bytes) -> dict[str, object]:
    """Decode a JSON object; empty if the body is not one."""
    try:
        return msgspec.json.decode(body, type=dict[str, object])
    except DECODE_ERRORS:
        return {}


def make_reference(
    policy: Policy, training: TrainingConfig, root: Path, name: str, cancellation: CancellationSource
) -> KlReference | None:
    """Make the reference of a node; None without a KL term, or if TRL switches adapters off instead.

    Call it while the policy has the initial weights: before a checkpoint is loaded.

    Args:
        root: the data directory, to which the file of a token is relative.
        name: prefix of the ids of jobs.

    Raises:
        ConfigError: the server's URL or token is unusable, or the policy is quantised.
    """
    if not training.beta:
        return None
    if not training.reference.url:
        return (
            make_frozen_reference(policy, training.temperature) if isinstance(policy.model, PreTrainedModel) else None
        )
    if getattr(policy.model, "is_quantized", False) or training.quantization != "none":
        raise ConfigError(
            "training.reference.url is set, but a server cannot hold a quantised model",
            "Leave training.reference.url empty: the adapters are switched off for the reference",
        )
    model, token = policy.frozen_digest or policy.digest, load_token(training.reference.token, root)
    client = ReferenceClient(training.reference.url, model, training.temperature, token, name, cancellation)
    return client.log_probabilities


def clamp_reference_logps(batch: dict[str, Any], now: torch.Tensor) -> None:
    """Limit the reference's log-probabilities in TRL's batch to at most `GAP_MAX` above those of the policy.

    TRL computes exp(gap) - gap - 1. From about 18 nats on, only exp(gap) is left of it in float32, and from 88 on it is
    infinite. The policy itself draws such a token less than once in e**`GAP_MAX` tokens, but peers can write text that
    only the reference would.

    Args:
        now: log-probabilities under the present policy, (rows, tokens).
    """
    if REFERENCE_KEY in batch:
        batch[REFERENCE_KEY] = torch.minimum(batch[REFERENCE_KEY], now.detach() + GAP_MAX)
