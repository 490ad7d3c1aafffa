"""The shape of the code: what imports what, how long and how deep things are, and what stands nowhere.

Raising a number here is a decision and wants a note in `docs/decisions/`.
"""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from importlinter.cli import lint_imports

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "runtime" / "callboard"
SAMPLE = PACKAGE / "data" / "sample"

FILE_LINES, FUNCTION_LINES, NESTING, PARAMETERS, PUBLIC_NAMES = 400, 50, 3, 6, 25

ONE_IMPORTER = {
    "anthropic": "callboard.adapters.anthropic",
    "apsw": "callboard.adapters.sqlite",
    "croniter": "callboard.core.schedule.calendar",
    "jsonschema": "callboard.adapters.mcp",
    "mcp": "callboard.adapters.mcp",
    "pathspec": "callboard.adapters.tools.walking",
    "prompt_toolkit": "callboard.faces.prompt",
    "rich": "callboard.faces.rendering",
    "tree_sitter": "callboard.adapters.shell_plain",
    "tree_sitter_bash": "callboard.adapters.shell_plain",
    "yaml": "callboard.adapters.yaml_files",
}
"""A library of others, and the one module or package of ours that may import it."""

HEAVY = ("aiohttp", "anthropic", "httpx2", "mcp", "prompt_toolkit", "rich", "uvicorn")
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
def nodes_of(path: Path) -> Sequence[ast.AST]:
    """All nodes of a file."""
    return list(ast.walk(tree_of(path)))


def short(path: Path) -> str:
    return str(path.relative_to(ROOT))


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in nodes_of(path) if isinstance(node, FUNCTIONS))


@functools.cache
def imported(path: Path) -> frozenset[str]:
    """Every module that is named by an import, with the names taken from it (which may be modules)."""
    found = set[str]()
    for node in nodes_of(path):
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
    relative = {short(p) for p in EVERYTHING for n in nodes_of(p) if isinstance(n, ast.ImportFrom) and n.level}
    lazy = PACKAGE / "__init__.py"  # the public names, loaded when they are first used; type checkers see them here
    detours = {short(p) for p in RUNTIME if p != lazy and "typing.TYPE_CHECKING" in set(imported(p))}
    assert not relative | detours


@pytest.mark.parametrize(
    "command",
    [[], ["--help"], ["run", "--help"], ["cron", "list"], ["cron", "next", "@daily"], ["sessions", "--json"]],
)
def test_a_command_that_needs_no_model_loads_nothing_heavy(command: list[str], tmp_path: Path) -> None:
    enter = f"from callboard.__main__ import main\nmain({command!r})" if command else "import callboard"
    tell = f"print(*sorted(set({HEAVY!r}) & set(sys.modules)), flush=True)"
    places = {f"XDG_{name}_HOME": str(tmp_path / name) for name in ("STATE", "DATA", "CONFIG", "CACHE")}
    code = f"import sys, os\nos.environ.update({places!r})\n{enter}\n{tell}"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (ran.returncode, ran.stdout.splitlines()[-1]) == (0, ""), ran.stderr


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


def test_a_function_of_the_runtime_takes_six_things_at_most() -> None:
    many = {}
    for path in RUNTIME:
        for function in functions(path):
            given = function.args
            names = [one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
            count = len([name for name in names if name not in ("self", "cls")])
            if count > PARAMETERS:
                many[f"{short(path)}:{function.name}"] = count
    assert many == {}


# State and side effects


def test_a_module_says_what_it_is_for() -> None:
    silent = [short(p) for p in RUNTIME if tree_of(p).body and not ast.get_docstring(tree_of(p))]
    assert silent == []


def test_a_package_file_is_empty_or_re_exports() -> None:
    for path in RUNTIME:
        if path.name == "__init__.py" and path != PACKAGE / "__init__.py":  # that one loads late: tests/api
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
    """A constant that is dear to make may be made late: a cached function without parameters."""
    found = []
    for path in RUNTIME:
        found += [f"{short(path)}:{node.lineno}" for node in nodes_of(path) if isinstance(node, ast.Global)]
        found += [short(path) for name in imported(path) if name == "contextvars.ContextVar"]
        for function in functions(path):
            cached = any("cache" in ast.unparse(mark).split(".")[-1] for mark in function.decorator_list)
            names = [one.arg for one in function.args.args]
            if cached and names not in ([], ["self"]):
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
    "adapters.launch_child": "a program of its own",
    "adapters.mcp.server_child": "a program of its own",
    "adapters.rehearsal.__main__": "a program of its own",
    "adapters.search_child": "a program of its own",
    "faces.cli.cron_next": "an answer for each line of a caller, when it reads it",
    "faces.cli.policy": "an answer for each line of a caller, when it reads it",
    "faces.cli.reference": "a program that writes a page of the docs",
    "faces.cli.shape": "a program that writes a file of data",
    "faces.watching": "a page that is painted anew",
}
"""Who writes to a standard stream by itself, and why."""
WRITES = re.compile(r"sys\.(__)?std(out|err)(__)?(\.buffer)?\.write(lines)?\(|(click\.)?s?echo\(|os\.write\([12],")


def test_b31_no_print_goes_past_the_terminal() -> None:
    found = {
        module_name(path).removeprefix("callboard.")
        for path in RUNTIME
        for node in nodes_of(path)
        if isinstance(node, ast.Call) and WRITES.match(ast.unparse(node))
    }
    assert found == set(PAST_THE_TERMINAL)


def test_bundled_data_holds_no_package() -> None:
    assert [short(path) for top in ("agents", "skills", "hooks") for path in (ROOT / top).rglob("__init__.py")] == []


# What stands nowhere


def kept_files() -> list[Path]:
    """What the repository holds; without git, what the folders of the project hold."""
    listed = subprocess.run(["git", "ls-files", "-z"], capture_output=True, text=True, cwd=ROOT, check=False)
    if listed.returncode == 0:
        names = [name for name in listed.stdout.split("\0") if name]
        return [ROOT / name for name in names if (ROOT / name).is_file()]
    tops = ("runtime", "tests", "bench", "docs", "agents", "skills", "hooks")
    return [path for top in tops for path in (ROOT / top).rglob("*") if path.is_file()]


LOCKS = {"uv.lock", "pylock.toml", "poetry.lock", "pdm.lock", "Pipfile.lock", "package-lock.json", "yarn.lock"}


def test_no_lock_file_is_kept() -> None:
    assert [short(path) for path in kept_files() if path.name in LOCKS] == []


SEP = "/"
FORBIDDEN = re.compile(
    rf"(?<![\w.~*-])(?:{SEP}work{SEP}(?:main|shared)|{SEP}root{SEP}\.|{SEP}opt{SEP}(?:pypi|wheels))"
    rf"|pypi\.{'org'}|files\.python{'hosted'}|registry\.npm{'js'}"
    rf"|--(?:extra-)?index-{'url'}|--find-{'links'}|\bissue #?\d"
)


def test_no_machine_and_no_package_index_is_named() -> None:
    named = []
    for path in kept_files():
        if path.suffix in (".png", ".gz", ".db") or path == Path(__file__).resolve():
            continue
        for number, line in enumerate(path.read_text("utf-8", "replace").splitlines(), 1):
            if found := FORBIDDEN.search(line):
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
