"""The official anthropic client, unmodified, against the gateway; the manager's own matching looks at what arrives."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import anthropic
import openai
import pytest

from seamlessflow.config.sampling_sections import AgentSection
from seamlessflow.contracts import CallError
from seamlessflow_agent_runner.episodes.agent_launch import launch_of
from seamlessflow_trajectory_manager.trajectory.call_answers import too_long
from seamlessflow_trajectory_manager.trajectory.message_identity import identity_of
from tests.services.agent_runner.spoken_turns import Script, held, parents_of, turn

HELLO: list[Any] = [{"role": "user", "content": "hello"}]
CALC = {"name": "calc", "description": "sums", "input_schema": {"type": "object", "properties": {}}}
CHAT_CALC = {"type": "function", "function": {"name": "calc", "description": "sums", "parameters": CALC["input_schema"]}}
SCRIPT = [
    turn("Let me see.", '{"b":  4, "a": 3}', "not json", reasoning="a sum, then"),
    turn("", '{"x": 1e2}'),
    turn("7", reasoning="that is it"),
    turn("yes, 7"),
]


async def answered(client: Any, messages: list[Any], *, streamed: bool, **more: Any) -> Any:
    asking = {"model": "m", "max_tokens": 64, "messages": messages, "thinking": {"type": "adaptive"}, **more}
    if not streamed:
        return await client.messages.create(**asking)
    async with client.messages.stream(**asking) as stream:
        return await stream.get_final_message()


def echo_of(answer: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": answer.content}


async def test_a_whole_answer_by_the_asynchronous_client(gateway: Any) -> None:
    """Text, stop reason, usage and model name come as from Anthropic."""
    async with gateway.anthropic(anthropic.AsyncAnthropic) as client:
        answer = await answered(client, HELLO, streamed=False, extra_body={"temperature": 0.1, "max_tokens": 9})

    assert [block.to_dict() for block in answer.content] == [{"type": "text", "text": "echo: hello"}]
    assert (answer.stop_reason, answer.role, answer.type, answer.model) == ("end_turn", "assistant", "message", "m")
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (1, 7)
    sampling = gateway.manager.calls[0].sampling
    assert (sampling.temperature, sampling.max_tokens) == (1.0, 9)
    assert gateway.session.close() == ()


async def test_a_whole_answer_by_the_synchronous_client(gateway: Any) -> None:
    """The same by the client most agents use."""

    def ask() -> str:
        with gateway.anthropic(anthropic.Anthropic) as client:
            return client.messages.create(model="m", max_tokens=9, messages=HELLO).content[0].text

    assert await asyncio.to_thread(ask) == "echo: hello"


async def test_a_stream_joins_to_the_same_answer(gateway: Any) -> None:
    """The text in pieces; stop reason and usage at the end."""
    async with gateway.anthropic(anthropic.AsyncAnthropic) as client:
        async with client.messages.stream(model="m", max_tokens=9, messages=HELLO) as stream:
            pieces = [piece async for piece in stream.text_stream]
        streamed = await stream.get_final_message()
        whole = await answered(client, HELLO, streamed=False)

    assert len(pieces) > 1 and "".join(pieces) == "echo: hello"
    assert [block.text for block in streamed.content] == [block.text for block in whole.content]
    assert (streamed.stop_reason, streamed.usage) == (whole.stop_reason, whole.usage)
    assert gateway.session.close() == ()


@pytest.mark.parametrize("streamed", [False, True])
async def test_an_agent_with_tools_is_one_chain_from_one_root(gateway: Any, streamed: bool) -> None:
    """Parallel calls, arguments that are no JSON, thinking and plain text: each turn is recognised in the next call."""
    script = gateway.manager.reply = Script(SCRIPT)
    messages = list(HELLO)
    async with gateway.anthropic(anthropic.AsyncAnthropic) as client:
        for _ in SCRIPT:
            answer = await answered(client, messages, streamed=streamed, tools=[CALC], system="be brief")
            uses = [block for block in answer.content if block.type == "tool_use"]
            results = [{"type": "tool_result", "tool_use_id": use.id, "content": "7"} for use in uses]
            messages += [echo_of(answer), {"role": "user", "content": results or "sure?"}]

    assert parents_of(gateway.manager, script.said) == [None, 0, 1, 2]
    heard = [gateway.manager.contents[key] for key in gateway.manager.calls[-1].messages]
    roles = " ".join(message["role"] for message in heard)
    assert roles == "system user assistant tool tool assistant tool assistant user"
    turns = [message for message in heard if message["role"] == "assistant"]
    assert [identity_of(message) for message in turns] == [identity_of(message) for message in list(script.said.values())[:3]]
    assert [message.get("reasoning_content") for message in turns] == ["a sum, then", None, "that is it"]


async def test_parallel_tool_calls_carry_the_managers_ids_and_their_inputs(gateway: Any) -> None:
    """What is no JSON object is given raw: the tool refuses it and the model learns why, instead of a lost turn."""
    gateway.manager.reply = Script(SCRIPT)
    async with gateway.anthropic(anthropic.AsyncAnthropic) as client:
        answer = await answered(client, HELLO, streamed=False, tools=[CALC])

    call = gateway.manager.calls[0].call
    assert [block.type for block in answer.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert [block.id for block in answer.content[2:]] == [f"call_{call}_0", f"call_{call}_1"]
    assert [block.input for block in answer.content[2:]] == [{"a": 3, "b": 4}, {"_raw_arguments": "not json"}]
    assert answer.stop_reason == "tool_use" and call in answer.content[0].signature


async def test_signatures_tell_apart_two_turns_that_say_the_same(gateway: Any) -> None:
    """Side by side, one text after different thoughts: each is continued from its own."""
    script = gateway.manager.reply = Script(
        [*(turn("yes", reasoning=f"thought {number}") for number in range(3)), *SCRIPT[2:], turn("no")]
    )
    async with gateway.anthropic(anthropic.AsyncAnthropic) as client:
        answers = await asyncio.gather(*(answered(client, HELLO, streamed=False) for _ in range(3)))
        answers.sort(key=lambda answer: answer.content[0].thinking)
        for answer in reversed(answers):
            await answered(client, [*HELLO, echo_of(answer), {"role": "user", "content": "sure?"}], streamed=False)

    assert parents_of(gateway.manager, script.said) == [None, None, None, 2, 1, 0]


async def test_a_conversation_has_one_tree_whatever_it_is_spoken_in(gateway: Any) -> None:
    """Chat completions first, messages next: still one chain."""
    script = gateway.manager.reply = Script([turn("", '{"a": 3}'), turn("7"), turn("yes")])
    async with gateway.openai(openai.AsyncOpenAI) as client:
        first = await client.chat.completions.create(model="m", messages=HELLO, tools=[CHAT_CALC])
    (call,) = first.choices[0].message.tool_calls
    use = {"type": "tool_use", "id": call.id, "name": "calc", "input": {"a": 3}}
    result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "7"}]}
    said = [*HELLO, {"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    async with gateway.anthropic(anthropic.AsyncAnthropic) as client:
        second = await answered(client, said, streamed=False, tools=[CALC])
        await answered(client, [*said, echo_of(second), {"role": "user", "content": "sure?"}], streamed=True, tools=[CALC])

    assert parents_of(gateway.manager, script.said) == [None, 0, 1]


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_long_pause_is_invisible_to_an_impatient_client(gateway: Any, streamed: bool) -> None:
    """A client that gives up after 2 s of silence gets its answer after 5 s, by exactly one POST."""
    gateway.manager.reply = held(5.0)
    async with gateway.anthropic(anthropic.AsyncAnthropic, timeout=2.0) as client:
        answer = await answered(client, HELLO, streamed=streamed)

    assert answer.content[0].text == "at last"
    assert len(gateway.manager.calls) == 1
    assert gateway.session.close() == ()


@pytest.mark.parametrize("seconds", [0.0, 1.6], ids=["at once", "after the 200"])
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_prompt_too_long_gets_the_error_that_makes_agents_compact(gateway: Any, streamed: bool, seconds: float) -> None:
    """As the client's own exception and by one call, also when status 200 had gone out."""
    gateway.manager.reply = held(seconds, too_long(most=2048, got=9000))
    async with gateway.anthropic(anthropic.AsyncAnthropic) as client:
        with pytest.raises(anthropic.APIStatusError, match="prompt is too long: 9000 tokens > 2048 maximum") as caught:
            await answered(client, HELLO, streamed=streamed)

    if seconds == 0.0 or not streamed:
        assert isinstance(caught.value, anthropic.BadRequestError)
    assert caught.value.body["error"]["type"] == "invalid_request_error"
    assert len(gateway.manager.calls) == 1


async def test_what_is_not_supported_is_a_bad_request(gateway: Any) -> None:
    """Refused before anybody is asked."""
    async with gateway.anthropic(anthropic.AsyncAnthropic) as client:
        with pytest.raises(anthropic.BadRequestError, match="mcp_servers must be left out"):
            await answered(client, HELLO, streamed=False, extra_body={"mcp_servers": [{"url": "x"}]})
    assert gateway.manager.calls == []


async def test_a_failure_of_ours_is_raised_once(gateway: Any) -> None:
    """The client does not ask again for what will not change."""
    gateway.manager.reply = held(0.0, CallError(status=500, code="engine_refused", message="cannot be sampled"))
    async with gateway.anthropic(anthropic.AsyncAnthropic) as client:
        with pytest.raises(anthropic.InternalServerError, match="cannot be sampled") as caught:
            await answered(client, HELLO, streamed=False)

    assert caught.value.body["error"]["type"] == "api_error"
    assert len(gateway.manager.calls) == 1


async def test_a_wrong_key_is_an_authentication_error(gateway: Any) -> None:
    """401 in Anthropic's form."""
    base_url = gateway.gateway.base_url.removesuffix("/v1")
    async with anthropic.AsyncAnthropic(base_url=base_url, api_key="sf-guessed") as client:
        with pytest.raises(anthropic.AuthenticationError, match="ANTHROPIC_API_KEY") as caught:
            await answered(client, HELLO, streamed=False)

    assert caught.value.body["error"]["type"] == "authentication_error"
    assert gateway.manager.calls == []


async def test_calls_of_an_ended_episode_are_refused_at_once(gateway: Any) -> None:
    """409, which the client would otherwise retry."""
    gateway.sessions.close(gateway.session)
    async with gateway.anthropic(anthropic.AsyncAnthropic) as client:
        with pytest.raises(anthropic.ConflictError, match="over"):
            await answered(client, HELLO, streamed=False)


async def test_models_are_listed_as_anthropics_client_reads_them(gateway: Any) -> None:
    """One page; a model by any name is the same one."""
    async with gateway.anthropic(anthropic.AsyncAnthropic) as client:
        page = await client.models.list()
        names = [(model.id, model.type, model.display_name) async for model in page]
        other = await client.models.retrieve("any")

    assert names == [("tiny", "model", "tiny")]
    assert (page.has_more, page.first_id, page.last_id) == (False, "tiny", "tiny")
    assert (other.id, other.created_at.year) == ("any", 1970)


async def test_a_stream_is_not_collected_by_proxies(gateway: Any) -> None:
    """Those that would are asked not to."""
    async with (
        gateway.anthropic(anthropic.AsyncAnthropic) as client,
        client.messages.with_streaming_response.create(model="m", max_tokens=9, messages=HELLO, stream=True) as response,
    ):
        assert (response.headers["X-Accel-Buffering"], response.headers["Cache-Control"]) == ("no", "no-cache")


async def test_what_is_not_served_is_not_found(gateway: Any) -> None:
    """404 in Anthropic's form, with what there is."""
    async with gateway.anthropic(anthropic.AsyncAnthropic) as client:
        with pytest.raises(anthropic.NotFoundError, match="POST /v1/messages/count_tokens") as caught:
            await client.messages.batches.retrieve("x")

    assert caught.value.body["error"]["type"] == "not_found_error"


async def test_tokens_are_estimated_without_a_call(gateway: Any) -> None:
    """An estimate is what the gateway can give; agents use it to see whether they should compact."""
    async with gateway.anthropic(anthropic.AsyncAnthropic) as client:
        count = await client.messages.count_tokens(model="m", messages=HELLO, system="be brief", tools=[CALC])

    assert 10 < count.input_tokens < 60
    assert gateway.manager.calls == []


async def test_beta_calls_with_a_query_are_served_too(gateway: Any) -> None:
    """Claude Code posts to /v1/messages?beta=true."""
    async with gateway.anthropic(anthropic.AsyncAnthropic) as client:
        answer = await client.beta.messages.create(model="m", max_tokens=9, messages=HELLO, betas=["x"])

    assert answer.content[0].text == "echo: hello"


async def test_an_agent_that_knows_only_its_environment_finds_the_endpoint(
    gateway: Any, make_opened: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """A client made without arguments; and the probe that Claude Code makes first, without a key."""
    agent = AgentSection(env="sums", command=("true",))
    key, base_url = gateway.session.key, gateway.gateway.base_url
    launch = launch_of(agent, make_opened(), home=tmp_path, base_url=base_url, key=key, fresh=False)
    for name in ("ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY"):
        monkeypatch.setenv(name, launch.environment[name])
    monkeypatch.delenv("ANTHROPIC_AUTH_TOKEN", raising=False)

    async with anthropic.AsyncAnthropic() as client:
        answer = await answered(client, HELLO, streamed=False)
    async with aiohttp.ClientSession() as http, http.head(launch.environment["ANTHROPIC_BASE_URL"]) as probe:
        assert probe.status == 200

    assert answer.content[0].text == "echo: hello"
