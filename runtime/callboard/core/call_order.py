"""Order of the calls of one reply: some may overlap, others wait for earlier ones. Pure.

The results of a reply are the same as if its calls ran one after another, in order. Calls overlap if that makes no
difference. Each tool belongs to one class:

    class      accesses of its calls                                               examples
    ---------  ------------------------------------------------------------------  ------------------------------------
    look       read the session's rows (tasks, team, schedules)                    list_tasks, get_task, task_output
    own        change the agent's own notes only                                   todo_write
    store      change the session's rows, and so inform others                     create_task, send_message
    read       read one path                                                       read_file
    survey     read every path                                                     grep, glob, tools that only read
    write      change one path                                                     write_file, edit_file
    delegate   read and change every path, in work that others do in any order     task, shared tools
    exclusive  read and change everything, also the agent's permissions            bash, claim_task, MCP, unknown tools

`WAITS` lists for each class the earlier classes that it waits for. Two paths conflict if they are equal or one contains
the other: writing a file in a folder creates the folder.

An earlier call counts from the reply on until it is settled, or denied:

    stage of the earlier call   a later call that depends on it
    --------------------------  ------------------------------------------------------------------------------------
    proposed (being judged)     not judged: its verdict may depend on the effect (a link, a skill's rule, a new server).
                                A hook may still change the path: then no call that reads or changes a path runs
    asking (for approval)       not judged until it is answered; calls that do not depend on it continue
    allowed, started            not judged
    finished (hooks to come)    not judged: a hook may reformat the file
    settled, denied             free

A judged call is checked again before it runs: a hook or a person may have changed its path. A call that reads, with no
hooks, runs in the operation that judges it: nothing can change its path, and what it would wait for it has waited for.
One that needs no wait, such as that of a small file in memory, needs no operation.

A call after a barrier waits until the barrier has run; if the barrier succeeded, the call is not run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import field
from types import MappingProxyType
from typing import Literal

from callboard.core.agent.open_calls import CallStage, CallState, OpenCalls
from callboard.core.agent.state import Facts, OrderClass
from callboard.types.lazy_dataclass import dataclass
from callboard.types.operations import Operation, OperationKind

READS_AT_ONCE = 10
"""Maximum calls of one reply that read or change files and run together. Delegates and calls of the store do
not count."""
_COUNTED: frozenset[OrderClass] = frozenset({"look", "read", "survey", "write"})

_Rule = Literal["always", "path"]
"""Wait for every earlier call of a class, or only for those with the same path."""

_ALL: tuple[OrderClass, ...] = ("look", "own", "store", "read", "survey", "write", "delegate", "exclusive")
_ONE_PATH: frozenset[OrderClass] = frozenset({"read", "write"})


def _after(*always: OrderClass, path: tuple[OrderClass, ...] = ()) -> Mapping[OrderClass, _Rule]:
    rules: dict[OrderClass, _Rule] = dict.fromkeys((*always, "exclusive"), "always")
    return MappingProxyType({**rules, **dict.fromkeys(path, "path")})


WAITS: Mapping[OrderClass, Mapping[OrderClass, _Rule]] = MappingProxyType(
    {
        "look": _after("store"),
        "own": _after("own"),
        "store": _after("look", "store", "write"),  # a message may announce the file
        "read": _after("delegate", path=("write",)),
        "survey": _after("delegate", "write"),
        "write": _after("delegate", "survey", path=("read", "write")),
        "delegate": _after("store", "read", "survey", "write"),  # a subagent reads files and the task board
        "exclusive": _after(*_ALL),
    }
)
"""Class of a call -> class of an earlier call that it waits for."""


def order_class(effect: str, concurrency: str, *, watches: bool) -> OrderClass:
    """Return the class of a tool from its specification."""
    match concurrency:
        case "store" | "own":
            return concurrency
        case "keyed":
            return "read" if effect == "read" else "write"
        case "shared" if effect == "read":
            return "look" if watches else "survey"
        case "shared":
            return "delegate"
        case _:
            return "exclusive"


def without_operation(calls: OpenCalls, stage: CallStage, facts: Facts, *kinds: OperationKind) -> tuple[str, ...]:
    """Return the calls at a stage that have no running operation of these kinds, in order."""
    waiting = calls.at(stage)
    if not waiting:
        return ()
    if not facts.running:
        return tuple([call.call.id for call in waiting])
    running = {operation.subject for operation in facts.running if operation.kind in kinds}
    return tuple([call.call.id for call in waiting if call.call.id not in running])


def judgeable(calls: OpenCalls, facts: Facts) -> tuple[str, ...]:
    """Return the proposed calls that may be judged now."""
    waiting = without_operation(calls, "proposed", facts, "judge", "tool")
    if not waiting or len(calls) == 1:  # there is no other call to wait for
        return waiting
    return tuple(call.call.id for call in _free(calls, facts, "proposed") if call.call.id in waiting)


def runnable(calls: OpenCalls, facts: Facts) -> tuple[str, ...]:
    """Return the allowed calls that may start now."""
    waiting = frozenset(without_operation(calls, "allowed", facts, "tool"))
    if not waiting or len(calls) == 1:
        return tuple(waiting)
    run = [call for call in _free(calls, facts, "allowed") if call.call.id in waiting]
    if not run:
        return ()
    begun = [call for call in calls if _begun(call, waiting, facts)]
    room = READS_AT_ONCE - sum(_class(call, facts) in _COUNTED for call in begun)
    later = _Open()
    for call in begun:
        later.add(_class(call, facts), facts.keys.get(call.call.id, ""))
    ready: list[str] = []
    for call in run:
        kind = _class(call, facts)
        if later.holds(kind, facts.keys.get(call.call.id, "")) or (kind in _COUNTED and room <= 0):
            continue
        ready.append(call.call.id)
        room -= kind in _COUNTED
    return tuple(ready)


@dataclass
class _Paths:
    """Paths of open calls of one class, and the folders above them."""

    exact: set[str] = field(default_factory=set[str])
    above: set[str] = field(default_factory=set[str])
    any: bool = False
    """True if a path among them is unknown, so that it may be any path."""

    def add(self, path: str) -> None:
        self.any = self.any or not path
        self.exact.add(path)
        self.above.update(_folders(path))

    def touch(self, path: str) -> bool:
        if self.any or not path or path in self.exact or path in self.above:
            return True
        return any(folder in self.exact for folder in _folders(path))


@dataclass
class _Open:
    """Open calls seen so far, by class."""

    classes: dict[OrderClass, _Paths] = field(default_factory=dict["OrderClass", _Paths])

    def add(self, kind: OrderClass, path: str) -> None:
        paths = self.classes.setdefault(kind, _Paths())
        if kind in _ONE_PATH:
            paths.add(path)

    def holds(self, kind: OrderClass, path: str) -> bool:
        rules = WAITS[kind]
        for earlier, paths in self.classes.items():
            rule = rules.get(earlier)
            if rule == "always" or (rule == "path" and paths.touch(path)):
                return True
        return False


def _free(calls: OpenCalls, facts: Facts, stage: Literal["proposed", "allowed"]) -> list[CallState]:
    """Return the calls at a stage that no earlier call blocks, in order.

    Makes one pass with little work per call, because it runs for every step of a lead with hundreds of subagents.
    """
    unsure = facts.rewrites and stage == "allowed"
    earlier = _Open()
    kinds = dict[str, OrderClass]()
    free: list[CallState] = []
    for call in calls:
        if call.stage == "settled":
            continue
        name = call.call.name
        kind = kinds.get(name) or kinds.setdefault(name, _class(call, facts))
        path = facts.keys.get(call.call.id, "") if kind in _ONE_PATH else ""
        if call.stage == stage and not earlier.holds(kind, path):
            free.append(call)
        if kind == "exclusive":
            break  # all later calls wait
        if kind in _ONE_PATH:
            earlier.add(kind, "" if unsure and call.stage == "proposed" else path)  # a hook may still change the path
        elif kind not in earlier.classes:
            earlier.add(kind, path)
    return free


def _begun(call: CallState, waiting: Collection[str], facts: Facts) -> bool:
    """Return True if a call has started, or starts next in its running operation."""
    if call.stage == "proposed":
        return Operation("tool", call.call.id) in facts.running
    return call.stage == "started" or (call.stage == "allowed" and call.call.id not in waiting)


def _class(call: CallState, facts: Facts) -> OrderClass:
    """Return the class of a call's tool. An unknown tool runs alone."""
    tool = facts.tools.get(call.call.name)
    return tool.order if tool and not tool.barrier else "exclusive"


def _folders(path: str) -> Iterator[str]:
    """Yield the folders above a path, the nearest first."""
    while (cut := path.rfind("/")) > 0:
        path = path[:cut]
        yield path
