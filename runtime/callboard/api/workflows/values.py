"""Values of steps on their way into the journal and out of it: JSON, by the type that is known of them."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticSerializationError, to_jsonable_python

from callboard.api.errors import NotTyped, UsageError, WorkflowChanged
from callboard.api.signatures import adapter_of, faults_of


def value_of(value: Any, kind: Any, where: str) -> Any:
    """The value as JSON. Raises `UsageError` for one that would not be the same when it is read again."""
    if kind is not None and kind is not type(None) and kind is not Any:
        return _dumped(value, kind, where)
    try:
        plain = to_jsonable_python(value)
    except PydanticSerializationError as error:
        raise UsageError(f"step {where}: {type(value).__name__} is no JSON: {error}") from error
    if isinstance(value, BaseModel) or plain != value or json.loads(json.dumps(plain)) != value:
        raise UsageError(
            f"step {where}: a {type(value).__name__} would come back as plain JSON when the workflow is resumed: write "
            "the type that its function returns"
        )
    return plain


def _dumped(value: Any, kind: Any, where: str) -> Any:
    try:
        adapter = adapter_of(kind, where)
        return adapter.dump_python(adapter.validate_python(value), mode="json")
    except NotTyped:
        return value_of(value, None, where)
    except (ValidationError, PydanticSerializationError) as error:
        raise UsageError(f"step {where}: it returned something else than it says: {error}") from error


def read_value(plain: Any, kind: Any, where: str) -> Any:
    """The value that stands in the journal. Raises `WorkflowChanged` where its type has changed since."""
    if kind is None or kind is type(None) or kind is Any:
        return plain
    try:
        return adapter_of(kind, where).validate_python(plain)
    except NotTyped:
        return plain
    except ValidationError as error:
        told = "; ".join(faults_of(error))
        raise WorkflowChanged(f"step {where}: what it came to no longer fits its type: {told}", where) from error
