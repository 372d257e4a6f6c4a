"""The HTTP interfaces over a real socket: answers, log-probabilities, streams, refusals."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import requests

from swarmd.training.models.model import Policy
from swarmd.training.serving.decoder import Decoder
from tests.training.serving.conftest import CALL_S, NAME, Serving, score

PROMPT = [5, 60, 70, 80]
CHAT = [{"role": "user", "content": "hello"}]
TOKEN = "canary-token-0123456789abcdef"
GENERATE = "/inference/v1/generate"
Serve = Callable[..., Serving]


def generate(server: Serving, prompt: list[int], **settings: Any) -> Any:
    return server.ask(GENERATE, model=NAME, token_ids=prompt, sampling_params={"logprobs": 1} | settings)


def events(answer: requests.Response) -> Iterator[Any]:
    """What a stream says, up to its end."""
    assert answer.headers["content-type"].startswith("text/event-stream")
    lines = [line for line in answer.iter_lines() if line]
    assert lines[-1] == b"data: [DONE]"
    yield from (json.loads(line.removeprefix(b"data: ")) for line in lines[:-1])


def test_tokens_come_with_the_log_probabilities_of_a_plain_forward_pass(server: Serving, served: Policy) -> None:
    """In the form that the client of renderers checks, whatever else is drawn beside them."""
    prompts = [PROMPT[: 1 + number % 4] * (1 + number) for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        told = list(pool.map(lambda prompt: generate(server, prompt, max_tokens=8 + len(prompt)), prompts))
    for prompt, answer in zip(prompts, told, strict=True):
        (choice,) = answer["choices"]
        content = choice["logprobs"]["content"]
        assert [each["token"] for each in content] == [f"token_id:{token}" for token in choice["token_ids"]]
        assert choice["finish_reason"] == ("stop" if choice["token_ids"][-1] == 1 else "length")
        assert len(choice["token_ids"]) <= 8 + len(prompt)
        expected = score(served, prompt, choice["token_ids"])
        assert [each["logprob"] for each in content] == pytest.approx(expected, abs=1e-4)
        assert answer["usage"]["prompt_tokens"] == len(prompt) and answer["request_id"]


def test_stop_tokens_end_a_completion_and_stay_in_it(server: Serving) -> None:
    plain = generate(server, PROMPT, max_tokens=12, temperature=0)["choices"][0]["token_ids"]
    (choice,) = generate(server, PROMPT, max_tokens=12, temperature=0, stop_token_ids=[plain[3]])["choices"]
    end = plain.index(plain[3]) + 1
    assert choice["token_ids"] == plain[:end] and choice["finish_reason"] == "stop"


def test_a_seed_draws_the_same_and_n_draws_others(server: Serving) -> None:
    first, second = (
        [each["token_ids"] for each in generate(server, PROMPT, max_tokens=12, seed=7, n=3)["choices"]]
        for _ in range(2)
    )
    assert first == second and first[0] != first[1] != first[2]


def test_a_chat_is_answered_through_the_models_template(server: Serving, served: Policy) -> None:
    told = server.ask("/v1/chat/completions", model=NAME, messages=CHAT, max_tokens=8, temperature=0, logprobs=True)
    (choice,) = told["choices"]
    prompt = served.tokenizer.apply_chat_template(CHAT, add_generation_prompt=True, return_dict=False)
    asked = generate(server, prompt, max_tokens=8, temperature=0)["choices"][0]
    assert told["object"] == "chat.completion" and told["id"].startswith("chatcmpl-") and told["model"] == NAME
    assert choice["message"] == {"role": "assistant", "content": served.decode_completion(asked["token_ids"])}
    logprobs = [each["logprob"] for each in choice["logprobs"]["content"]]
    assert logprobs == pytest.approx([each["logprob"] for each in asked["logprobs"]["content"]], abs=1e-5)
    assert told["usage"] == {"prompt_tokens": len(prompt), "completion_tokens": 8, "total_tokens": len(prompt) + 8}
    parts = [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]
    again = server.ask("/v1/chat/completions", messages=parts, max_completion_tokens=8, temperature=0)
    assert again["choices"][0]["message"] == choice["message"] and again["choices"][0]["logprobs"] is None


def test_alternatives_are_the_likeliest_tokens(server: Serving) -> None:
    asked = {"messages": CHAT, "max_tokens": 4, "temperature": 0, "logprobs": True, "top_logprobs": 3}
    for entry in server.ask("/v1/chat/completions", **asked)["choices"][0]["logprobs"]["content"]:
        top = [each["logprob"] for each in entry["top_logprobs"]]
        assert len(top) == 3 and top == sorted(top, reverse=True) and top[0] == entry["logprob"]


@pytest.mark.parametrize("kind", ["chat", "text"])
def test_a_stream_says_what_the_whole_answer_says(server: Serving, kind: str) -> None:
    path = "/v1/chat/completions" if kind == "chat" else "/v1/completions"
    body: dict[str, Any] = {"max_tokens": 40, "seed": 3, "n": 2, "temperature": 1.5}
    body |= {"messages": CHAT, "logprobs": True} if kind == "chat" else {"prompt": "hello", "logprobs": 2}
    whole = server.ask(path, **body)
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    pieces = list(events(server.post(path, body, stream=True)))
    assert pieces[-1]["choices"] == [] and pieces[-1]["usage"] == whole["usage"]
    assert len({piece["id"] for piece in pieces}) == 1 and len(pieces) > 5
    for index, choice in enumerate(whole["choices"]):
        told = [each["choices"][0] for each in pieces[:-1] if each["choices"][0]["index"] == index]
        assert [each["finish_reason"] for each in told if each["finish_reason"]] == [choice["finish_reason"]]
        if kind == "chat":
            assert told[0]["delta"]["role"] == "assistant"
            text, expected = "".join(each["delta"]["content"] for each in told), choice["message"]["content"]
            listed = [entry["token"] for each in told for entry in each["logprobs"]["content"]]
            assert listed == [entry["token"] for entry in choice["logprobs"]["content"]]
        else:
            text, expected = "".join(each["text"] for each in told), choice["text"]
            listed = [token for each in told for token in each["logprobs"]["tokens"]]
            assert listed == choice["logprobs"]["tokens"]
        assert text == expected


def test_a_text_that_ends_it_is_cut_off_and_never_streamed(server: Serving) -> None:
    body = {"prompt": "abc", "max_tokens": 60, "temperature": 0}
    text = server.ask("/v1/completions", **body)["choices"][0]["text"]
    stop = text[5:8]
    place = text.index(stop)
    (choice,) = server.ask("/v1/completions", **body, stop=[stop, "never there"])["choices"]
    assert (choice["text"], choice["finish_reason"]) == (text[:place], "stop")
    pieces = list(events(server.post("/v1/completions", body | {"stop": stop, "stream": True}, stream=True)))
    assert "".join(piece["choices"][0]["text"] for piece in pieces) == text[:place]


def test_an_echoed_prompt_is_scored_as_lm_eval_asks_for_it(server: Serving, served: Policy) -> None:
    body = {"prompt": [PROMPT, PROMPT[:2]], "max_tokens": 1, "temperature": 0, "logprobs": 1, "echo": True}
    for prompt, choice in zip([PROMPT, PROMPT[:2]], server.ask("/v1/completions", **body)["choices"], strict=True):
        told = choice["logprobs"]
        assert told["token_logprobs"][0] is None and told["top_logprobs"][0] is None
        assert told["token_logprobs"][1:-1] == pytest.approx(score(served, prompt[:1], prompt[1:]), abs=1e-4)
        assert len(told["tokens"]) == len(prompt) + 1 == len(told["text_offset"])
        assert max(told["top_logprobs"][-1].values()) == told["token_logprobs"][-1]
    (scored,) = server.ask("/v1/completions", prompt=PROMPT, max_tokens=0, logprobs=0, echo=True)["choices"]
    assert len(scored["logprobs"]["tokens"]) == len(PROMPT)
    assert scored["text"] == served.decode_completion(PROMPT)


def test_the_model_says_its_name_and_what_it_reads(server: Serving) -> None:
    (model,) = requests.get(f"{server.url}/v1/models", timeout=CALL_S).json()["data"]
    assert (model["id"], model["object"], model["max_model_len"]) == (NAME, "model", 2048)
    assert requests.get(f"{server.url}/v1/models/{NAME}", timeout=CALL_S).json() == model
    assert requests.get(f"{server.url}/v1/models/other", timeout=CALL_S).status_code == 404


@pytest.mark.parametrize(
    ("path", "body", "status", "told"),
    [
        ("/v1/chat/completions", {"model": "gpt-4", "messages": CHAT}, 404, "'gpt-4' does not exist"),
        ("/v1/chat/completions", {"messages": []}, 400, "messages"),
        ("/v1/chat/completions", {"messages": CHAT, "temperature": -1}, 400, "temperature"),
        ("/v1/chat/completions", {"messages": CHAT, "tools": [{"type": "function"}]}, 400, "tools is not supported"),
        ("/v1/chat/completions", {"messages": CHAT, "max_tokens": 4000}, 400, "maximum context length is 2048"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "text"),
        ("/v1/completions", {"prompt": "a" * 3000}, 400, "maximum context length"),
        ("/v1/completions", {"prompt": ""}, 400, "empty"),
        ("/v1/completions", {"prompt": {"a": 1}}, 400, "prompt"),
        ("/v1/completions", {"prompt": [1, "a"]}, 400, "prompt"),
        ("/v1/completions", {"prompt": "a", "frequency_penalty": 0.5}, 400, "frequency_penalty is not supported"),
        (GENERATE, {"token_ids": [1, 9999], "sampling_params": {}}, 400, "not from 0 to"),
        (GENERATE, {"token_ids": [1], "sampling_params": {"top_k": 5}}, 400, "top_k is not supported"),
        ("/v1/nowhere", {}, 404, "not found"),
    ],
)
def test_what_cannot_be_answered_is_refused_as_openai_does(
    server: Serving, path: str, body: Any, status: int, told: str
) -> None:
    answer = server.post(path, body)
    error = answer.json()["error"]
    assert (answer.status_code, set(error)) == (status, {"message", "type", "param", "code"})
    assert told in error["message"]


def test_settings_without_effect_are_taken(server: Serving) -> None:
    body = {"messages": CHAT, "max_tokens": 2, "user": "me", "top_k": -1, "stop": None, "tools": [], "n": None}
    assert server.ask("/v1/chat/completions", **body)["usage"]["completion_tokens"] <= 2


def test_a_long_body_and_one_that_is_not_json_are_refused(server: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    assert requests.post(f"{server.url}/v1/completions", data=b"{", timeout=CALL_S).status_code == 400
    monkeypatch.setattr("swarmd.training.serving.server.BODY_BYTES_MAX", 1000)
    answer = server.post("/v1/completions", {"prompt": "a" * 2000})
    assert answer.status_code == 413 and answer.json()["error"]["type"] == "request_too_large"


def test_a_token_is_asked_for_and_browsers_are_sent_away(serve: Serve, server: Serving) -> None:
    closed = serve(TOKEN)
    body = {"prompt": "a", "max_tokens": 1}
    for given, status in ((None, 401), (TOKEN[:-1], 401), (TOKEN, 200)):
        headers = {"Authorization": f"Bearer {given}"} if given else {}
        answer = closed.post("/v1/completions", body, headers=headers)
        assert answer.status_code == status
        assert status == 200 or answer.json()["error"]["type"] == "authentication_error"
    for headers in ({"Origin": "http://example.org"}, {"Host": "evil.example"}):
        assert server.post("/v1/completions", body, headers=headers).status_code == 403


def test_a_client_that_leaves_has_its_completion_ended(server: Serving) -> None:
    body = {"prompt": "abc", "max_tokens": 2000, "ignore_eos": True, "stream": True}
    with server.post("/v1/completions", body, stream=True) as answer:
        next(answer.iter_lines())
        (completion,) = server.decoder._going
    for _ in range(200):
        generate(server, PROMPT, max_tokens=2)
        if completion not in server.decoder._going:
            break
    assert completion.cancelled and completion not in server.decoder._going and len(completion.tokens) < 2000


def test_what_fails_is_told_and_the_next_request_is_answered(server: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("swarmd.training.serving.decoder._choose_tokens", lambda *_: 1 / 0)
        answer = server.post("/v1/completions", {"prompt": "a"})
        assert answer.status_code == 500 and "ZeroDivisionError" in answer.json()["error"]["message"]
        streamed = server.post("/v1/completions", {"prompt": "a", "stream": True})
        assert json.loads(streamed.text.splitlines()[0].removeprefix("data: "))["error"]["type"] == "server_error"
    assert server.ask("/v1/completions", prompt="a")["choices"]


def test_a_full_queue_says_when_to_come_again(server: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Decoder, "is_full", True)
    answer = server.post("/v1/completions", {"prompt": "a"})
    assert answer.status_code == 503 and int(answer.headers["Retry-After"]) > 0
