"""Execute the Python blocks of one page in one namespace and one event loop, with a JSON line in and out for each."""

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


def run(runner: asyncio.Runner, module: types.ModuleType, block: dict[str, str]) -> dict[str, str]:
    """Run a block, and return its output and its failure."""
    output, name = io.StringIO(), block["where"]
    linecache.cache[name] = (len(block["text"]), None, block["text"].splitlines(True), name)
    with contextlib.redirect_stdout(output):
        try:
            code = compile(block["text"], name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
            done = eval(code, module.__dict__)
            if inspect.iscoroutine(done):
                runner.run(done)
        except BaseException:
            return {"said": output.getvalue(), "failed": traceback.format_exc()}
    return {"said": output.getvalue(), "failed": ""}


def main() -> None:
    """Run blocks until stdin closes."""
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
