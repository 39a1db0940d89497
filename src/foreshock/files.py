"""Opening, locking and vetting what may have come from someone else: plain files only."""

import errno
import os
import stat
import weakref
from contextlib import suppress
from pathlib import Path
from typing import final

from foreshock.core.errors import RunDirError


def open_plain(path: Path, flags: int) -> int:
    """Open a plain file: never what a link points to, nor what never ends or makes us wait."""
    flags |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    if path.is_symlink():
        raise OSError(errno.ELOOP, "it is a symbolic link", str(path))
    fd = os.open(path, flags, 0o666)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "it is not a plain file", str(path))
    return fd


def refuse_links(*folders: Path) -> None:
    """Raise RunDirError for one that is a file, or a link that may lead out of its run."""
    for path in folders:
        if path.is_symlink() or (path.exists() and not path.is_dir()):
            raise RunDirError(f"{path} is no directory of its own: put one in its place.")


@final
class FileLock:
    """`flock` on a file that names its holder; the kernel frees it when the process dies."""

    def __init__(self, path: Path) -> None:
        import fcntl  # noqa: PLC0415  # POSIX only; reading a run works without

        self._fd = open_plain(path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._fd, 200, 0).decode("utf-8", "replace").strip()
            self.close()
            raise RunDirError(
                f"{path.parent} is in use by {holder or 'another process'}: "
                f"stop it, or choose another run directory."
            ) from None
        except OSError as error:
            self.close()
            raise RunDirError(
                f"the file system of {path.parent} cannot lock files ({error.strerror}): "
                f"choose a run directory on another one (Lustre needs the mount option flock)."
            ) from error
        with suppress(OSError):  # The name is for the message only; a full disk may lock too.
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, f"process {os.getpid()} on {os.uname().nodename}\n".encode(), 0)
        # Else a data-loading worker that outlives a killed trainer keeps the run locked.
        held = weakref.WeakMethod(self.close)
        os.register_at_fork(after_in_child=lambda: (close := held()) and close())

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
