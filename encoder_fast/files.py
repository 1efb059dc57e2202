"""Files that are written whole or not at all."""

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Yields a temporary path beside `path`; on a clean exit it becomes `path`, else it is removed.

    The temporary lives in the same folder because a rename is only atomic inside one file system.
    A reader sees the old file or the complete new one, also after a crash: the bytes reach the disk
    before the name does. Raises ValueError where `path` is a folder or a device, FileNotFoundError
    where its folder does not exist.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        raise ValueError(f"cannot write {path}: it exists and is not a regular file")
    if not target.parent.is_dir():
        raise FileNotFoundError(f"cannot write {path}: there is no folder {target.parent}")
    temporary = target.with_name(f".{target.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    # Created here so that the mode follows the umask and nobody else's file is opened.
    try:
        temporary.touch(exist_ok=False)
    except OSError as error:
        raise OSError(error.errno, f"cannot write: {error.strerror}", str(path)) from None
    try:
        if target.exists():
            shutil.copymode(target, temporary)
        yield temporary
        _sync(temporary)
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(target.parent)


def _sync(path: Path) -> None:
    with open(path, "r+b") as file:
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    # Windows cannot open a folder, and some network file systems refuse to sync one. The file
    # itself is already safe: only the durability of the new name is at stake.
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
