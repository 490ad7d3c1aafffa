"""Tests that are collected once for all workers of pytest-xdist, in the process that they are copies of.

To collect twelve thousand tests takes a worker three seconds of CPU, after all imports have been made. Here the process
that is copied runs the beginning of a worker: it makes the configuration and the session and collects the tests. A copy
goes on from there, with a folder and captured streams of its own. Where something is odd (a file that cannot be
imported, other arguments), each worker collects for itself. pytest has no public way to do this, and the tests of it
are in `test_run_plugins.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from _pytest import config as pytest_config
from _pytest import tmpdir
from _pytest.capture import CaptureManager
from _pytest.main import Session
from xdist import remote


def collect(arguments: Sequence[str]) -> Session | None:
    """Do what a worker with these arguments does before it runs tests; None where not all could be collected."""
    config = pytest_config._prepareconfig([*arguments], None)
    remote.setup_config(config, None)
    pytest.MonkeyPatch().setattr(config, "workerinput", {}, raising=False)  # a worker knows by it that it is one
    warnings = Warnings()
    config.pluginmanager.register(warnings)
    session = Session.from_config(config)
    config._do_configure()
    # A worker's terminal leads nowhere: not to write reports to it saves their time.
    config.pluginmanager.unregister(name="terminalreporter")
    config.hook.pytest_sessionstart(session=session)
    try:
        config.hook.pytest_collection(session=session)
    except (pytest.UsageError, Session.Interrupted, Session.Failed):
        return None
    finally:
        capturing(config).stop_global_capturing()  # all copies would write into its one file
        config.pluginmanager.unregister(warnings)
    return None if session.testsfailed or warnings.given else session


class Warnings:
    """Notes whether a warning was given, which a worker reports."""

    given = False

    def pytest_warning_recorded(self) -> None:
        self.given = True


def capturing(config: pytest.Config) -> CaptureManager:
    """Return what captures the streams."""
    manager = config.pluginmanager.getplugin("capturemanager")
    assert isinstance(manager, CaptureManager)
    return manager


def hand_over(session: Session, arguments: Sequence[str]) -> None:
    """Let the worker that this process becomes take this session in place of one that it would make.

    `remote.py` of xdist asks pytest for a configuration, puts its folder and itself into it, and runs `wrap_session`.
    """
    config = session.config
    known = config.pluginmanager.get_plugins()
    prepare = pytest_config._prepareconfig
    patch = pytest.MonkeyPatch()

    def prepared(asked: list[str], plugins: None) -> pytest.Config:
        if asked != [*arguments]:
            return prepare(asked, plugins)
        patch.setattr(Session, "from_config", lambda config: session)
        return config

    def configure() -> None:
        tmpdir.pytest_configure(config)  # the folder of this worker
        manager = capturing(config)
        manager.start_global_capturing()
        manager.suspend_global_capture()
        # Only xdist hears of the session: if it heard of it again, the manager of fixtures would forget all.
        start = config.pluginmanager.subset_hook_caller("pytest_sessionstart", known)
        patch.setattr(config.hook, "pytest_sessionstart", start)

    def finish() -> None:
        config.hook.pytest_collection_finish(session=session)

    patch.setattr(pytest_config, "_prepareconfig", prepared)
    patch.setattr(config, "_do_configure", configure)
    patch.setattr(session, "perform_collect", finish)
