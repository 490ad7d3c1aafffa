"""Hundreds of steps with large results in a 200k window: never over it, never refused, nothing forgotten.

The service is strict and counts a tenth more than we estimate. The person demands something new in each turn; the board
and the todo list change all the time. What counts is the last request: every demand in the person's own words, and
exactly the todos and tasks that are open.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field

import pytest
from tests.engine.team.team_world import team_world
from tests.simulation.outside import Outside

from callboard.adapters.models.rehearsal.api import ModelSpec
from callboard.adapters.models.rehearsal.strict import CheckContext, check_request
from callboard.adapters.models.rehearsal.tokens import prompt_tokens, survey
from callboard.core.context.pipeline import PRESETS
from callboard.ports.model import ModelRequest, Reply
from callboard.testing import ScriptedModel, fault, say, use
from callboard.types.agent_spec import ModelLimits
from callboard.types.records import Fault, Json, Usage

pytestmark = pytest.mark.anyio

STEPS, SOAK_STEPS, TURN = 300, 2_000, 50
WINDOW = 200_000
FIRST = "Make every test of this package pass, and never touch the folder named vendor."
SIZES = (2_000, 20_000, 5_000, 12_000, 1_000, 8_000, 250_000, 3_000, 16_000, 6_000)
"""Characters of what is read, in turn."""
CHECKED = 19
"""Every so many requests are put before the strict check in whole; all are counted."""
SERVICE = ModelSpec("scripted", window=WINDOW, max_output=64_000)
RULES = CheckContext(models={"scripted": SERVICE})


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def demand(turn: int) -> str:
    return f"Demand {turn}: the function number_{turn}_{turn * 7919} keeps its name and its {turn} arguments."


@dataclass
class LongModel(ScriptedModel):
    """Works on, step by step; answers a prompt that does not fit as the service does."""

    refused: list[str] = field(default_factory=list[str])
    most: int = 0
    """Tokens of the largest prompt."""
    newest: ModelRequest | None = None
    opened: dict[str, str] = field(default_factory=dict[str, str])
    """Tasks that are not completed: id -> subject."""
    todos: list[str] = field(default_factory=list[str])
    step: int = 0

    def __post_init__(self) -> None:
        super().__init__({})

    def _entry(self, request: ModelRequest) -> Reply | Fault:
        self.newest = request
        self.requests.clear()  # thousands of them, of up to a megabyte each
        # Our estimate of ASCII is a quarter of a token for each byte; the service counts more.
        tokens = sum(map(len, (request.system, request.tools, *request.messages))) * 11 // 40
        if request.ordinal % CHECKED == 0:
            body = as_body(request)
            tokens = max(tokens, prompt_tokens(survey(body)))
            wrong = check_request(body, RULES)
            self.refused += [] if wrong is None else [f"call {request.ordinal}: {wrong.message}"]
        self.most = max(self.most, tokens)
        if tokens + request.max_tokens > WINDOW:
            self.refused.append(f"call {request.ordinal}: {tokens} tokens")
            return fault("too_long", status=400, message=f"prompt is too long: {tokens} tokens > {WINDOW} maximum")
        reply = self._work()
        self.step += 1
        return Reply(reply.blocks, reply.stop_reason, Usage(input_tokens=tokens, output_tokens=50), "scripted")

    def text(self) -> str:
        """What the newest request says."""
        assert self.newest is not None
        return json.dumps(as_body(self.newest)["messages"], ensure_ascii=False)

    def _work(self) -> Reply:
        """A turn is reads, a task made and perhaps one taken off the board, todos, and more reads."""
        turn, place = divmod(self.step, TURN)
        if place == 6:
            (task,) = set(re.findall(rf"Created (task_[a-z2-7]{{12}}) \[ready\] job {turn}\b", self.text()))
            self.opened[task] = f"job {turn}"
        if place == 5:
            return use("create_task", {"subject": f"job {turn}", "description": "to be done later"})
        if place == 20 and turn % 3 and self.opened:
            done = sorted(self.opened)[0]
            del self.opened[done]
            return use("update_task", {"task_id": done, "status": "cancelled"})
        if place == 30:
            self.todos = [f"todo {turn} of {turn * 31}", f"check {turn} once more"]
            items = [{"content": one, "status": "pending"} for one in self.todos]
            return use("todo_write", {"todos": items})
        if place == TURN - 1:
            return say(f"So far so good, turn {turn}.")
        path = f"src/file_{self.step}.py"
        if place % 4 == 1:
            return use("read_file", {"path": path}, ("read_file", {"path": f"{path}.test"}), text=f"Step {self.step}.")
        return use("read_file", {"path": path}, text=f"Step {self.step}: I look at what {path} holds.")


def as_body(request: ModelRequest) -> Json:
    messages = json.loads(b"[" + b",".join(request.messages) + b"]")
    return {
        "model": "scripted",
        "max_tokens": request.max_tokens,
        "system": json.loads(request.system),
        "tools": json.loads(request.tools),
        "messages": messages,
    }


class Files(dict[str, str]):
    """Every file is there, and of another size."""

    def get(self, key: str, default: str | None = None) -> str:
        size = SIZES[sum(map(ord, key)) % len(SIZES)]
        line = f"    {key} = call(of, something, else)\n"
        return line * (size // len(line))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("preset", "steps"),
    [
        ("economic", STEPS),
        *(pytest.param(name, SOAK_STEPS, marks=pytest.mark.soak) for name in PRESETS),
    ],
)
async def test_a_long_session_forgets_nothing_that_matters(preset: str, steps: int) -> None:
    outside = Outside(files=Files())
    model = LongModel()
    world = team_world(model, outside.tools()["read_file"])
    world.spec = {"pipeline": PRESETS[preset], "models": {"scripted": ModelLimits(window=WINDOW)}}
    async with world.session() as team:
        for turn in range(steps // TURN):
            await team.prompt(f"{FIRST if not turn else ''} {demand(turn)}".strip())
            await team.quiet()
        state = team.state("lead")
    assert model.refused == []
    assert model.most + 8_000 <= WINDOW
    assert state.turns.steps == steps
    assert state.compaction.count > 0
    said = model.text()
    assert FIRST in said
    assert [turn for turn in range(steps // TURN) if demand(turn) not in said] == []
    assert [todo for todo in model.todos if todo not in said] == []
    assert {task for task in model.opened if f"{task} [" not in said} == set()
    assert model.opened, "some tasks are open in the end"
