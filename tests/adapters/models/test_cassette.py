"""A recorded session is replayed: on another machine, by agents in another order, up to the first difference."""

from __future__ import annotations

import json
import resource
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.adapters.models.cassette.format import (
    ComparableRequest,
    Placeholders,
    RequestNormalizer,
    RequestPacking,
    difference,
)
from callboard.adapters.models.cassette.recorder import Cassette, CassetteModel, Recording, RecordingModel
from callboard.ports.model import CallFault, CannotCount, Delta, ModelRequest, OnDelta, Reply
from callboard.types.errors import SettingsError, UsageError
from callboard.types.records import Fault, Usage

pytestmark = pytest.mark.anyio

HERE = Placeholders({"workspace": "/home/ada/work", "home": "/home/ada", "session": "s-111"})
THERE = Placeholders({"workspace": "/srv/copy", "home": "/root", "session": "s-222"})


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class ScriptedModel:
    """Model whose replies come from a function."""

    def __init__(self, answer: Callable[[ModelRequest], Reply | CallFault]) -> None:
        self._answer = answer

    async def complete(self, request: ModelRequest, on_delta: OnDelta) -> Reply:
        await anyio.sleep(0)
        answer = self._answer(request)
        if isinstance(answer, CallFault):
            raise answer
        return answer

    async def count(self, request: ModelRequest) -> int:
        if request.attempt:
            raise CannotCount("HTTP 404: no such path")
        return 1_234

    async def aclose(self) -> None: ...


def request(places: Placeholders, ordinal: int = 1, agent: str = "lead", **changes: Any) -> ModelRequest:
    """Return request `ordinal` of a growing conversation that mentions paths of its machine."""
    where = places.values["workspace"]
    texts = [f"message {number} about {where}/ünï.py and {places.values['home']}/x" for number in range(ordinal)]
    messages = [json.dumps({"role": "user", "content": [{"type": "text", "text": text}]}).encode() for text in texts]
    plain = ModelRequest(
        session=places.values["session"],
        agent=agent,
        ordinal=ordinal,
        attempt=1,
        model="claude-test",
        max_tokens=8_000,
        shared_system=json.dumps([{"type": "text", "text": f"You work in {where}."}]).encode(),
        tools=b'[{"name":"bash"}]',
        messages=messages,
    )
    return replace(plain, **changes)


def file_reply(asked: ModelRequest) -> Reply:
    path = json.loads(asked.messages[-1])["content"][0]["text"].split()[3]
    block = {"type": "tool_use", "id": f"toolu_{asked.agent}_{asked.ordinal}", "name": "read", "input": {"path": path}}
    thought = {"type": "thinking", "thinking": "hm", "signature": "c2ln"}
    usage = Usage(input_tokens=asked.ordinal, output_tokens=2)
    return Reply((thought, {"type": "text", "text": "Let me"}, block), "tool_use", usage, "m", "msg_1", {2: "twice"})


async def record(path: Path, *requests: ModelRequest, answer: Any = file_reply) -> None:
    model = RecordingModel(ScriptedModel(answer), Recording(path, HERE, {"model": "claude-test"}))
    for asked in requests:
        try:
            await model.complete(asked, lambda _: None)
        except CallFault:
            continue
    await model.aclose()


async def replay(path: Path, asked: ModelRequest, places: Placeholders = THERE) -> Reply:
    return await CassetteModel(Cassette(path, places)).complete(asked, lambda _: None)


async def test_a_replay_on_another_machine_speaks_of_that_machine(tmp_path: Path) -> None:
    await record(tmp_path / "c", *(request(HERE, n) for n in (1, 2, 3)))
    reply = await replay(tmp_path / "c", request(THERE, 2))
    assert reply == file_reply(request(THERE, 2))
    assert reply.blocks[2]["input"] == {"path": "/srv/copy/ünï.py"}
    text = (tmp_path / "c").read_text()
    assert not any(place in text for place in HERE.values.values())


async def test_a_path_of_the_machine_is_none_in_another_word_or_path(tmp_path: Path) -> None:
    box = Placeholders({"workspace": "/app", "home": "/root", "session": "s-111"})
    words = "src/app/main.py src/rootReducer.js /apple /app.bak ../app"

    def asked(places: Placeholders) -> ModelRequest:
        paths = "{workspace}, {workspace}/x, file://{workspace}/y, {home}. {home}".format_map(places.values)
        return request(places, shared_system=json.dumps([{"type": "text", "text": f"{words} {paths}"}]).encode())

    model = RecordingModel(ScriptedModel(file_reply), Recording(tmp_path / "c", box, {"model": "m"}))
    await model.complete(asked(box), lambda _: None)
    await model.aclose()
    assert await replay(tmp_path / "c", asked(THERE)) == file_reply(asked(THERE))
    assert words in (tmp_path / "c").read_text()


async def test_a_cassette_that_replaced_parts_of_words_still_plays_where_it_was_recorded(tmp_path: Path) -> None:
    box = Placeholders({"workspace": "/app", "home": "/root", "session": "s-111"})
    asked = request(box, shared_system=b'[{"text":"src/app","type":"text"}]')
    model = RecordingModel(
        ScriptedModel(file_reply), Recording(tmp_path / "c", replace(box, whole=False), {"model": "m"})
    )
    await model.complete(asked, lambda _: None)
    await model.aclose()
    text = (tmp_path / "c").read_text()
    assert "src{{callboard:workspace}}" in text
    (tmp_path / "c").write_text(text.replace('"paths":"whole",', "", 1))
    assert await replay(tmp_path / "c", asked, box) == file_reply(asked)


async def test_agents_may_play_in_any_order_and_all_at_once(tmp_path: Path) -> None:
    agents = [f"mate-{n}" for n in range(10)]
    model = RecordingModel(ScriptedModel(file_reply), Recording(tmp_path / "c", HERE, {"model": "m"}))

    async def work(agent: str) -> None:
        for ordinal in range(1, 6):
            await model.complete(request(HERE, ordinal, agent), lambda _: None)

    async with anyio.create_task_group() as tasks:
        for agent in agents:
            tasks.start_soon(work, agent)
    await model.aclose()
    replay = CassetteModel(Cassette(tmp_path / "c", THERE))
    for agent in reversed(agents):
        for ordinal in (1, 2, 3, 4, 5):
            asked = request(THERE, ordinal, agent)
            assert await replay.complete(asked, lambda _: None) == file_reply(asked)


async def test_faults_are_played_too_attempt_by_attempt(tmp_path: Path) -> None:
    def fail_once(asked: ModelRequest) -> Reply | CallFault:
        fault = Fault(kind="overloaded", message="busy", status=529, usage=Usage(input_tokens=5))
        return CallFault(fault, "half a") if asked.attempt == 1 else file_reply(asked)

    await record(tmp_path / "c", request(HERE, 1), request(HERE, 1, attempt=2), answer=fail_once)
    with pytest.raises(CallFault) as caught:
        await replay(tmp_path / "c", request(THERE, 1))
    assert (caught.value.fault.kind, caught.value.partial) == ("overloaded", "half a")
    assert caught.value.fault.usage == Usage(input_tokens=5)
    assert (await replay(tmp_path / "c", request(THERE, 1, attempt=2))).stop_reason == "tool_use"
    assert (await replay(tmp_path / "c", request(THERE, 1, attempt=7))).stop_reason == "tool_use"


async def test_what_is_played_is_shown(tmp_path: Path) -> None:
    await record(tmp_path / "c", request(HERE, 1))
    shown: list[Delta] = []
    await CassetteModel(Cassette(tmp_path / "c", THERE)).complete(request(THERE, 1), shown.append)
    assert [(delta.kind, delta.text) for delta in shown] == [("thinking", "hm"), ("text", "Let me"), ("tool", "read")]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"max_tokens": 16_000}, "max_tokens: recorded 8000, now 16000"),
        ({"tools": b'[{"name":"bash"},{"name":"read"}]'}, 'tools[1]: recorded nothing, now {"name": "read"}'),
        ({"shared_system": b'[{"type":"text","text":"You play."}]'}, "system[0].text: recorded"),
        ({"messages": request(THERE, 2).messages}, "3 messages were recorded, 2 are sent now"),
        (
            {"messages": [*request(THERE, 2).messages, b'{"role":"user","content":[{"type":"image"}]}']},
            'messages[2].content[0].text: recorded "message 2',
        ),
    ],
)
async def test_the_first_difference_is_told_with_its_place_and_both_texts(
    changes: dict[str, Any], told: str, tmp_path: Path
) -> None:
    await record(tmp_path / "c", *(request(HERE, n) for n in (1, 2, 3)))
    with pytest.raises(CallFault) as caught:
        await replay(tmp_path / "c", request(THERE, 3, **changes))
    assert caught.value.fault.kind == "invalid", "an invalid call is never retried"
    assert "call 3 of lead (turn)" in caught.value.fault.message
    assert told in caught.value.fault.message
    assert len(caught.value.fault.message) < 500


async def test_the_model_may_have_another_name_in_a_replay(tmp_path: Path) -> None:
    await record(tmp_path / "c", request(HERE, 1))
    assert Cassette(tmp_path / "c", THERE).model == "claude-test"
    assert (await replay(tmp_path / "c", request(THERE, 1, model="cassette:c"))).stop_reason == "tool_use"


async def test_an_unknown_call_is_told_with_what_there_is(tmp_path: Path) -> None:
    await record(tmp_path / "c", request(HERE, 1), request(HERE, 2), request(HERE, 1, purpose="summary"))
    for asked in (request(THERE, 3), request(THERE, 1, "alice"), request(THERE, 2, purpose="summary")):
        with pytest.raises(CallFault, match=r"lead \(summary\) 1 to 1, lead \(turn\) 1 to 2") as caught:
            await replay(tmp_path / "c", asked)
        assert caught.value.fault.kind == "invalid"


async def test_the_file_grows_with_the_session_and_not_with_its_square(tmp_path: Path) -> None:
    await record(tmp_path / "short", *(request(HERE, n) for n in range(1, 21)))
    await record(tmp_path / "long", *(request(HERE, n) for n in range(1, 81)))
    assert (tmp_path / "long").stat().st_size < 4.5 * (tmp_path / "short").stat().st_size


async def test_a_recording_is_private_and_never_written_over(tmp_path: Path) -> None:
    await record(tmp_path / "c", request(HERE, 1))
    assert (tmp_path / "c").stat().st_mode & 0o777 == 0o600
    with pytest.raises(UsageError, match="exists already"):
        Recording(tmp_path / "c", HERE, {"model": "m"})
    with pytest.raises(UsageError, match="cannot record"):
        Recording(tmp_path / "no" / "c", HERE, {"model": "m"})


async def test_a_disk_that_refuses_the_line_ends_the_call_and_says_so(tmp_path: Path) -> None:
    model = RecordingModel(ScriptedModel(file_reply), Recording(tmp_path / "c", HERE, {"model": "m"}))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))  # the effect of a full disk on a write
    try:
        with pytest.raises(CallFault, match="recording cannot continue: File too large") as caught:
            await model.complete(request(HERE, 1), lambda _: None)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.fault.kind == "invalid"
    await model.aclose()


@pytest.mark.parametrize(
    ("content", "where"),
    [
        (b"", "c: is not a cassette"),
        (b"hello\n", "c:1: "),
        (b"[]\n", "c:1: "),
        (b'{"cassette": 99, "model": "m"}\n', "c:1: is not a cassette of version 1"),
        (b'{"cassette": 1, "model": "m"}\n{"call": 1}\n', "c:2: "),
        (b'{"cassette": 1, "model": "m"}\n\xff\n', "c:2: "),
        (b'{"cassette": 1, "model": "m"}\n{"call": 1, "agent": "a", "purpose": "turn", "attempt": 1, '
         b'"request": {"model": "m", "max_tokens": 1, "keep": 0, "messages": []}}\n', "c:2: "),
    ],
)  # fmt: skip
async def test_what_is_no_cassette_is_refused_with_file_and_line(content: bytes, where: str, tmp_path: Path) -> None:
    (tmp_path / "c").write_bytes(content)
    with pytest.raises(SettingsError, match=where):
        Cassette(tmp_path / "c", THERE)


async def test_a_missing_cassette_is_told(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot read the cassette"):
        Cassette(tmp_path / "nothing", THERE)


async def test_a_recording_killed_in_the_middle_of_a_line_can_be_played_up_to_there(tmp_path: Path) -> None:
    await record(tmp_path / "c", request(HERE, 1), request(HERE, 2))
    whole = (tmp_path / "c").read_bytes()
    (tmp_path / "c").write_bytes(whole[:-20])
    assert (await replay(tmp_path / "c", request(THERE, 1))).stop_reason == "tool_use"
    with pytest.raises(CallFault, match="holds no call 2"):
        await replay(tmp_path / "c", request(THERE, 2))


async def test_the_tape_gives_back_what_it_was_given_on_another_machine(tmp_path: Path) -> None:
    tape = Recording(tmp_path / "c", HERE, {"model": "m", "session": "s-111"})
    assert (tape.draw("session", 0.25), tape.new_id("person", "n1"), tape.draw("session", 0.5)) == (0.25, "n1", 0.5)
    tape.keep("tool", "call_a", {"text": "first"})
    tape.keep("tool", "call_a", {"text": "in /home/ada/work"})
    tape.keep("ends", "/home/ada/work/bg.out", {"text": "done"})
    assert tape.value_of("tool", "call_a") is None, "while recording, tools run"
    tape.close()
    tape.close()
    back = Cassette(tmp_path / "c", THERE)
    assert back.header["session"] == "s-111"
    assert [back.draw("session", 0.9) for _ in range(3)] == [0.25, 0.5, 0.9]
    assert (back.new_id("person", "x"), back.new_id("person", "x")) == ("n1", "x")
    assert back.value_of("tool", "call_a") == {"text": "in /srv/copy"}, "the newest value counts"
    assert back.value_of("ends", "/srv/copy/bg.out") == {"text": "done"}
    assert back.value_of("tool", "call_b") is None
    assert [value["text"] for _, value in back.all_of("tool")] == ["first", "in /srv/copy"]


async def test_a_disk_that_refuses_a_result_is_told_by_the_next_call(tmp_path: Path) -> None:
    recording = Recording(tmp_path / "c", HERE, {"model": "m"})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20, hard))
    try:
        recording.keep("tool", "call_a", {"text": "a result"})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    model = RecordingModel(ScriptedModel(file_reply), recording)
    with pytest.raises(CallFault, match="recording cannot continue"):
        await model.complete(request(HERE, 1), lambda _: None)
    await model.aclose()


async def test_two_calls_of_one_number_are_played_in_their_order(tmp_path: Path) -> None:
    """Two agents of one name, or the parts of a long summary."""
    later = replace(request(HERE, 1), max_tokens=99)
    await record(tmp_path / "c", request(HERE, 1), later)
    replay = CassetteModel(Cassette(tmp_path / "c", THERE))
    await replay.complete(request(THERE, 1), lambda _: None)
    await replay.complete(replace(request(THERE, 1), max_tokens=99), lambda _: None)


async def test_a_cassette_knows_what_was_not_played(tmp_path: Path) -> None:
    await record(tmp_path / "c", request(HERE, 1), request(HERE, 2))
    cassette = Cassette(tmp_path / "c", THERE)
    replay = CassetteModel(cassette)
    await replay.complete(request(THERE, 1), lambda _: None)
    assert "lead (turn) 2" in cassette.unfinished_reason()
    await replay.complete(request(THERE, 2), lambda _: None)
    assert (cassette.unfinished_reason(), cassette.told) == ("", "")


def test_the_position_in_a_transcripts_name_is_no_difference() -> None:
    def asked(position: int) -> ComparableRequest:
        message = json.dumps({"role": "user", "content": f"see /x/transcripts/lead-{position}.jsonl"}).encode()
        return RequestNormalizer(HERE).recorded_form(request(HERE, 1, messages=[message]))

    assert asked(12) == asked(345)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
REQUESTS = st.builds(
    lambda tokens, system, messages: ComparableRequest("m", tokens, _dump(system), "[]", tuple(map(_dump, messages))),
    st.integers(1, 3),
    JSON,
    st.lists(JSON, max_size=4),
)


def _dump(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


@pytest.mark.slow
@settings(max_examples=100)
@given(st.lists(REQUESTS, min_size=1, max_size=4))
def test_any_requests_come_back_from_their_short_form(requests: list[ComparableRequest]) -> None:
    pack, unpack = RequestPacking(), RequestPacking()
    for asked in requests:
        line = json.loads(json.dumps(pack.pack(asked)))
        assert unpack.unpack(line) == asked


@pytest.mark.slow
@settings(max_examples=100)
@given(REQUESTS, REQUESTS)
def test_two_requests_differ_in_words_exactly_when_their_digests_do(
    first: ComparableRequest, second: ComparableRequest
) -> None:
    assert (difference(first, second) == "") == (first.digest == second.digest)


@settings(max_examples=60)
@given(JSON)
def test_hiding_and_showing_on_one_machine_changes_nothing(value: object) -> None:
    assert HERE.show(HERE.hide([value, "/home/ada/work/x", {"/home/ada": "s-111"}])) == [
        value,
        "/home/ada/work/x",
        {"/home/ada": "s-111"},
    ]


def test_a_home_that_is_the_root_hides_nothing() -> None:
    assert Placeholders({"home": "/", "workspace": ""}).hide("/usr/bin") == "/usr/bin"


async def test_what_the_service_counted_is_counted_again_and_so_is_that_it_could_not(tmp_path: Path) -> None:
    recording = RecordingModel(ScriptedModel(file_reply), Recording(tmp_path / "c", HERE, {"model": "m"}))
    fine, refused = request(HERE, 3, attempt=0, purpose="count"), request(HERE, 4, attempt=1, purpose="count")
    assert await recording.count(fine) == 1_234
    with pytest.raises(CannotCount):
        await recording.count(refused)
    await recording.aclose()
    replay = CassetteModel(Cassette(tmp_path / "c", THERE))
    assert await replay.count(request(THERE, 3, attempt=0, purpose="count")) == 1_234
    with pytest.raises(CannotCount, match="HTTP 404: no such path"):
        await replay.count(request(THERE, 4, attempt=1, purpose="count"))
    with pytest.raises(CannotCount, match="holds no count"):
        await replay.count(request(THERE, 9, attempt=0, purpose="count"))


def test_messages_that_are_joined_in_pieces_are_told_apart_again() -> None:
    alone, asking = request(HERE, 9), RequestNormalizer(HERE)
    for cut in (9, 5, 1, 0):
        pieces = [b",".join(alone.messages[:cut]), *alone.messages[cut:]] if cut else alone.messages
        assert asking.recorded_form(replace(alone, messages=pieces)) == RequestNormalizer(HERE).recorded_form(alone)
