"""Builtins of the shell that set variables, and literal text that bash expands once more when it runs. Pure.

Such text is a subscript, a prompt, or `PROMPT_COMMAND`. `[[ 'a[$(cmd)]' -eq 1 ]]` and `printf -v 'a[$(cmd)]' x` run
`cmd`, although the grammar sees only quoted text (man bash, "Arrays": a subscript is expanded like a word in double
quotes).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from callboard.core.permissions.command_table import ENVIRONMENT, names
from callboard.core.permissions.effects import Effect, Risk
from callboard.core.permissions.values import ProgramWords
from callboard.types.late_pattern import late_pattern

_EXPANDS_SUBSCRIPTS = names(
    "test [ loop printf read mapfile readarray declare typeset local export readonly unset wait getopts set"
)
"""Builtins and loops whose words bash may read as a variable with a subscript, now or in later arithmetic."""
_SUBSCRIPT = late_pattern(r"(?:\w\[|(?:^|=)\s*\().*(?:\$\(|`)", re.DOTALL)
"""Pattern of a subscript or an array with a substitution: `declare -a 'x=($(id))'` runs `id`."""
_SUBSTITUTION = late_pattern(r"\$\(|`")
_PROMPT = late_pattern(r"PS[0-4]|ENV|BASH_ENV")


_CALLERS = names("mapfile readarray compgen")
"""Builtins with an option that runs a command (`-C`, `-F`), or the substitutions in its words (`-W`)."""


def variable_effects(command: ProgramWords) -> Iterator[Effect]:
    """Yield the effects of a builtin that changes or shows variables."""
    texts = [arg.text for arg in command.args]
    if command.name == "set" and texts and all(re.fullmatch(r"[-+][euxo]+|pipefail|errexit|nounset", t) for t in texts):
        return
    if command.name in ENVIRONMENT and (not texts or texts[0] == "-p" or command.name == "printenv"):
        yield Risk("O", f"`{command.name}` shows the environment")
    else:
        yield Risk("V", f"`{command.name}` changes variables or settings of the shell")
    if command.name in _CALLERS and any(re.match(r"-\w*[CFW]", text) for text in texts):
        yield Risk("L", f"what `{command.name}` runs by its option is only known when it runs", "person")


def history_effects(command: ProgramWords) -> Iterator[Effect]:
    """Yield the effect of `fc`."""
    yield Risk("L", f"`{command.name}` runs earlier commands", "person")


def scripts_in_words(name: str, words: Iterable[str]) -> Iterator[str]:
    """Yield scripts that run what bash runs when it expands the subscripts in these words of the builtin `name`."""
    if name in _EXPANDS_SUBSCRIPTS:
        yield from (_expanding(word) for word in words if _SUBSCRIPT.search(word))


def scripts_in_value(name: str, value: str) -> Iterator[str]:
    """Yield scripts that run what bash may run when it uses the variable `name` with this value."""
    if name == "PROMPT_COMMAND":
        yield value
    elif name.startswith("BASH_FUNC_"):
        yield f"f {value}"
    elif _SUBSCRIPT.search(value) or (_PROMPT.fullmatch(name) and _SUBSTITUTION.search(value)):
        yield _expanding(value)


def scripts_in_environment(wrapper: str, words: Iterable[str]) -> Iterator[str]:
    """Yield scripts that a shell runs when the wrapper `env` starts it with these assignments."""
    for name, _, value in (word.partition("=") for word in words if wrapper == "env"):
        yield from scripts_in_value(name, value)


def _expanding(text: str) -> str:
    return f'echo "{text}"'
