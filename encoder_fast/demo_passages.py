"""Real texts that every Python carries: the docstrings of its own standard library."""

import ast
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

# Tests, bundled installers and third-party folders that live below the library's folder.
_SKIPPED_FOLDERS = {
    "__pycache__",
    "dist-packages",
    "ensurepip",
    "idlelib",
    "idle_test",
    "lib2to3",
    "site-packages",
    "test",
    "tests",
    "turtledemo",
}
SHORTEST_CHARACTERS = 60


def docstrings(limit: int | None = None) -> list[tuple[str, str]]:
    """[(dotted name, text)] of public objects, in file order, each text once.

    With `limit`, that many spread evenly over the library. The same Python gives the same list.
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    found = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        if _SKIPPED_FOLDERS.isdisjoint(parts) and not parts[-1].startswith("_"):
            for name, text in _docstrings_of(path, ".".join(parts)):
                found.setdefault(text, name)
    passages = [(name, text) for text, name in found.items()]
    if limit is None or limit >= len(passages):
        return passages
    return [passages[index * len(passages) // limit] for index in range(limit)]


def _docstrings_of(path: Path, module: str) -> Iterator[tuple[str, str]]:
    try:
        with warnings.catch_warnings():
            # Old escapes in docstrings are the library's business.
            warnings.simplefilter("ignore")
            tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, OSError):
        # A few files are broken on purpose, for tests of the parser.
        return
    pending = [(tree, module)]
    while pending:
        node, name = pending.pop(0)
        text = ast.get_docstring(node) or ""
        if len(text) >= SHORTEST_CHARACTERS:
            yield name, text
        for child in node.body:
            named = isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            if named and not child.name.startswith("_"):
                pending.append((child, f"{name}.{child.name}"))
