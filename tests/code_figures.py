"""Count what makes the package easy or hard to read: `python tests/code_figures.py [FOLDER]` prints a table.

Each figure is a function of the parsed files, so that `tests/test_architecture.py` can set a limit for it. FOLDER is a
checkout of the project, also an older one; without it, this one.
"""

from __future__ import annotations

import ast
import itertools
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from graphlib import TopologicalSorter
from pathlib import Path

VAGUE = frozenset(
    {
        *("one", "found", "given", "told", "asked", "kept", "known", "wanted", "words", "said", "there", "what", "why"),
        *(
            "who",
            "here",
            "theirs",
            "mine",
            "ours",
            "meant",
            "beside",
            "again",
            "left",
            "more",
            "rest",
            "taken",
            "shown",
        ),
        *("shown", "heard", "amiss"),
    }
)
"""Names that do not say what the value is."""

QUESTION_WORDS = ("What", "Who", "Whom", "Which", "Whether", "Where", "How", "Why")
"""First words of a docstring that states a question instead of what the object is or does."""

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
DOCUMENTED = (ast.Module, ast.ClassDef, *FUNCTIONS)


@dataclass(frozen=True)
class Code:
    """The parsed modules of the package, by dotted name."""

    modules: Mapping[str, ast.Module]

    @classmethod
    def read(cls, root: Path) -> Code:
        """Parse every module below `root/runtime/callboard` except the sample project, which is data."""
        package = root / "runtime" / "callboard"
        paths = [path for path in sorted(package.rglob("*.py")) if "sample" not in path.relative_to(package).parts]
        return cls({_dotted(path, package): ast.parse(path.read_text("utf-8")) for path in paths})

    @cached_property
    def nodes_of(self) -> dict[str, list[ast.AST]]:
        """Return all nodes of each module."""
        return {name: list(ast.walk(tree)) for name, tree in self.modules.items()}

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """Return all nodes of all modules."""
        return [node for nodes in self.nodes_of.values() for node in nodes]

    @cached_property
    def functions(self) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
        """Return all functions and methods."""
        return [node for node in self.nodes if isinstance(node, FUNCTIONS)]

    @cached_property
    def imports(self) -> dict[str, set[str]]:
        """Return the modules of the package that each module imports; packages that only re-export are left out."""
        graph: dict[str, set[str]] = {}
        for name, nodes in self.nodes_of.items():
            targets = set(_imported_names(nodes)) & set(self.modules)
            graph[name] = {
                target for target in targets if not any(other.startswith(f"{target}.") for other in targets)
            } - {name}
        return graph


def _dotted(path: Path, package: Path) -> str:
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported_names(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def bindings(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Return each name that is bound: variables, parameters, functions, classes, caught errors, matched values."""
    for node in nodes:
        match node:
            case ast.arg():
                yield node.arg
            case ast.Name(ctx=ast.Store()):
                yield node.id
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield name
            case _:
                pass


def vague_bindings(code: Code) -> tuple[int, int]:
    """Return the number of bindings with a vague name, and of all bindings."""
    names = list(bindings(code.nodes))
    return sum(name.strip("_") in VAGUE for name in names), len(names)


def questioning_docstrings(code: Code) -> tuple[int, int]:
    """Return the number of docstrings that begin with a question word, and of all docstrings."""
    texts = [ast.get_docstring(node) for node in code.nodes if isinstance(node, DOCUMENTED)]
    first_words = [text.split()[0].strip(",.:;") for text in texts if text and text.split()]
    return sum(word in QUESTION_WORDS for word in first_words), len(first_words)


def questioning_attribute_docs(code: Code) -> tuple[int, int]:
    """Return the number of attribute docs (a string after an assignment) that begin so, and of all."""
    texts = list[str]()
    for node in code.nodes:
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        for assigned, doc in itertools.pairwise(body):
            if isinstance(assigned, ast.Assign | ast.AnnAssign) and isinstance(doc, ast.Expr):
                value = doc.value
                if isinstance(value, ast.Constant) and isinstance(value.value, str) and value.value.split():
                    texts.append(value.value.split()[0].strip(",.:;"))
    return sum(word in QUESTION_WORDS for word in texts), len(texts)


def repeated_class_names(code: Code) -> tuple[int, int]:
    """Return the number of class names that stand for more than one class, and of all classes."""
    counts = Counter(node.name for node in code.nodes if isinstance(node, ast.ClassDef))
    return sum(count > 1 for count in counts.values()), counts.total()


def repeated_public_classes(code: Code) -> list[str]:
    """Return the public names of classes that stand for more than one module-level class."""
    counts = Counter(
        node.name for tree in code.modules.values() for node in tree.body if isinstance(node, ast.ClassDef)
    )
    return sorted(name for name, count in counts.items() if count > 1 and not name.startswith("_"))


def single_importer_modules(code: Code) -> tuple[int, int]:
    """Return the number of modules that exactly one other module imports, and of all modules that are no package."""
    importers = Counter(target for targets in code.imports.values() for target in targets)
    modules = [name for name in code.modules if not any(other.startswith(f"{name}.") for other in code.modules)]
    return sum(importers[name] == 1 for name in modules), len(modules)


def longest_import_chain(code: Code) -> list[str]:
    """Return the longest chain of modules in which each imports the next."""
    lazy = {name: targets for name, targets in code.imports.items() if name != "callboard"}
    graph = {name: {target for target in targets if target in lazy} for name, targets in lazy.items()}
    chains: dict[str, list[str]] = {}
    for name in TopologicalSorter(graph).static_order():
        longest = max((chains[target] for target in graph[name]), key=len, default=list[str]())
        chains[name] = [name, *longest]
    return max(chains.values(), key=len)


def once_called_functions(code: Code) -> tuple[int, int]:
    """Return the number of private functions and methods that are named once, and of all functions and methods."""
    uses = Counter[str]()
    for node in code.nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            uses[node.id] += 1
        elif isinstance(node, ast.Attribute):
            uses[node.attr] += 1
    private = [node for node in code.functions if re.fullmatch(r"_[a-z]\w*", node.name)]
    return sum(uses[node.name] == 1 for node in private), len(code.functions)


def unrelated_tuple_assignments(code: Code) -> tuple[int, int]:
    """Return the number of assignments `a, b = x, y` that swap nothing, and of all statements."""
    statements = [node for node in code.nodes if isinstance(node, ast.stmt)]
    return sum(_is_unrelated(node) for node in statements), len(statements)


def _is_unrelated(node: ast.stmt) -> bool:
    """Decide whether both sides are tuples written out, and no name of the left side is read on the right."""
    if not (isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple)):
        return False
    target = node.targets[0]
    if not isinstance(target, ast.Tuple) or any(isinstance(part, ast.Starred) for part in node.value.elts):
        return False
    return not {ast.unparse(part) for part in target.elts} & {
        ast.unparse(part) for part in ast.walk(node.value) if isinstance(part, ast.expr)
    }


def positional_parameters(code: Code) -> list[str]:
    """Return the functions that take more than four parameters by position."""
    crowded = list[str]()
    for node in code.functions:
        names = [arg.arg for arg in (*node.args.posonlyargs, *node.args.args) if arg.arg not in ("self", "cls")]
        if len(names) > 4:
            crowded.append(node.name)
    return crowded


def figures(code: Code) -> dict[str, str]:
    """Return every figure by its name, written for people."""
    chain = longest_import_chain(code)
    lines = sum(getattr(tree.body[-1], "end_lineno", 0) or 0 for tree in code.modules.values() if tree.body)
    return {
        "modules (mean lines)": f"{len(code.modules)} ({lines // len(code.modules)})",
        "vague bindings, per 1,000": _per(vague_bindings(code), 1000),
        "docstrings that begin with a question word": _per(questioning_docstrings(code), 100, "%"),
        "attribute docs that begin with one": _per(questioning_attribute_docs(code), 100, "%"),
        "class names of more than one class": _per(repeated_class_names(code), 100, "%"),
        "public module-level class names of more than one": str(len(repeated_public_classes(code))),
        "longest import chain": str(len(chain)),
        "modules with one importer": _per(single_importer_modules(code), 100, "%"),
        "private functions used once": _per(once_called_functions(code), 100, "%"),
        "unrelated tuple assignments, per 1,000 statements": _per(unrelated_tuple_assignments(code), 1000),
        "functions with more than four positional parameters": str(len(positional_parameters(code))),
    }


def _per(part: tuple[int, int], base: int, unit: str = "") -> str:
    count, total = part
    return f"{base * count / total:.1f}{unit} ({count} of {total})"


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent
    measured = Code.read(folder)
    for label, figure in figures(measured).items():
        sys.stdout.write(f"{label:52} {figure}\n")
    sys.stdout.write("\n".join(["", "The longest chain:", *longest_import_chain(measured), ""]))
