"""`encoder-fast`: the command line. Each command is a module with `add_arguments` and `run`.

Exit status: 0 done, 1 the work failed (or a check did not hold), 2 bad usage or bad input.
"""

import argparse
import contextlib
import importlib
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence

from encoder_fast._version import __version__

COMMANDS = {
    "embed": ("encoder_fast.commands.embed", "turn texts into vectors: .npy or .parquet"),
    "verify": ("encoder_fast.verify", "check every backend of this machine on a real model"),
    "bench": ("encoder_fast.commands.bench", "say how fast each engine is on this machine"),
    "doctor": ("encoder_fast.commands.doctor", "say what is installed, what runs, what is missing"),
}
# Wrong input rather than failed work, among the errors that the system raises.
_INPUT_ERRORS = (
    ValueError,
    ImportError,
    FileNotFoundError,
    PermissionError,
    IsADirectoryError,
    NotADirectoryError,
)


class _Parser(argparse.ArgumentParser):
    """argparse with its errors on one line."""

    def error(self, message: str):
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit status. `argv` is without the program's name."""
    argv = sys.argv[1:] if argv is None else list(argv)
    args = _parse(argv)
    warnings.showwarning = _show_warning
    try:
        with _terminated_like_interrupted():
            return args.run(args)
    except KeyboardInterrupt:
        return _fail(args, "interrupted", 130)
    except BrokenPipeError:
        # The reader of our output has gone; python would complain again when it flushes at exit.
        sys.stdout = None
        return 1
    except Exception as error:
        if args.debug:
            raise
        known = isinstance(error, _INPUT_ERRORS)
        text = _sentence(error)
        if not known:
            text = f"{type(error).__name__}: {text} (--debug shows where)"
        return _fail(args, text, 2 if known else 1)


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = _Parser(
        prog="encoder-fast",
        description="Fast encoders: text to vectors, checks and a look at this machine.",
        epilog="example: encoder-fast embed notes.txt --model ./all-MiniLM-L6-v2 -o notes.npy",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=_Parser)
    chosen = next((word for word in argv if not word.startswith("-")), None)
    for name, (module_name, summary) in COMMANDS.items():
        command = subparsers.add_parser(
            name, help=summary, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        command.add_argument("--debug", action="store_true", help="show the traceback of an error")
        # Only the command that was asked for is imported: `doctor` must work where others cannot.
        if name == chosen:
            module = importlib.import_module(module_name)
            module.add_arguments(command)
            command.set_defaults(run=module.run)
    args = parser.parse_args(argv)
    if args.command is None:
        parser.error(f"name a command: {', '.join(COMMANDS)}")
    return args


def _sentence(error: Exception) -> str:
    """One line without Python's "[Errno 2]"."""
    text = str(error)
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        text = f"{error.filename or repr(error.filename)}: {error.strerror}"
    return " ".join(text.split()) or type(error).__name__


def _fail(args: argparse.Namespace, text: str, status: int) -> int:
    print(f"encoder-fast {args.command}: {text}", file=sys.stderr)
    return status


def _show_warning(message, *_):
    print(f"encoder-fast: warning: {message}", file=sys.stderr)


@contextlib.contextmanager
def _terminated_like_interrupted() -> Iterator[None]:
    """SIGTERM unwinds like Ctrl-C, so that temporary files are removed."""

    def interrupt(*_):
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


if __name__ == "__main__":
    sys.exit(main())
