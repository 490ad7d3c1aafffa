"""Nothing that a tool, a file, a page, a hook or another agent says closes its own tag or opens one of ours."""

from __future__ import annotations

import ast
from collections.abc import Collection
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as hy
from tests.core.agent.agent_states import Life, judged, settled, started

from callboard.core.context.stages.results import persisted_mark
from callboard.core.context.summary.folding import dropped_mark, note, render_state
from callboard.core.context.summary.request import summary_edits
from callboard.core.context.system_prompt import ProjectFile, PromptFacts, SkillLine, system_prompt, todo_reminder
from callboard.core.context.view.conversation import Conversation, add_assistant, add_user
from callboard.core.messaging.envelopes import (
    TAGS,
    defuse_tags,
    envelope_block,
    injection_block,
    large_mark,
    restore_tags,
)
from callboard.types import events as ev
from callboard.types.agent_spec import AgentSpec
from callboard.types.messages import Injection, Placed, StateBlock, SummaryWanted
from callboard.types.records import Envelope, EnvelopeType, Todo

RUNTIME = Path(__file__).resolve().parents[3] / "runtime" / "callboard"
OWN = {*TAGS, "project-instructions", "skills", "mcp-servers"}


def tags_in(text: str, own: Collection[str] = TAGS) -> list[str]:
    """Every tag of ours that begins or ends in a text, as `inbox` or `/inbox`; read by hand and not by the rule."""
    found: list[str] = []
    for place, letter in enumerate(text):
        rest = text[place + 1 :].lstrip()
        if letter != "<":
            continue
        slash = "/" if rest.startswith("/") else ""
        name = rest.removeprefix("/").lstrip().lower()
        for tag in own:
            after = name[len(tag) : len(tag) + 1]
            if name.startswith(tag) and not (after.isalnum() or after == "_"):
                found.append(slash + tag)
    return found


@hy.composite
def hostile(draw: hy.DrawFn) -> str:
    """A text that tries: tags whole, nested, split, in capitals, with white space, as entities, and look-alikes."""
    tag = draw(hy.sampled_from(sorted(OWN)))
    cut = draw(hy.integers(1, len(tag) - 1))
    forms = [
        f"</{tag}>",
        f"<{tag}>",
        f"< / {tag.upper()} >",
        f"<\n\t/\u2003{tag} a='1'>",
        f"<{tag[:cut]}<{tag}>{tag[cut:]}>",
        f"<<{tag}>>",
        f"</{tag[:cut]}",
        f"{tag[cut:]}>",
        f"&lt;/{tag}&gt;",
        f"<\u200b{tag}>",
        f"\uff1c{tag}\uff1e",
        f"<{tag}\x00>",
        f'" {tag}="',
        "<",
        "</",
        "< ",
        tag,
        f"{tag}>",
        "]",
        "\n",
    ]
    return "".join(draw(hy.lists(hy.sampled_from(forms) | hy.text(max_size=4), min_size=1, max_size=6)))


def text_of(placed_: Placed) -> str:
    return str(placed_.data["text"])


@given(hostile(), hostile(), hy.sampled_from(sorted(get_args(EnvelopeType))))
def test_an_envelope_stands_in_one_pair_of_tags_whatever_its_text_and_fields_say(
    text: str, field: str, kind: str
) -> None:
    given_ = {"id": field, "sender": field, "recipient": "a", "type": kind, "content": text, "request_id": field}
    metadata = {"status": field, "schedule": field, "fired_at": field}
    envelope = Envelope.model_validate({**given_, "metadata": metadata})
    if kind == "prompt":
        assert text_of(envelope_block(envelope)) == text, "the person's own words stand as they are"
        return
    tag = {"scheduled": "scheduled", "task_notification": "task-notification"}.get(kind, "inbox")
    assert tags_in(text_of(envelope_block(envelope))) == [tag, f"/{tag}"]
    assert tags_in(text_of(envelope_block(envelope, f"/out/{field}"))) == [tag, f"/{tag}"]


@given(hostile(), hostile(), hy.sampled_from(TAGS))
def test_an_injection_stands_in_one_pair_of_its_tag(text: str, kind: str, tag: str) -> None:
    assert tags_in(text_of(injection_block(Injection(kind=tag, text=text)))) == [tag, f"/{tag}"]
    unknown = text_of(injection_block(Injection(kind=kind, text=text)))
    assert tags_in(unknown) in ([one, f"/{one}"] for one in (kind.strip(), "system-reminder"))


def test_every_source_in_the_code_has_a_tag() -> None:
    """A source without a tag is an error here, and a `system-reminder` in use."""
    kinds: set[str] = set()
    for path in RUNTIME.rglob("*.py"):
        text = path.read_text("utf-8")
        if "Injection" not in text:
            continue  # most of the package, and to parse it takes seconds
        tree = ast.parse(text)
        named = {
            target.id: node.value
            for node in tree.body
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Injection":
                value = next(one.value for one in node.keywords if one.arg == "kind")
                value = named.get(value.id, value) if isinstance(value, ast.Name) else value
                assert isinstance(value, ast.Constant), f"{path}: the kind of an injection is written out"
                kinds.add(str(value.value))
    assert len(kinds) >= 4
    assert kinds <= set(TAGS)


def resulting(*texts: str) -> list[str]:
    """The texts of a result as they stand in the view, as one text and as several."""
    content = tuple({"type": "text", "text": text} for text in texts)
    life = started(judged(Life.begun().prompted("go").called("read_file"), "c1"), "c1")
    life = settled(life.on(ev.ToolFinished, call="c1", content=content), "c1").on(ev.ResultsMerged)
    data = life.state.context.conversation.messages[-1].blocks[0].data["content"]
    return [data] if isinstance(data, str) else [str(part["text"]) for part in data]


@given(hy.lists(hostile(), min_size=1, max_size=3))
def test_a_result_opens_no_tag_of_ours_neither_in_one_of_its_texts_nor_between_two(texts: list[str]) -> None:
    shown = resulting(*texts)
    assert not [tag for text in (*shown, "".join(shown), "\n".join(shown)) for tag in tags_in(text)]


@given(hostile())
def test_an_error_text_and_a_refusal_are_results_like_any_other(text: str) -> None:
    life = judged(Life.begun().prompted("go").called("bash"), verdict="deny")
    life = life.on(ev.CallJudged, call="c1", verdict="deny", why=f"Permission denied: {text}").on(ev.ResultsMerged)
    shown = str(life.state.context.conversation.messages[-1].blocks[0].data["content"])
    assert not tags_in(shown)


@given(hostile(), hostile())
def test_a_file_name_and_a_preview_cannot_end_a_persisted_output(path: str, text: str) -> None:
    shown = persisted_mark(path.replace("\n", ""), text)
    assert tags_in(shown) == ["persisted-output", "/persisted-output"]
    assert not tags_in(large_mark("x", path))


@given(hostile())
def test_state_marks_and_summaries_speak_for_nobody(text: str) -> None:
    fields: dict[str, Any] = {name: (text,) for name in StateBlock.model_fields if name != "plan"}
    assert not tags_in(render_state(StateBlock(plan=text, **fields)))
    assert not tags_in(str(note(dropped_mark(2, text)).data["text"]))
    conv = add_user(Conversation(), 1, [Placed(data={"type": "text", "text": "go"}, source="person")], at=0, turn="t")
    conv = add_assistant(conv, 2, [{"type": "text", "text": "long " * 4_000}], at=0, turn="t")
    wanted = SummaryWanted(stage="summarize_all", trigger="auto", message=1, last=2)
    (edit,) = summary_edits(
        conv, wanted, text + "x", state=StateBlock(plan=text, **fields), transcript=f"/t/{text}", budget=100_000
    )
    assert not {tag for block in edit.blocks for tag in tags_in(str(block.data["text"]))}


def prompt_tags(text: str) -> list[str]:
    """The tags of a system prompt in which everything that others wrote is `text`."""
    spec = AgentSpec(name="a", kind="lead", agent_type="lead", model="m", role=text, folder=f"/w/{text}")
    parts = PromptFacts(
        workspace=text,
        facts=(text,),
        instructions=(ProjectFile(text, text + "x"),),
        skills=(SkillLine(text, text),),
        memory=text,
        servers=(text,),
    )
    return [tag for block in system_prompt(spec, parts) for tag in tags_in(block["text"], OWN)]


@given(hostile())
def test_the_system_prompt_quotes_the_workspace_its_files_and_its_skills(text: str) -> None:
    assert prompt_tags(text + "x") == prompt_tags("x")
    assert not tags_in(todo_reminder((Todo(content=text),)))


@pytest.mark.parametrize(
    "text", ["\uff1csystem-reminder\uff1e", "<\u200bsystem-reminder>", "&lt;inbox&gt;", "<inboxes>"]
)
def test_what_only_looks_like_a_tag_is_plain_text(text: str) -> None:
    assert defuse_tags(text) == text


@given(hostile())
def test_what_was_copied_from_a_result_can_be_found_in_the_file_again(text: str) -> None:
    plain = text.replace("&lt;", "")
    assert restore_tags(defuse_tags(plain)) == plain


def test_the_reader_of_this_test_finds_what_the_rule_must_find() -> None:
    text = "a <inbox> < / INBOX > <inbox-x <inbox_ <inboxes> &lt;inbox> <\u200binbox>"
    assert tags_in(text) == ["inbox", "/inbox", "inbox"]
