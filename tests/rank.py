# SPDX-License-Identifier: Apache-2.0
"""A rank without a compiler: attaches to a group through ctypes, prints the completions it takes.

    KVR_LIB=build/libkvring.so.0 python3 tests/rank.py NAME RANK

Ends with status 0 when the leader shuts down or on Ctrl-C, which works although the process sleeps
inside the library: the call returns -EINTR when a signal handler ran, Python then raises
KeyboardInterrupt, and calling again would have gone on.
"""
import ctypes
import errno
import os
import sys

KVR_NEXT, KVR_NOW = 1, 2
STAGES = ("none", "begun", "committed", "copied", "host", "verified", "written", "done", "failed",
          "cancelled", "lost")


class Request(ctypes.Structure):
    _fields_ = [("id", ctypes.c_uint64), ("space", ctypes.c_uint64), ("attempt", ctypes.c_uint32),
                ("reserved", ctypes.c_uint32)]


class Completion(ctypes.Structure):
    _fields_ = [("request", Request), ("kind", ctypes.c_uint32), ("stage", ctypes.c_uint32),
                ("status", ctypes.c_int32), ("blocks", ctypes.c_uint32), ("tick", ctypes.c_uint64)]


def load():
    lib = ctypes.CDLL(os.environ.get("KVR_LIB", "libkvring.so.0"))
    lib.kvr_explain.restype = ctypes.c_char_p
    lib.kvr_deadline.restype = ctypes.c_uint64
    lib.kvr_deadline.argtypes = [ctypes.c_uint64]
    lib.kvr_connector_join.argtypes = [
        ctypes.c_char_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_uint64,
        ctypes.POINTER(ctypes.c_void_p)]
    lib.kvr_connector_check_completed.argtypes = [
        ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64,
        ctypes.POINTER(Completion), ctypes.c_uint32, ctypes.POINTER(ctypes.c_uint64)]
    lib.kvr_connector_shutdown.argtypes = [ctypes.c_void_p, ctypes.c_uint64]
    lib.kvr_connector_close.argtypes = [ctypes.c_void_p]
    lib.kvr_connector_close.restype = None
    return lib


class Failed(Exception):
    """An error of the library: its number, and its sentence."""

    def __init__(self, lib, err):
        super().__init__(lib.kvr_explain().decode())
        self.errno = -err


def completions(lib, rank, mode):
    """The completions up to a tick, and that tick; None when there was a signal or no tick."""
    room = (Completion * 4096)()
    tick = ctypes.c_uint64()
    n = lib.kvr_connector_check_completed(rank, mode, 0, lib.kvr_deadline(500), room,
                                          len(room), ctypes.byref(tick))
    if n in (-errno.EINTR, -errno.EAGAIN, -errno.ETIMEDOUT, -errno.ESHUTDOWN):
        return None  # the end of the group is for over() to see
    if n < 0:
        raise Failed(lib, n)
    return room[:n], tick.value


def over(lib, rank):
    """Has the leader announced the end? A look, without waiting."""
    err = lib.kvr_connector_shutdown(rank, 0)
    if err and err not in (-errno.EINTR, -errno.EAGAIN, -errno.ETIMEDOUT):
        raise Failed(lib, err)
    return not err


def show(taken):
    for c in taken[0]:
        print(f"{'store' if c.kind == 1 else 'load'} {c.request.id}/{c.request.attempt}"
              f" {STAGES[c.stage]}: status {c.status}, {c.blocks} blocks, tick {c.tick}")
    print(f"tick {taken[1]}", flush=True)


def main():
    lib = load()
    rank = ctypes.c_void_p()
    err = lib.kvr_connector_join(sys.argv[1].encode(), int(sys.argv[2]), None,
                                 lib.kvr_deadline(20_000), ctypes.byref(rank))
    if err:
        sys.exit(f"join: {lib.kvr_explain().decode()}")
    status = 0
    try:
        print(f"attached as rank {sys.argv[2]}", flush=True)
        mode = KVR_NOW
        while True:
            taken = completions(lib, rank, mode)
            if taken:
                show(taken)
            elif over(lib, rank):
                print("the leader shut down", flush=True)
                break
            mode = KVR_NEXT
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    except Failed as failed:
        print(failed, flush=True)
        status = 0 if failed.errno == errno.ESHUTDOWN else 1
    finally:
        lib.kvr_connector_close(rank)
    print("closed", flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
