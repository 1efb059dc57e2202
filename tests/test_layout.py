"""The rules of the tree that a reviewer would otherwise have to remember, read from its source."""

import ast
import subprocess
from pathlib import Path

import pytest

from encoder_fast import architectures, kernels
from encoder_fast.kernels import dispatch

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "encoder_fast"
KERNELS = ROOT / "kernels"
SHIPPED = ("encoder_fast", "kernels")
SOURCES = [
    path for top in (*SHIPPED, "benchmarks", "tests") for path in sorted((ROOT / top).rglob("*.py"))
] + [ROOT / "setup.py"]

# Each may import those before it, never those after it.
ARROW = ("batch", "embeddings", "layers", "encoder", "heads", "model")
FOREIGN = {"transformers", "sentence_transformers", "peft"}
NOT_OPS = {"__init__", "activations", "dispatch"}
# Not of the model side: what the build makes, and what it was made from.
BELOW_KERNELS = ("encoder_fast.kernels", "encoder_fast._C", "encoder_fast._version")


def label(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def each(paths):
    return pytest.mark.parametrize("path", paths, ids=label)


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=label(path))


def is_typing_only(node: ast.AST) -> bool:
    """`if TYPE_CHECKING:` is read by type checkers alone and never runs."""
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def imported(node: ast.AST, inside_functions: bool = True) -> set[str]:
    """Dotted names imported under `node`: `from a.b import c` counts as a.b and as a.b.c."""
    names = set()
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            names |= {alias.name for alias in child.names}
        elif isinstance(child, ast.ImportFrom):
            module = child.module or ""
            names |= {module} | {f"{module}.{alias.name}" for alias in child.names}
        elif is_typing_only(child):
            continue
        elif inside_functions or not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            names |= imported(child, inside_functions)
    return names


def is_part_of(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def op_files() -> list[Path]:
    return [p for p in KERNELS.glob("*.py") if p.stem not in NOT_OPS and not p.stem.startswith("_")]


def tree_files() -> list[Path]:
    """Committed files and those that git would add."""
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        done = subprocess.run(listing, cwd=ROOT, capture_output=True, check=True, text=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    return [ROOT / line for line in done.stdout.split("\0") if line and (ROOT / line).is_file()]


@each(sorted(KERNELS.glob("*.py")))
def test_kernels_import_nothing_from_the_model_side(path):
    outside = {
        module
        for module in imported(tree(path))
        if is_part_of(module, "encoder_fast")
        and module != "encoder_fast"
        and not any(is_part_of(module, part) for part in BELOW_KERNELS)
    }
    assert not outside, f"{label(path)} imports {sorted(outside)}, above it"


@pytest.mark.parametrize("module", ARROW)
def test_imports_follow_the_arrow(module):
    later = {f"encoder_fast.{other}" for other in ARROW[ARROW.index(module) + 1 :]}
    turned_back = later & imported(tree(PACKAGE / f"{module}.py"))
    assert not turned_back, f"{module}.py imports {sorted(turned_back)}, which come after it"


@each(sorted((PACKAGE / "architectures").glob("*.py")))
def test_architectures_are_data_below_the_model(path):
    above = {f"encoder_fast.{module}" for module in ARROW} & imported(tree(path))
    assert not above, f"{label(path)} imports {sorted(above)}"


@each([p for p in sorted(PACKAGE.rglob("*.py")) if "integrations" not in p.parts])
def test_foreign_libraries_stay_outside(path):
    """Only integrations/ needs them; the demo and verify compare with them if they are there."""
    compares = path.parent == PACKAGE and path.stem.startswith(("demo", "verify"))
    modules = imported(tree(path), inside_functions=not compares)
    found = FOREIGN & {module.split(".")[0] for module in modules}
    assert not found, f"{label(path)} imports {sorted(found)}"


@each(SOURCES)
def test_imports_are_absolute_and_never_the_bare_folder(path):
    parsed = tree(path)
    bare = {module for module in imported(parsed) if module.split(".")[0] == "kernels"}
    relative = [n.lineno for n in ast.walk(parsed) if isinstance(n, ast.ImportFrom) and n.level]
    assert not bare, f"{label(path)}: write encoder_fast.kernels"
    assert not relative, f"{label(path)}: relative imports on lines {relative}"


def test_every_architecture_file_is_registered():
    files = {p.stem for p in (PACKAGE / "architectures").glob("*.py") if not p.stem.startswith("_")}
    assert files == {architecture.name for architecture in architectures.ALL}


def test_every_op_file_is_registered():
    assert {p.stem for p in op_files()} == {op.__name__.split(".")[-1] for op in kernels.OPS}


@pytest.mark.parametrize("op", kernels.OPS, ids=lambda op: op.__name__.split(".")[-1])
def test_every_op_has_a_specification_and_a_portable_engine(op):
    assert {"reference", "torch"} <= set(op.IMPLEMENTATIONS)
    assert set(op.IMPLEMENTATIONS) <= set(dispatch.BACKENDS)


@each(SOURCES)
def test_files_and_functions_are_short(path):
    text = path.read_text(encoding="utf-8")
    limit = 400 if path.parent == KERNELS else 300
    lines = text.count("\n")
    assert lines <= limit, f"{label(path)} has {lines} lines, the limit is {limit}"
    long = [
        f"{node.name} ({node.end_lineno - node.lineno + 1} lines)"
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno - node.lineno >= 60
    ]
    assert not long, f"{label(path)}: functions over 60 lines: {', '.join(long)}"


@each([p for p in SOURCES if p.parts[len(ROOT.parts)] in SHIPPED and p != PACKAGE / "settings.py"])
def test_only_settings_reads_the_environment(path):
    reads = [
        node.lineno
        for node in ast.walk(tree(path))
        if (isinstance(node, ast.Attribute) and node.attr in {"environ", "environb", "getenv"})
        or (isinstance(node, ast.ImportFrom) and node.module == "os" and "env" in ast.unparse(node))
    ]
    assert not reads, f"{label(path)} reads the environment on lines {reads}; settings.py does that"


def test_no_second_kernels_or_triton():
    clashes = []
    for path in tree_files():
        *folders, _ = path.relative_to(ROOT).parts
        inner = [*folders[1:], path.stem] if folders else [path.stem]
        if {"kernels", "triton"} & set(inner) or "triton" in folders:
            clashes.append(label(path))
    assert not clashes, f"these would hide another package of that name: {clashes}"


def test_no_binary_files_are_committed():
    binaries = [label(path) for path in tree_files() if b"\0" in path.read_bytes()[:8192]]
    assert not binaries, f"binary files in the tree: {binaries}"


def test_every_op_states_its_cost():
    for op in kernels.OPS:
        assert callable(op.cost), op.__name__
