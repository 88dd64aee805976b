/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Publish, park, wake: kvr_bell_ring() and nap() of lib/wait.c, rung() of lib/group_watcher.c, for
 * spin; wait.sh runs it. There is no back-stop (but with BACKSTOP=1), so a lost wake-up is a thread
 * that sleeps for ever: an invalid end state.
 *
 * These lines are modelled, in this order. wait.sh looks for them in the sources, and for letters
 * that are not here.
 *
 * lib/wait.c
 *   B1  if (kvr_xchg_acq_rel32(&bell->parked, 0)) {
 *   B3  kvr_add_acq_rel32(&bell->seq, 1);
 *   --  futex_wake_all(&bell->seq);
 *   B4  uint32_t seen = kvr_load_acquire32(&bell->seq);
 *   B2  kvr_xchg_acq_rel32(&bell->parked, 1);
 *   --  rc = ready(arg);
 *   --  err = futex_sleep(&bell->seq, seen, until);
 *   --  rc = ready(arg);
 * lib/group_watcher.c
 *   --  uint32_t seq = kvr_load_relaxed32(&w->bell->seq);
 *   E1  int event = !kvr_xchg_acq_rel32(&w->bell->parked, 1) || seq != w->seq;
 *   --  w->seq = seq;
 *   --  if (event && write(w->event_fd, &one, sizeof one) < 0)
 *
 * What is assumed of the machine:
 * - A store waits in its thread's buffer of two entries for any length of time; the thread's own
 *   loads find it there. What leaves a buffer is seen by all others at once (x86, ARMv8).
 * - WEAK=0, x86: the buffer is a queue, all else happens in program order, and a locked instruction
 *   waits until the buffer is empty.
 * - WEAK=1, what acquire and release promise on ARMv8, and no more. Stores to different words leave
 *   in any order, a release store only after what was stored before it. Loads change places with
 *   loads, stores and exchanges around them, but nothing later comes before a load-acquire. An
 *   exchange is a load part and a store part; nobody else writes the word between them, for then it
 *   is tried again. Release: all that is earlier comes before the store part. Acquire: all that is
 *   later comes after the load part. So a later load may come between the two, and at the load part
 *   an earlier store may still be in the buffer. All that x86 does is possible here, too.
 * - Neither: a store before the decision that it hangs on (which is why the acquire half of B1 does
 *   not matter here; in C11 it does); two accesses to one word by one thread out of order; a load
 *   that is early by more than one look or one message.
 * - System calls stay in order with the code around them. futex_wait has a full barrier, then
 *   compares and queues in one step; futex_wake has a full barrier, then takes the queue.
 * The data is one word a publisher: what is in a message is P1 and C1 of ring.h.
 */

/* Sizes. */
#ifndef PUBS
#define PUBS 1 /* 1 or 2 */
#endif
#ifndef MSGS
#define MSGS 2 /* of each publisher */
#endif
#ifndef SLEEPERS
#define SLEEPERS 1 /* 0 to 2 */
#endif
#ifndef OWN
#define OWN 0 /* 1: sleeper s waits for publisher s alone, else for all */
#endif
#ifndef WATCHER
#define WATCHER 0 /* 1: a watcher, and a program that polls the eventfd */
#endif
#ifndef FIRST
#define FIRST 1 /* 1: the watcher's first look always writes the eventfd, 0: when parked is 0 */
#endif
#ifndef SILENT
#define SILENT 0 /* 1: the eventfd is written at most twice a ring (more states) */
#endif
#ifndef BACKSTOP
#define BACKSTOP 0 /* 1: a sleeper may wake once by itself, and counts as nobody_rang() does */
#endif
#ifndef GRACE
#define GRACE 2 /* its grace time, in longest rings */
#endif

/* The machine, and the halves of orders that can be left out where it is weak. */
#ifndef WEAK
#define WEAK 0
#endif
#ifndef B1_REL
#define B1_REL 1
#endif
#ifndef B2_ACQ
#define B2_ACQ 1
#endif
#ifndef B2_REL
#define B2_REL 1
#endif
#ifndef B3_REL
#define B3_REL 1
#endif
#ifndef B4_ACQ
#define B4_ACQ 1
#endif
#ifndef E1_REL
#define E1_REL 1
#endif

/* Not what the library does: the ringer loads parked and exchanges it only where it is 1; the
 * sleeper stores it, then makes every registered thread pass a barrier, membarrier(2). */
#ifndef MEMBARRIER
#define MEMBARRIER 0
#endif
#ifndef FOREIGN
#define FOREIGN 0 /* 1: publisher 1 is not registered and always exchanges */
#endif

/* BROKEN=...: one thing wrong. */
#define B1_PLAIN 1	  /* ringer: load of parked, store of 0 */
#define B2_PLAIN 2	  /* sleeper: store of parked */
#define B3_MISSING 3	  /* ringer: seq stays */
#define B3_AFTER_WAKE 4	  /* ringer: futex_wake, then B3 */
#define B4_AFTER_B2 5	  /* sleeper: B4 between B2 and the second look */
#define B4_AFTER_LOOK 6	  /* sleeper: B4 after the second look */
#define NO_SECOND_LOOK 7  /* sleeper: parks and sleeps */
#define WAKE_ONE 8	  /* ringer: wakes one */
#define DIES 9		  /* publisher 0 is killed between B1 and B3 */
#define E1_AFTER_WRITE 10 /* watcher: writes the eventfd, then arms the bell */
#define E1_ALONE 11	  /* watcher: does not compare seq */
#define SEQ_AFTER_E1 12	  /* watcher: reads seq after E1 */
#define NO_BARRIER 13	  /* MEMBARRIER: the sleeper issues none */
#define UNREGISTERED 14	  /* MEMBARRIER: publisher 1 is not registered */
#ifndef BROKEN
#define BROKEN 0
#endif

#define OPEN(order) (WEAK && !(order)) /* left out, and it matters */
#define AFTER(done, order) (done || OPEN(order))

#define PARKED PUBS
#define SEQ (PUBS + 1)
byte mem[PUBS + 2]; /* the data of each publisher, then the bell */
bit held;	    /* somebody is between the two parts of an exchange of parked */

typedef buffer {
	byte n;
	byte word[2];
	byte value[2]
};
#define STORES_PARKED (BROKEN == B2_PLAIN || MEMBARRIER)
#if STORES_PARKED
buffer sb[PUBS + SLEEPERS]; /* publishers, then sleepers */
#define IDLE(s) EMPTY(PUBS + s)
#else
buffer sb[PUBS];
#define IDLE(s) true
#endif

/* The kernel's: who is queued on seq, and whether the eventfd is readable. */
bit queued[3]; /* sleepers, then the watcher */
bit readable;

/* For the assertions. */
byte parks;    /* how often parked went from 0 to 1, less futex calls */
byte due = 1;  /* how often the eventfd may be written: at the start, and for rings */
byte ringing;  /* BACKSTOP: publishers between a publish and the end of its ring, */
byte grace[2]; /* and those of them that a sleeper gives time */

/* MEMBARRIER: a publisher loaded parked before its publish, and found this. */
bit early[2], early_value[2];

#define EMPTY(t) (sb[t].n == 0)
#define FREE(t, e) (sb[t].word[e] != PARKED || !held)

/* In a step that waits for sb[t].n < 2. */
inline store(t, w, v)
{
	sb[t].word[sb[t].n] = w;
	sb[t].value[sb[t].n] = v;
	sb[t].n++
}

/* The newest entry of the own buffer, else memory. */
inline load(t, w, ret)
{
	if
	:: sb[t].n == 2 && sb[t].word[1] == w -> ret = sb[t].value[1]
	:: else ->
		if
		:: sb[t].n > 0 && sb[t].word[0] == w -> ret = sb[t].value[0]
		:: else -> ret = mem[w]
		fi
	fi
}

#define WRITE_PARKED(v)                   \
	if                                \
	:: v && !mem[PARKED] -> parks++   \
	:: else                           \
	fi;                               \
	mem[PARKED] = v

/* Entry e goes to memory; one behind it moves up. */
inline leave(t, e)
{
	if
	:: sb[t].word[e] == PARKED -> WRITE_PARKED(sb[t].value[e])
	:: else -> mem[sb[t].word[e]] = sb[t].value[e]
	fi;
	sb[t].n--;
	if
	:: e == 0 ->
		sb[t].word[0] = sb[t].word[1];
		sb[t].value[0] = sb[t].value[1]
	:: else
	fi;
	sb[t].word[1] = 0;
	sb[t].value[1] = 0
}

proctype drain(byte t)
{
end:	do
	:: d_step { sb[t].n > 0 && FREE(t, 0) -> leave(t, 0) }
#if WEAK
	/* The data is stored with release, so that only parked overtakes it. */
	:: d_step {
		sb[t].n == 2 && sb[t].word[1] == PARKED && sb[t].word[0] != PARKED && !held ->
		leave(t, 1)
	   }
#endif
	od
}

inline futex_wake()
{
	assert(parks > 0); /* nobody parked: the call is for nothing */
	parks--;
#if BROKEN == WAKE_ONE
	if
	:: queued[0] -> queued[0] = 0
	:: queued[1] -> queued[1] = 0
	:: else
	fi
#else
	queued[0] = 0;
	queued[1] = 0;
	queued[2] = 0
#endif
}

/* Compares and queues. */
#define FUTEX_WAIT(q)                     \
	if                                \
	:: mem[SEQ] == seen -> queued[q] = 1 \
	:: else                           \
	fi

inline rang(p)
{
#if BACKSTOP
	ringing = ringing & ~(1 << p);
	grace[0] = grace[0] & ~(1 << p);
	grace[1] = grace[1] & ~(1 << p);
#endif
	goto next
}

#define LOADS(p) (MEMBARRIER && !(FOREIGN && p == 1))

/* publish, then kvr_bell_ring() */
proctype publisher(byte p)
{
	byte m;
	bit was, raised;

next:
	if
	:: m == MSGS -> goto done
#if MEMBARRIER && WEAK
	:: d_step {
		m < MSGS && LOADS(p) && !early[p] ->
		early_value[p] = mem[PARKED];
		early[p] = 1
	   };
		goto next
#endif
	:: d_step {
		m < MSGS && sb[p].n < 2 ->
		m++;
		store(p, p, m);
		ringing = ringing | (BACKSTOP << p)
	   }
	fi;
#if MEMBARRIER
	atomic {
		if
		:: LOADS(p) && early[p] -> was = early_value[p]; early[p] = 0; early_value[p] = 0
		:: LOADS(p) && !early[p] -> load(p, PARKED, was)
		:: !LOADS(p) -> was = 1
		fi;
		if
		:: was
		:: else -> rang(p)
		fi
	};
#endif
#if BROKEN == B1_PLAIN
	d_step { load(p, PARKED, was) };
	if
	:: d_step { was && sb[p].n < 2 -> store(p, PARKED, 0) }
	:: !was -> rang(p)
	fi;
#elif WEAK && !B3_REL
	/* B3 waits for the load part of B1 only. */
	d_step { !held -> was = mem[PARKED]; held = 1 };
	if
	:: d_step { was -> mem[SEQ]++; raised = 1 }
	:: true
	fi;
	atomic {
		AFTER(EMPTY(p), B1_REL) -> WRITE_PARKED(0); held = 0;
		if
		:: was
		:: else -> rang(p)
		fi
	};
#else
	/* B1. Its load part, done earlier, would find the same. */
	atomic {
		!held && AFTER(EMPTY(p), B1_REL) -> was = mem[PARKED]; WRITE_PARKED(0);
		if
		:: was -> due = due + 2 * SILENT
		:: else -> rang(p)
		fi
	};
#endif
	was = 0;
#if BROKEN == DIES
	if
	:: p == 0 -> goto done
	:: else
	fi;
#endif
#if BROKEN == B3_AFTER_WAKE
	atomic { EMPTY(p) -> futex_wake() };
#endif
#if BROKEN != B3_MISSING
	if
	:: raised -> raised = 0
	:: d_step { !raised && AFTER(EMPTY(p), B3_REL) -> mem[SEQ]++ } /* B3 */
	fi;
#endif
#if BROKEN != B3_AFTER_WAKE
	atomic { EMPTY(p) -> futex_wake(); rang(p) };
#else
	rang(p);
#endif
done:
	skip
}

/* A look is a load-acquire of each word. */
#if OWN
#define WORDS 1
#define WORD s
#define LAST s
#else
#define WORDS PUBS
#define WORD words
#define LAST (PUBS - 1)
#endif
#define ALL (WORDS * MSGS)

/*
 * What nap() may do when. b4: B4 is done; ll, sc: the load and the store part of B2; words: how far
 * the second look is. On x86 ll and sc are one step.
 */
#define LOOK_MAY_B2 AFTER(ll, B2_ACQ && !STORES_PARKED)
#if BROKEN == B4_AFTER_B2
#define B4_MAY ll
#define LL_MAY true
#define SC_MAY true
#define LOOK_MAY (LOOK_MAY_B2 && AFTER(b4, B4_ACQ))
#elif BROKEN == B4_AFTER_LOOK
#define B4_MAY (words == WORDS)
#define LL_MAY true
#define SC_MAY true
#define LOOK_MAY LOOK_MAY_B2
#else
#define B4_MAY true
#define LL_MAY AFTER(b4, B4_ACQ)
#define SC_MAY AFTER(b4, B2_REL)
#define LOOK_MAY (LOOK_MAY_B2 && AFTER(b4, B4_ACQ))
#endif

/* Publishers that passed the barrier of a membarrier, or that it does not reach, as bits. */
#define MB_DONE ((1 << PUBS) - 1)
#if !MEMBARRIER || BROKEN == NO_BARRIER
#define MB_START MB_DONE
#elif FOREIGN || BROKEN == UNREGISTERED
#define MB_START 2
#else
#define MB_START 0
#endif

inline barrier_of(p)
{
	d_step {
		!(mb & (1 << p)) && ll && IDLE(s) && EMPTY(p) ->
		mb = mb | (1 << p);
		early[p] = 0;
		early_value[p] = 0
	}
}

/* kvr_wait(), which does not spin, over and over until all was seen. */
proctype sleeper(byte s)
{
	byte known, sum, words, seen, mb;
	bit b4, ll, sc, slept, late;

again:
#if WORDS == 2
	sum = mem[0];
#endif
	atomic {
		sum = sum + mem[LAST];
		if
		:: sum > known ->
#if BACKSTOP
			/* nobody_rang(): time for who rings now, then for who rings then. */
			if
			:: late ->
#if GRACE > 0
				grace[s] = ringing;
				grace[s] == 0 || mem[SEQ] != seen;
#endif
#if GRACE > 1
				grace[s] = ringing;
				grace[s] == 0 || mem[SEQ] != seen;
#endif
				grace[s] = 0;
				assert(mem[SEQ] != seen) /* it counts a wake that was not lost */
			:: else
			fi;
#endif
			goto ready
		:: else
		fi;
		sum = 0;
		seen = 0;
		late = 0;
		mb = MB_START
	};
	do
	:: d_step { !b4 && B4_MAY -> seen = mem[SEQ]; b4 = 1 } /* B4 */
#if STORES_PARKED
	:: d_step {
		!ll && LL_MAY && sb[PUBS + s].n < 2 ->
		store(PUBS + s, PARKED, 1);
		ll = 1;
		sc = 1
	   }
#elif WEAK
	:: d_step { !ll && LL_MAY && !held -> held = 1; ll = 1 } /* B2 */
	:: d_step { ll && !sc && SC_MAY -> WRITE_PARKED(1); held = 0; sc = 1 }
#else
	:: d_step { !ll && LL_MAY -> WRITE_PARKED(1); ll = 1; sc = 1 } /* B2 */
#endif
#if MEMBARRIER
	:: barrier_of(0)
#if PUBS > 1
	:: barrier_of(1)
#endif
#endif
#if BROKEN == NO_SECOND_LOOK
	:: words < WORDS -> words = WORDS
#else
	:: d_step { words < WORDS && LOOK_MAY && mb == MB_DONE -> sum = sum + mem[WORD]; words++ }
#endif
	:: atomic {
		b4 && sc && words == WORDS && (sum > known || IDLE(s)) ->
		b4 = 0;
		ll = 0;
		sc = 0;
		words = 0;
		mb = 0;
		if
		:: sum > known -> goto ready
		:: else -> sum = 0; FUTEX_WAIT(s); break
		fi
	   }
	od;
	atomic {
		if
		:: !queued[s]
#if BACKSTOP
		:: queued[s] && !slept -> queued[s] = 0; slept = 1; late = 1
#endif
		fi;
		goto again
	};
ready:
	atomic {
		known = sum;
		sum = 0;
		seen = 0;
		late = 0;
		if
		:: known < ALL -> goto again
		:: else
		fi
	}
}

inline event()
{
	if
	:: !parked || (seq != last && BROKEN != E1_ALONE) ->
#if SILENT
		assert(due > 0); /* nobody rang for this one */
		due--;
#endif
		readable = 1
	:: else
	fi
}

/* The group's watcher: kvr_wait() that calls rung() at each look. */
proctype watcher()
{
	byte seen, seq, last = (FIRST -> 255 : 0);
	bit b4, ll, sc, read, armed, parked, naps;

again:
	atomic { b4 = 1; ll = 1; sc = 1 }; /* a look outside nap() */
	do
	:: d_step { !b4 -> seen = mem[SEQ]; b4 = 1 } /* B4 */
#if WEAK
	:: d_step { !ll && b4 && !held -> held = 1; ll = 1 } /* B2 */
	:: d_step { ll && !sc -> WRITE_PARKED(1); held = 0; sc = 1 }
#else
	:: d_step { !ll && b4 -> WRITE_PARKED(1); ll = 1; sc = 1 } /* B2 */
#endif
	:: d_step { !read && ll && (armed || BROKEN != SEQ_AFTER_E1) -> seq = mem[SEQ]; read = 1 }
#if BROKEN == E1_AFTER_WRITE
	:: d_step { !armed && sc && read -> parked = mem[PARKED]; event(); armed = 1 }
	:: atomic {
		read && armed && !held -> WRITE_PARKED(1);
#else
	:: d_step { /* E1 */
		!armed && sc && !held && (AFTER(read, E1_REL) || BROKEN == SEQ_AFTER_E1) ->
		parked = mem[PARKED];
		WRITE_PARKED(1);
		armed = 1
	   }
	:: atomic {
		read && armed -> event();
#endif
		last = seq;
		seq = 0;
		read = 0;
		armed = 0;
		parked = 0;
		if
		:: naps -> naps = 0; break
		:: else -> naps = 1; b4 = 0; ll = 0; sc = 0
		fi
	   }
	od;
	atomic { FUTEX_WAIT(2); seen = 0 };
end:	!queued[2];
	goto again
}

/* The program behind the eventfd: poll, read, look at everything. */
proctype program()
{
	byte known;

	do
	:: d_step { known < PUBS * MSGS && readable -> readable = 0 };
#if PUBS == 2
		known = mem[0];
		known = known + mem[1]
#else
		known = mem[0]
#endif
	:: known == PUBS * MSGS -> break
	od
}

init
{
	atomic {
		run publisher(0);
		run drain(0);
#if PUBS > 1
		run publisher(1);
		run drain(1);
#endif
#if SLEEPERS > 0
		run sleeper(0);
#endif
#if SLEEPERS > 1
		run sleeper(1);
#endif
#if STORES_PARKED && SLEEPERS > 0
		run drain(PUBS);
#endif
#if STORES_PARKED && SLEEPERS > 1
		run drain(PUBS + 1);
#endif
#if WATCHER
		run watcher();
		run program()
#endif
	}
}
