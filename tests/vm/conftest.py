"""A run of everything boots its machines ahead."""

from vm import ahead


def pytest_collection_finish(session) -> None:
    wanted = any(item.path.parent.name == "vm" for item in session.items)
    if wanted and len(session.items) >= ahead.WHOLE_SUITE and not session.config.option.collectonly:
        ahead.start()


def pytest_sessionfinish() -> None:
    ahead.stop()
