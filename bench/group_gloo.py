# SPDX-License-Identifier: Apache-2.0
"""One process of a torch.distributed world with gloo, which bench-group orders about.

    group_gloo.py RANK WORLD FILE

FILE: where the processes find each other. An order is a line on standard input,

    ORDER PROCESSES SIZE COUNT CPUS

for the first so many processes; the answer is a line of numbers: nanoseconds, or stamps of
CLOCK_MONOTONIC. Messages go as inference engines send them: an int64 with the size, then a pickle,
both by isend() and irecv(), to each receiver.
"""
import os
import pickle
import sys
import time

import torch
import torch.distributed as dist

GAP_S = 0.0005  # between two messages that are timed alone: the receivers sleep
PENDING = 64  # sends in a stream that are not waited for yet

now = time.monotonic_ns


def cpus_of(text):
    for part in text.split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def send(number, fill, receivers):
    data = bytearray(pickle.dumps((number, fill)))
    size = torch.tensor([len(data)], dtype=torch.int64)
    payload = torch.frombuffer(data, dtype=torch.uint8)
    works = []
    for r in receivers:
        works.append((dist.isend(size, r), size))
        works.append((dist.isend(payload, r), payload))
    return works


def receive(number):
    size = torch.empty(1, dtype=torch.int64)
    dist.irecv(size, 0).wait()
    data = bytearray(int(size))
    dist.irecv(torch.frombuffer(data, dtype=torch.uint8), 0).wait()
    if pickle.loads(data)[0] != number:
        raise RuntimeError("a message is not what was sent")


def finish(works):
    for work, _ in works:
        work.wait()


def fill_of(size):
    return bytes(max(size - len(pickle.dumps((1000, b""))), 0))


def message(rank, n, size, count, group):
    """When each message was about to be sent, or was there."""
    stamps, fill = [], fill_of(size)
    dist.barrier(group)
    for number in range(count):
        if rank == 0:
            time.sleep(GAP_S)
            stamps.append(now())
            finish(send(number, fill, range(1, n)))
        else:
            receive(number)
            stamps.append(now())
    return stamps


def stream(rank, n, size, count, group):
    """When the first message was about to be sent, or the last one was there."""
    works, fill = [], fill_of(size)
    dist.barrier(group)
    start = now()
    for number in range(count):
        if rank == 0:
            works += send(number, fill, range(1, n))
            if len(works) > PENDING:
                finish(works)
                works = []
        else:
            receive(number)
    end = now()
    finish(works)
    return [start if rank == 0 else end]


def barrier(_rank, _n, _size, count, group):
    for _ in range(count // 8 + 1):
        dist.barrier(group)
    start = now()
    for _ in range(count):
        dist.barrier(group)
    return [now() - start]


def minimum(rank, n, _size, count, group):
    def once(i):
        v = torch.tensor([i + rank, -rank, 7], dtype=torch.int64)
        dist.all_reduce(v, op=dist.ReduceOp.MIN, group=group)
        if v.tolist() != [i, 1 - n, 7]:
            raise RuntimeError("a minimum is wrong")

    for i in range(count // 8 + 1):
        once(i)
    start = now()
    for i in range(count):
        once(i)
    return [now() - start]


ORDERS = {"message": message, "stream": stream, "barrier": barrier, "min": minimum}


def main():
    rank, world = int(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + sys.argv[3], rank=rank,
                            world_size=world)
    # All processes make all groups, in the same order.
    groups = {n: dist.new_group(list(range(n))) for n in range(2, world + 1)}
    print("ready torch", torch.__version__, "python", sys.version.split()[0], flush=True)
    for line in sys.stdin:
        order, n, size, count, cpus = line.split()
        os.sched_setaffinity(0, set(cpus_of(cpus)))
        n = int(n)
        said = ORDERS[order](rank, n, int(size), int(count), groups[n])
        print(*said, flush=True)


try:
    main()
except Exception as e:  # pylint: disable=broad-except
    print("error", type(e).__name__, str(e).replace("\n", " "), flush=True)
os._exit(0)  # gloo's threads wait for the others
