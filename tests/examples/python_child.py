"""Executes the Python blocks of one page, in one namespace and one event loop; a JSON line in and out for each."""

import ast
import asyncio
import contextlib
import inspect
import io
import json
import linecache
import sys
import traceback
import types


def run(runner: asyncio.Runner, module: types.ModuleType, asked: dict[str, str]) -> dict[str, str]:
    """What the block prints, and its failure."""
    said, name = io.StringIO(), asked["where"]
    linecache.cache[name] = (len(asked["text"]), None, asked["text"].splitlines(True), name)
    with contextlib.redirect_stdout(said):
        try:
            code = compile(asked["text"], name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
            done = eval(code, module.__dict__)
            if inspect.iscoroutine(done):
                runner.run(done)
        except BaseException:
            return {"said": said.getvalue(), "failed": traceback.format_exc()}
    return {"said": said.getvalue(), "failed": ""}


def main() -> None:
    """Until nobody asks."""
    module = types.ModuleType("example")
    sys.modules["example"] = module
    sys.path[0] = ""
    answers = sys.stdout
    with asyncio.Runner() as runner:
        runner.get_loop()
        for line in sys.stdin:
            answers.write(json.dumps(run(runner, module, json.loads(line))) + "\n")
            answers.flush()


if __name__ == "__main__":
    main()
