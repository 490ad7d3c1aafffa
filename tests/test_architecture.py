"""The shape of the code: what imports what, how long and how deep things are, and what stands nowhere.

Raising a number here is a decision and wants a note in `docs/decisions/`.
"""

from __future__ import annotations

import ast
import functools
import gc
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from importlinter.cli import lint_imports
from tests import code_figures

pytestmark = pytest.mark.slow  # `make check` runs them, and `make test` does not

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "runtime" / "callboard"
SAMPLE = PACKAGE / "data" / "sample"

FILE_LINES, FUNCTION_LINES, NESTING, PARAMETERS, PUBLIC_NAMES = 600, 60, 3, 4, 25

ONE_IMPORTER = {
    "anthropic": "callboard.adapters.models.anthropic.profile",
    "apsw": "callboard.adapters.storage.sqlite",
    "bs4": "callboard.adapters.tools.web_child",
    "croniter": "callboard.core.scheduling.fire_times",
    "htpy": "callboard.web",
    "jsonschema": "callboard.core.full_json_schema",
    "markdownify": "callboard.adapters.tools.web_child",
    "mcp": "callboard.adapters.mcp",
    "pathspec": "callboard.adapters.tools.walking",
    "prompt_toolkit": "callboard.cli.repl",
    "rich": "callboard.cli.terminal.markdown",
    "segno": "callboard.cli.terminal.qr",
    "starlette": "callboard.web",
    "tree_sitter": "callboard.adapters.shell.parser",
    "tree_sitter_bash": "callboard.adapters.shell.parser",
    "uvicorn": "callboard.adapters.system.http_server",
    "yaml": "callboard.adapters.extensions.yaml",
}
"""A library of others, and the one module or package of ours that may import it."""

HEAVY = ("aiohttp", "anthropic", "bs4", "htpy", "httpx2", "mcp", "prompt_toolkit", "rich", "starlette", "uvicorn")
"""What no command loads before it is needed."""

BLOCKS = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Try, ast.TryStar, ast.Match)
CONTAINERS = {"list", "dict", "set", "bytearray", "deque", "defaultdict", "OrderedDict", "Counter"}
CHANGERS = {
    *("append", "add", "insert", "extend", "update", "setdefault", "clear", "remove", "discard", "pop", "popitem"),
    *("appendleft", "popleft", "sort", "reverse"),
}

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def sources(*tops: str) -> list[Path]:
    """Python files below the folders, without the sample project: that one is data."""
    found = [path for top in tops for path in sorted((ROOT / top).rglob("*.py"))]
    return [path for path in found if not path.is_relative_to(SAMPLE)]


RUNTIME = sources("runtime")
EVERYTHING = sources("runtime", "tests", "bench")


@functools.cache
def tree_of(path: Path) -> ast.Module:
    """A file's syntax tree: parsed when the first test asks, since each worker imports this module."""
    return ast.parse(path.read_text("utf-8"))


@functools.cache
def code() -> code_figures.Code:
    """Return the parsed package, once for all figures, with the trees that the other tests look at."""
    return code_figures.Code({module_name(path): tree_of(path) for path in RUNTIME})


def nodes_of(path: Path) -> Sequence[ast.AST]:
    """Return all nodes of a module of the runtime."""
    return code().nodes_of[module_name(path)]


@functools.cache
def statements_of(path: Path) -> Sequence[ast.AST]:
    """Return all statements of a file, with the handlers and cases that hold some: a tenth of its nodes."""
    statements: list[ast.AST] = []
    parents: list[ast.AST] = [tree_of(path)]
    while parents:
        parent = parents.pop()
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            children = getattr(parent, name, ())
            statements += children
            parents += children
    return statements


@pytest.fixture(scope="module", autouse=True)
def trees() -> Iterator[None]:
    """Keep the syntax trees for the tests of this file. The collector, which finds no garbage in them, takes as long as
    the parser: it is off."""
    gc.disable()
    yield
    for kept in (tree_of, code, statements_of, imported):
        kept.cache_clear()
    gc.enable()


def short(path: Path) -> str:
    return str(path.relative_to(ROOT))


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in statements_of(path) if isinstance(node, FUNCTIONS))


@functools.cache
def imported(path: Path) -> frozenset[str]:
    """Every module that is named by an import, with the names taken from it (which may be modules)."""
    found = set[str]()
    for node in statements_of(path):
        if isinstance(node, ast.Import):
            found.update(one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom):
            found.update([node.module or "", *(f"{node.module}.{one.name}" for one in node.names)])
    return frozenset(found)


def inner_blocks(block: ast.stmt) -> list[Sequence[ast.stmt]]:
    """The statement lists that stand one level deeper; an `elif` stands beside its `if`, not in it."""
    parts = [*getattr(block, "handlers", ()), *getattr(block, "cases", ())]
    lists = [getattr(block, name, []) for name in ("body", "orelse", "finalbody")]
    return [one for one in [*lists, *(part.body for part in parts)] if not _is_elif(block, one)]


def _is_elif(block: ast.stmt, inner: Sequence[ast.stmt]) -> bool:
    return isinstance(block, ast.If) and inner is block.orelse and len(inner) == 1 and isinstance(inner[0], ast.If)


def nesting(body: Sequence[ast.stmt], depth: int = 0) -> int:
    deepest = depth
    for block in body:
        if not isinstance(block, BLOCKS):
            continue
        deepest = max(deepest, depth + 1, *(nesting(inner, depth + 1) for inner in inner_blocks(block)))
        if isinstance(block, ast.If) and _is_elif(block, block.orelse):
            deepest = max(deepest, nesting(block.orelse, depth))
    return deepest


# What imports what


def test_arrows_point_inwards(capsys: pytest.CaptureFixture[str]) -> None:
    failed = lint_imports(config_filename=str(ROOT / ".importlinter"), no_cache=True)
    assert not failed, capsys.readouterr().out


def test_no_modules_import_each_other_in_a_circle() -> None:
    """A name taken from a package that is a module there is that module: the package file itself may re-export."""
    lazy = PACKAGE / "__init__.py"  # what it imports for type checkers is loaded when it is first used
    known = {module_name(path): path for path in RUNTIME if path != lazy}
    graph = {}
    for name, path in known.items():
        named = set(imported(path)) & set(known)
        graph[name] = {one for one in named if not any(other.startswith(f"{one}.") for other in named)} - {name}
    assert len(list(TopologicalSorter(graph).static_order())) == len(known)


@pytest.mark.parametrize("library", sorted(ONE_IMPORTER))
def test_an_outside_library_has_one_importer(library: str) -> None:
    users = {
        module_name(path)
        for path in RUNTIME
        for name in imported(path)
        if name == library or name.startswith(f"{library}.")
    }
    owner = ONE_IMPORTER[library]
    assert users, f"nobody imports {library}: take it out of the table, and out of pyproject.toml"
    assert all(user == owner or user.startswith(f"{owner}.") for user in users), users


def test_imports_are_absolute_and_not_for_type_checkers_alone() -> None:
    relative = {short(p) for p in EVERYTHING for n in statements_of(p) if isinstance(n, ast.ImportFrom) and n.level}
    lazy = PACKAGE / "__init__.py"  # the public names, loaded when they are first used; type checkers see them here
    detours = {short(p) for p in RUNTIME if p != lazy and "typing.TYPE_CHECKING" in set(imported(p))}
    assert not relative | detours


LIGHT = ("", "--help", "run --help", "cron list", "cron next @daily", "sessions --json")
"""Commands that need no model; the empty one is the import of the package."""
LOADED = """
import json, os, sys
os.environ.update({places!r})
import callboard
loaded = {{"": sorted({heavy!r} & sys.modules.keys())}}
from callboard.__main__ import main
for command in {commands!r}:
    main(command.split())
    loaded[command] = sorted({heavy!r} & sys.modules.keys())
print(json.dumps(loaded))
"""


def test_a_command_that_needs_no_model_loads_nothing_heavy(tmp_path: Path) -> None:
    """One process runs them one after another: what a command loads stays, and the first that has it loaded it."""
    places = {f"XDG_{name}_HOME": str(tmp_path / name) for name in ("STATE", "DATA", "CONFIG", "CACHE")}
    program = LOADED.format(places=places, heavy=set(HEAVY), commands=LIGHT[1:])
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout.splitlines()[-1]) == {command: [] for command in LIGHT}, ran.stderr


# How long, how deep, how many


def test_a_file_fits_a_few_screens() -> None:
    lengths = {short(path): len(path.read_text("utf-8").splitlines()) for path in EVERYTHING}
    assert {name: lines for name, lines in lengths.items() if lines > FILE_LINES} == {}


def test_a_function_fits_a_screen() -> None:
    lengths = {
        f"{short(p)}:{f.name}": (f.end_lineno or f.lineno) - f.lineno + 1 for p in EVERYTHING for f in functions(p)
    }
    assert {name: lines for name, lines in lengths.items() if lines > FUNCTION_LINES} == {}


@pytest.mark.parametrize(("tops", "most"), [(["runtime"], NESTING), (["tests", "bench"], NESTING + 1)])
def test_blocks_stand_three_deep_at_most(tops: list[str], most: int) -> None:
    """In tests one more: what they look at is opened round them."""
    depths = {f"{short(p)}:{f.name}": nesting(f.body) for p in sources(*tops) for f in functions(p)}
    assert {name: deep for name, deep in depths.items() if deep > most} == {}


def test_a_function_of_the_runtime_takes_four_parameters_by_position_at_most() -> None:
    """What is passed by keyword alone names itself where it is passed (decision 0035)."""
    many = {}
    for path in RUNTIME:
        for function in functions(path):
            given = function.args
            names = [one.arg for one in (*given.posonlyargs, *given.args)]
            count = len([name for name in names if name not in ("self", "cls")])
            if count > PARAMETERS:
                many[f"{short(path)}:{function.name}"] = count
    assert many == {}


PERSON_WRITERS = {"answer_request", "fire_by_hand", "give_order", "send_command", "send_note", "send_prompt"}
"""Functions that write what a person says, answers or orders."""
STORE_WRITERS = {
    "sdk/workflows/run.py": "a workflow asks the person",
    "sdk/workflows/decorator.py": "the row of a workflow",
    "sdk/workflows/journal.py": "the journal of a workflow",
    "sessions/checkpoints.py": "the rows of checkpoints",
    "sessions/open.py": "the session's row",
    "sessions/hosted.py": "the session's row, and what workflows write under the lease",
    "sessions/inspect/schedule_files.py": "schedules of files, which a person wrote",
    "sessions/detached.py": "the row of a session that needs a host",
    "sessions/fleet.py": "the order to drain a host",
    "sessions/serve_sessions.py": "the row of a session that needs a host",
    "sessions/inspect/serving.py": "the row of a process that serves schedules",
    "sessions/lease.py": "the row of the host",
    "sessions/person_actions.py": "all that a person does",
    "sessions/replay.py": "the envelopes of a recording",
    "sessions/retention.py": "the removal of sessions",
}
"""Modules above the engine that commit to the store, and what each writes."""


def test_what_a_person_does_is_written_by_one_module() -> None:
    """It refuses processes that a tool started, so that no agent can answer for the person (decision 0029)."""
    callers = set[str]()
    committers = set[str]()
    for path in sources(*(f"runtime/callboard/{layer}" for layer in ("cli", "web", "sdk", "sessions"))):
        name = str(path.relative_to(PACKAGE))
        for node in nodes_of(path):
            if isinstance(node, ast.ImportFrom) and PERSON_WRITERS & {alias.name for alias in node.names}:
                callers.add(name)
            # `around` is git, whose commit is read.
            if (
                isinstance(node, ast.Call)
                and _called(node) == "commit"
                and not ast.unparse(node.func).endswith("around.commit")
            ):
                committers.add(name)
    assert callers == {"sessions/person_actions.py"}
    assert committers == STORE_WRITERS.keys()


# Names, docstrings and structure


@pytest.mark.parametrize(
    ("figure", "most"),
    [
        (code_figures.vague_bindings, 0.005),
        (code_figures.questioning_docstrings, 0.0),
        (code_figures.questioning_attribute_docs, 0.0),
        (code_figures.unrelated_tuple_assignments, 0.0),
        (code_figures.single_importer_modules, 0.12),
        (code_figures.once_called_functions, 0.15),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_the_code_stays_readable(figure: Callable[[code_figures.Code], tuple[int, int]], most: float) -> None:
    """Each share is a limit that falls with the work on the code and never rises (`python tests/code_figures.py`)."""
    count, total = figure(code())
    assert count / total <= most, f"{count} of {total}"


def test_the_longest_import_chain_does_not_grow() -> None:
    chain = code_figures.longest_import_chain(code())
    assert len(chain) <= 20, chain


def test_a_call_names_what_follows_its_first_four_values() -> None:
    """More parameters are keyword-only, so that a call says what each value is."""
    assert code_figures.positional_parameters(code()) == []


TWINS = ["BudgetReached", "ReplyDropped", "TurnBegan", "TurnEnded"]
"""Journal events whose name is also that of a hook's event or of an event in `callboard.sdk.events`: all are public."""


def test_a_public_class_has_a_name_of_its_own() -> None:
    assert code_figures.repeated_public_classes(code()) == TWINS


# State and side effects


def test_a_module_says_what_it_is_for() -> None:
    silent = [short(p) for p in RUNTIME if tree_of(p).body and not ast.get_docstring(tree_of(p))]
    assert silent == []


def test_a_package_file_is_empty_or_re_exports() -> None:
    for path in RUNTIME:
        if path.name == "__init__.py" and path != PACKAGE / "__init__.py":  # that one loads late: tests/sdk
            rest = [node for node in tree_of(path).body if not _is_re_export(node)]
            assert rest == [], f"{short(path)} does something"


def _is_re_export(node: ast.stmt) -> bool:
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    if isinstance(node, ast.Assign):
        return all(isinstance(name, ast.Name) and name.id in ("__all__", "__version__") for name in node.targets)
    return isinstance(node, ast.Import | ast.ImportFrom)


def test_a_package_offers_few_names() -> None:
    """That a list of names is sorted is the linter's affair (RUF022)."""
    for path in RUNTIME:
        lists = [n for n in tree_of(path).body if isinstance(n, ast.Assign) and "__all__" in ast.unparse(n.targets[0])]
        if path.name == "__init__.py" and lists:
            assert len(ast.literal_eval(lists[0].value)) <= PUBLIC_NAMES, short(path)


def test_no_module_holds_state_that_changes() -> None:
    changed = {f"{short(path)}: {name}" for path in RUNTIME for name in _held(tree_of(path)) & set(_changed(path))}
    assert changed == set()


def _held(tree: ast.Module) -> set[str]:
    """Module-level names of things that could change."""
    held = set()
    for node in tree.body:
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        made = isinstance(value, ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp)
        made = made or (isinstance(value, ast.Call) and _called(value) in CONTAINERS)
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        held |= {one.id for one in targets if made and isinstance(one, ast.Name)}
    return held


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _changed(path: Path) -> Iterator[str]:
    """Names of which an item is set or deleted, or a changing method called, anywhere in the module."""
    for node in nodes_of(path):
        target = None
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
            target = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGERS:
            target = node.func.value
        if isinstance(target, ast.Name):
            yield target.id


def test_nothing_is_global_or_bound_to_a_context_and_only_constants_are_cached() -> None:
    """A constant that is dear to make may be made late: a cached function without parameters, or of a class alone."""
    found = []
    for path in RUNTIME:
        found += [f"{short(path)}:{node.lineno}" for node in nodes_of(path) if isinstance(node, ast.Global)]
        found += [short(path) for name in imported(path) if name == "contextvars.ContextVar"]
        for function in functions(path):
            cached = any("cache" in ast.unparse(mark).split(".")[-1] for mark in function.decorator_list)
            constant = all(
                one.arg == "self" or ast.unparse(one.annotation or one).startswith("type[")
                for one in function.args.args
            )
            if cached and not constant:
                found.append(f"{short(path)}:{function.lineno}")
    assert found == []


def test_one_layer_prints_and_it_is_not_by_print() -> None:
    printed = [
        f"{short(path)}:{node.lineno}"
        for path in RUNTIME
        for node in nodes_of(path)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("print", "breakpoint")
    ]
    assert printed == []


PAST_THE_TERMINAL = {
    "__main__": "before there is a terminal of ours, and after it",
    "adapters.processes.confined_child": "a program of its own",
    "adapters.mcp.server_child": "a program of its own",
    "adapters.models.rehearsal.__main__": "a program of its own",
    "adapters.tools.search_child": "a program of its own",
    "adapters.tools.web_child": "a program of its own",
    "cli.commands.cron_next": "an answer for each line of a caller, when it reads it",
    "cli.commands.policy": "an answer for each line of a caller, when it reads it",
    "cli.commands.reference": "a program that writes a page of the docs",
    "cli.commands.command_tree": "a program that writes a file of data",
    "adapters.tools.schemas": "a program that writes a file of data",
    "cli.repl.type_ahead": "before there is a terminal of ours",
    "cli.terminal.watch": "a page that is painted anew",
}
"""Who writes to a standard stream by itself, and why."""
WRITERS = ("write", "writelines", "echo", "secho")
WRITES = re.compile(r"sys\.(__)?std(out|err)(__)?(\.buffer)?\.write(lines)?\(|(click\.)?s?echo\(|os\.write\([12],")


def test_the_name_of_a_test_has_no_code_of_a_fault() -> None:
    """A code such as `b29` says nothing without its table: the name says the rule that is tested."""
    named = {
        f"{short(path)}: {node.name}"
        for path in sources("tests")
        for node in functions(path)
        if re.match(r"test_[abces]\d{1,2}_", node.name)
    }
    assert named == set()


def test_no_print_goes_past_the_terminal() -> None:
    found = {
        module_name(path).removeprefix("callboard.")
        for path in RUNTIME
        for node in nodes_of(path)
        if isinstance(node, ast.Call) and _called(node) in WRITERS and WRITES.match(ast.unparse(node))
    }
    assert found == set(PAST_THE_TERMINAL)


def test_bundled_data_holds_no_package() -> None:
    assert [short(path) for top in ("agents", "skills", "hooks") for path in (ROOT / top).rglob("__init__.py")] == []


SUPPRESSION = re.compile(r"#\s*(?:noqa|ruff:|type:\s*ignore|pyright:)")
WITH_REASON = re.compile(r"# (?:(?:ruff: )?noqa: \w+(?:, \w+)*|pyright: ignore\[\w+(?:, \w+)*\]) - \w")
SKIPS = {"skip", "skipif", "xfail", "importorskip"}


def test_a_suppression_states_its_reason() -> None:
    """As `# noqa: CODE - reason` or `# pyright: ignore[rule] - reason`, after the codes of all that the line has."""
    silent = []
    for path in EVERYTHING:
        text = path.read_text("utf-8")
        if SUPPRESSION.search(text):
            lines = enumerate(text.splitlines(), 1)
            silent += [f"{short(path)}:{no}" for no, line in lines if SUPPRESSION.search(line) and not _reason(line)]
    assert silent == []


def _reason(line: str) -> bool:
    return bool(WITH_REASON.match(line, [match.start() for match in SUPPRESSION.finditer(line)][-1]))


def test_a_skipped_test_states_its_reason() -> None:
    """`pytest.skip` has it as its text, the marks and `importorskip` as `reason=`."""
    silent = []
    for path in sources("tests"):
        if any(word in path.read_text("utf-8") for word in SKIPS):
            silent += [f"{short(path)}:{node.lineno}" for node in ast.walk(tree_of(path)) if _skips_silently(node)]
    assert silent == []


def _skips_silently(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call) or not ast.unparse(node.func).startswith("pytest.") or _called(node) not in SKIPS:
        return False
    named = any(keyword.arg == "reason" for keyword in node.keywords)
    return not (named or (ast.unparse(node.func) == "pytest.skip" and node.args))


# What stands nowhere


@functools.cache
def kept_files() -> list[Path]:
    """What the repository holds; without git, what the folders of the project hold."""
    listed = subprocess.run(["git", "ls-files", "-z"], capture_output=True, text=True, cwd=ROOT, check=False)
    if listed.returncode == 0:
        names = [name for name in listed.stdout.split("\0") if name]
        return [ROOT / name for name in names if (ROOT / name).is_file()]
    tops = ("runtime", "tests", "bench", "docs", "agents", "skills", "hooks")
    return [path for top in tops for path in (ROOT / top).rglob("*") if path.is_file()]


def comments(text: str) -> Iterator[str]:
    """The comments of a module, by the places where the formatter puts them. Lines that follow each other are one."""
    for found in re.finditer(r"(?:^[ ]*|  )#([^\n]*(?:\n[ ]*#[^\n]*)*)", text, re.MULTILINE):
        yield re.sub(r"\n *#", "", found[1])


def test_what_a_comment_refers_to_exists() -> None:
    """A comment may name a test by its function or its file, and a page of the documentation."""
    files = sources("tests")
    tests = {path.stem for path in files} | {node.name for path in files for node in functions(path)}
    missing = []
    for path in RUNTIME:
        for text in comments(path.read_text("utf-8")):
            missing += [(short(path), name) for name in re.findall(r"(?<![\w/])test_\w+", text) if name not in tests]
            named = re.findall(r"(?<![\w./])(?:tests|docs)/[\w./-]*\w", text)
            missing += [(short(path), name) for name in named if not (ROOT / name).exists()]
    assert missing == []


LOCKS = {"uv.lock", "pylock.toml", "poetry.lock", "pdm.lock", "Pipfile.lock", "package-lock.json", "yarn.lock"}


def test_no_lock_file_is_kept() -> None:
    assert [short(path) for path in kept_files() if path.name in LOCKS] == []


SEP = "/"
FORBIDDEN = re.compile(
    rf"(?<![\w.~*-])(?:{SEP}work{SEP}(?:main|shared)|{SEP}root{SEP}\.|{SEP}opt{SEP}(?:pypi|wheels))"
    rf"|pypi\.{'org'}|files\.python{'hosted'}|registry\.npm{'js'}"
    rf"|--(?:extra-)?index-{'url'}|--find-{'links'}|\bissue #?\d"
)


FORBIDDEN_WORDS = (
    *(f"{SEP}work{SEP}", f"{SEP}root{SEP}.", f"{SEP}opt{SEP}", "pypi.", "files.python", "registry.npm"),
    *("index-", "--find-", "issue "),
)
"""One of these is in each text that the pattern finds. To look for them is fast, unlike the pattern."""


def test_no_machine_and_no_package_index_is_named() -> None:
    named = []
    for path in kept_files():
        if path.suffix in (".png", ".gz", ".db") or path == Path(__file__).resolve():
            continue
        text = path.read_text("utf-8", "replace")
        if not any(word in text for word in FORBIDDEN_WORDS):
            continue
        for found in FORBIDDEN.finditer(text):
            number = text.count("\n", 0, found.start()) + 1
            named.append(f"{short(path)}:{number}: {found[0]}")
    assert named == []


def index_hosts() -> set[str]:
    """The hosts that pip is configured to install from, here and now."""
    told = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False
    ).stdout
    return set(re.findall(r"https?://(?:[^@/\s']*@)?([^/:'\s]+)", told))


def test_the_index_in_use_here_is_named_nowhere() -> None:
    hosts = index_hosts()
    named = [(short(p), host) for p in kept_files() for host in hosts if host.encode() in p.read_bytes()]
    assert named == []
