/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who a process is, beyond its number, and whether it is still there. A pid alone says nothing: it
 * is used again, and it means another process in another pid namespace. So a process is named by
 * pid, start time, and the namespaces in which both were seen (a time namespace shifts start
 * times); what lives in others cannot be looked at from here. And where /proc does not tell, nobody
 * is gone: it may belong to another pid namespace, hide other users' processes, or not open because
 * this process has no descriptors left.
 *
 * Nothing here decides whether to wait for a process: that is its liveness word (life.h). It says
 * what became of one, and ends one.
 */
#ifndef KVR_PROCESS_H
#define KVR_PROCESS_H

#include <stdint.h>

enum kvr_process_state {
	KVR_PROCESS_UNKNOWN, /* /proc does not tell, or another pid namespace */
	KVR_PROCESS_GONE,    /* no threads, no memory, no open files; perhaps not reaped yet */
	KVR_PROCESS_RUNS,
	KVR_PROCESS_STOPPED, /* by a signal or a debugger */
	KVR_PROCESS_DUMPS    /* writes a core dump, or has just done so: neither alive nor gone */
};

struct kvr_process {
	uint32_t pid;
	uint64_t start_time; /* field 22 of /proc/PID/stat; 0: unknown */
	uint64_t space;	     /* inodes of pid (low half) and time namespace (high); 0: unknown */
};

/* The calling process. */
void kvr_process_self(struct kvr_process *ret);
/* 0: no such process in this namespace. */
uint64_t kvr_process_start_time(uint32_t pid);
/* What became of it. Some system calls; sets no sentence. */
enum kvr_process_state kvr_process_state(const struct kvr_process *p);
/*
 * Kills it (SIGKILL, by pidfd, so that nobody else who got its number is hit) and waits until it is
 * gone. 0, also when it was gone before; -EBUSY: this very process, or one in another
 * namespace, or one that cannot be told apart; -EPERM; -ETIMEDOUT: it does not end; -EINTR.
 */
int kvr_process_kill(const struct kvr_process *p, uint64_t deadline_ns);

/* Of this start of the machine. 0 or -EIO. */
int kvr_process_boot_id(uint8_t ret_id[16]);

#endif
