/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Logs of calls that all must make alike: what is recorded, what a rank finds out beside its
 * leader, and readers beside a running writer. Whole histories and hostile logs:
 * test_alike_histories.c.
 */
#include "alike_helpers.h"

#include <pthread.h>
#include <sched.h>

#include "atomic.h"

/* The chain that a log has after this call, as the first one. */
static uint64_t chain_of(enum kvr_alike kind, struct call c)
{
	struct world *w = world_new();
	struct kvr_alike_call got;

	make(&w->lead, kind, c);
	ck_assert_int_eq(kvr_alike_read(log_of(&w->lead, kind), WINDOW, 0, &got), 1);
	return got.chain;
}

static int read_at(const struct kvr_alike_logs *a, uint64_t index)
{
	struct kvr_alike_call got;

	return kvr_alike_read(log_of(a, KIND), WINDOW, index, &got);
}

/* --- records ---------------------------------------------------------------------------------- */

START_TEST(test_a_call_is_recorded)
{
	struct world *w = world_new();
	struct call c = call_make(9);
	struct kvr_alike_call got;
	uint64_t before = kvr_now();
	uint32_t kind;

	make(&w->lead, KIND, c);
	ck_assert_int_eq(kvr_alike_read(log_of(&w->lead, KIND), WINDOW, 0, &got), 1);
	ck_assert_uint_eq(got.request, c.req.id);
	ck_assert_uint_eq(got.attempt, c.req.attempt);
	ck_assert_uint_eq(got.keys, c.keys);
	ck_assert_uint_eq(got.index, 0);
	ck_assert_uint_ne(got.chain, 0);
	ck_assert_uint_ge(log_of(&w->lead, KIND)->ns, before);
	ck_assert_uint_le(log_of(&w->lead, KIND)->ns, kvr_now());
	for (kind = 0; kind < KVR_ALIKES; kind++)
		ck_assert_uint_eq(kvr_alike_count(log_of(&w->lead, kind)), kind == KIND);
}
END_TEST

START_TEST(test_everything_that_must_be_equal_is_in_the_chain)
{
	struct call c = call_make(9), d;
	uint64_t chain = chain_of(KIND, c);
	size_t i;

	d = c;
	d.req.reserved = 7; /* callers may leave anything there */
	ck_assert_uint_eq(chain_of(KIND, d), chain);
	ck_assert_uint_ne(chain_of(KVR_ALIKE_LOAD, c), chain);
	d = c;
	d.req.id ^= 1ull << 63;
	ck_assert_uint_ne(chain_of(KIND, d), chain);
	d = c;
	d.req.space++;
	ck_assert_uint_ne(chain_of(KIND, d), chain);
	d = c;
	d.req.attempt++;
	ck_assert_uint_ne(chain_of(KIND, d), chain);
	d = c;
	d.keys++;
	ck_assert_uint_ne(chain_of(KIND, d), chain);
	for (i = 0; i < sizeof(d.last); i++) {
		d = c;
		d.last.bytes[i] ^= 0x80;
		ck_assert_uint_ne(chain_of(KIND, d), chain);
	}
	d = c;
	memset(&d.last, 0, sizeof(d.last));
	c = d;
	c.has_last = 0;
	ck_assert_uint_ne(chain_of(KIND, c), chain_of(KIND, d)); /* no key is not a key of zeros */
}
END_TEST

START_TEST(test_a_chain_has_all_calls_before_it)
{
	struct world *w = world_new();
	struct kvr_alike_call got, other;
	uint64_t i;

	make_all(&w->lead, 0, 5);
	make(&w->rank, KIND, call_make(7)); /* in place of call 0 */
	make_all(&w->rank, 1, 5);
	for (i = 0; i < 5; i++) {
		ck_assert_int_eq(kvr_alike_read(log_of(&w->lead, KIND), WINDOW, i, &got), 1);
		ck_assert_int_eq(kvr_alike_read(log_of(&w->rank, KIND), WINDOW, i, &other), 1);
		ck_assert_uint_ne(got.chain, other.chain);
	}
}
END_TEST

/* Of a full log the oldest slot is the one that the writer may be inside of. */
START_TEST(test_records_are_overwritten_in_turn)
{
	struct world *w = world_new();
	uint64_t n, i;

	for (n = 0; n <= 3 * WINDOW + 5; n++) {
		for (i = 0; i < n + 2 * WINDOW; i++)
			ck_assert_int_eq(read_at(&w->lead, i), i < n && n - i < WINDOW);
		make_all(&w->lead, n, n + 1);
	}
}
END_TEST

START_TEST(test_what_is_not_there_is_not_read)
{
	struct world *w = world_new();
	struct kvr_alike_log *log = log_of(&w->lead, KIND);
	struct kvr_alike_call got;

	ck_assert_int_eq(read_at(&w->lead, 0), 0);
	log->count = 1; /* and no record */
	ck_assert_int_eq(read_at(&w->lead, 0), 0);
	world_again(w);
	make_all(&w->lead, 0, 10);
	ck_assert_int_eq(read_at(&w->lead, 9), 1);
	ck_assert_int_eq(kvr_alike_read(log, 0, 9, &got), 0);
	ck_assert_int_eq(kvr_alike_read(log, 12, 9, &got), 0);
	ck_assert_int_eq(read_at(&w->lead, 10), 0);
	ck_assert_int_eq(read_at(&w->lead, UINT64_MAX), 0);
	ck_assert_int_eq(read_at(&w->lead, UINT64_MAX - WINDOW + 10), 0);
	log->call[9].index = 25; /* of the next turn */
	ck_assert_int_eq(read_at(&w->lead, 9), 0);
}
END_TEST

/* The writer was killed while it wrote a record: its words are there, its count is not. */
START_TEST(test_half_written_record_is_not_read)
{
	struct world *w = world_new();
	struct kvr_alike_log *log = log_of(&w->lead, KIND);
	uint64_t i;

	make_all(&w->lead, 0, 100);
	log->call[100 % WINDOW].chain ^= 1;
	for (i = 0; i < 120; i++)
		ck_assert_int_eq(read_at(&w->lead, i), i < 100 && 100 - i < WINDOW);
	log->call[100 % WINDOW].index = 100;
	ck_assert_int_eq(read_at(&w->lead, 100), 0);
	ck_assert_int_eq(read_at(&w->lead, 100 - WINDOW), 0);
}
END_TEST

/* --- one call, asked several times ------------------------------------------------------------ */

START_TEST(test_going_on_with_a_call_is_no_call)
{
	struct world *w = world_new();
	struct call c = call_make(1), d;
	const void *log = log_of(&w->lead, KIND);

	ask(&w->lead, KIND, c);
	ask(&w->lead, KIND, c);
	ask(&w->lead, KIND, c);
	ck_assert_uint_eq(kvr_alike_count(log), 1);
	kvr_alike_answered(&w->lead, KIND);
	ask(&w->lead, KIND, c); /* the same question again */
	ck_assert_uint_eq(kvr_alike_count(log), 2);
	d = c;
	d.req.reserved = 1;
	ask(&w->lead, KIND, d);
	ck_assert_uint_eq(kvr_alike_count(log), 2);
	d.req.attempt++;
	ask(&w->lead, KIND, d);
	ck_assert_uint_eq(kvr_alike_count(log), 3);
	d.req.space++;
	ask(&w->lead, KIND, d);
	ck_assert_uint_eq(kvr_alike_count(log), 4);
	d.req.id++;
	ask(&w->lead, KIND, d);
	ck_assert_uint_eq(kvr_alike_count(log), 5);
	ask(&w->lead, KIND, c); /* its answer is still to come */
	ck_assert_uint_eq(kvr_alike_count(log), 5);
	kvr_alike_answered(&w->lead, KIND);
	kvr_alike_answered(&w->lead, KIND); /* once is enough: d is open still */
	ask(&w->lead, KIND, d);
	ck_assert_uint_eq(kvr_alike_count(log), 5);
	ask(&w->lead, KIND, c);
	ck_assert_uint_eq(kvr_alike_count(log), 6);
}
END_TEST

/* Many are asked for in turn, with little patience, until their answers come in another order. */
START_TEST(test_polling_for_many_calls_is_no_call)
{
	struct world *w = world_new();
	const void *log = log_of(&w->lead, KIND);
	uint64_t turn, n;

	for (turn = 0; turn < 5; turn++)
		for (n = 0; n < KVR_ALIKE_OPEN; n++)
			ask(&w->lead, KIND, call_make(turn & 1 ? KVR_ALIKE_OPEN - 1 - n : n));
	for (n = 0; n < KVR_ALIKE_OPEN; n++)
		make(&w->lead, KIND, call_make(n * 7 % KVR_ALIKE_OPEN));
	ck_assert_uint_eq(kvr_alike_count(log), KVR_ALIKE_OPEN);
	for (n = 0; n < KVR_ALIKE_OPEN; n++) /* all were answered */
		ask(&w->lead, KIND, call_make(n));
	ck_assert_uint_eq(kvr_alike_count(log), 2 * KVR_ALIKE_OPEN);
	ask(&w->lead, KIND, call_make(0));
	ask(&w->lead, KIND, call_make(1000)); /* one too many: 1 was not asked for the longest */
	ask(&w->lead, KIND, call_make(0));
	ask(&w->lead, KIND, call_make(2));
	ck_assert_uint_eq(kvr_alike_count(log), 2 * KVR_ALIKE_OPEN + 1);
	ask(&w->lead, KIND, call_make(1));
	ck_assert_uint_eq(kvr_alike_count(log), 2 * KVR_ALIKE_OPEN + 2);
}
END_TEST

/* Request 0/0 must not pass for the one that is open when none is. */
START_TEST(test_the_first_call_may_be_for_request_0)
{
	struct world *w = world_new();

	make(&w->lead, KIND, (struct call){ 0 });
	ck_assert_uint_eq(kvr_alike_count(log_of(&w->lead, KIND)), 1);
}
END_TEST

START_TEST(test_kinds_are_open_on_their_own)
{
	struct world *w = world_new();
	struct call c = call_make(1);

	ask(&w->lead, KIND, c);
	ask(&w->lead, KVR_ALIKE_LOAD, c);
	ask(&w->lead, KIND, c);
	kvr_alike_answered(&w->lead, KVR_ALIKE_LOAD);
	ask(&w->lead, KIND, c);
	ck_assert_uint_eq(kvr_alike_count(log_of(&w->lead, KIND)), 1);
	ask(&w->lead, KVR_ALIKE_LOAD, c);
	ck_assert_uint_eq(kvr_alike_count(log_of(&w->lead, KVR_ALIKE_LOAD)), 2);
}
END_TEST

/* --- a rank beside its leader ----------------------------------------------------------------- */

START_TEST(test_equal_calls_are_no_drift)
{
	struct world *w = world_new();
	uint64_t lead = 0, rank = 0, n;

	/* Never further apart than the log holds; then as far as they like. */
	for (n = 0; n < 200; n++) {
		make_all(&w->lead, lead, rank + n % WINDOW);
		lead = kvr_max(lead, rank + n % WINDOW);
		make_all(&w->rank, rank, lead + (n * 7) % WINDOW);
		rank = kvr_max(rank, lead + (n * 7) % WINDOW);
		assert_no_drift(w);
	}
	make_all(&w->lead, lead, lead + 5 * WINDOW);
	assert_no_drift(w);
	make_all(&w->rank, rank, lead + 10 * WINDOW);
	make_all(&w->lead, lead + 5 * WINDOW, lead + 10 * WINDOW);
	assert_no_drift(w);
}
END_TEST

START_TEST(test_a_leader_and_silence_are_no_drift)
{
	struct world *w = world_new();
	struct kvr_drift d = { .exact = 99 };

	make_all(&w->lead, 0, 10);
	ck_assert_int_eq(kvr_alike_check(&w->lead, &d), 0);
	assert_no_drift(w); /* a rank that called nothing */
	world_again(w);
	make_all(&w->rank, 0, 10);
	assert_no_drift(w);
	ck_assert_uint_eq(d.exact, 99);
}
END_TEST

START_TEST(test_the_first_difference_is_kept)
{
	struct world *w = world_new();
	struct call bad = call_make(1000);
	uint64_t at;

	for (at = 0; at < 3 * WINDOW; at++) {
		world_again(w);
		make_all(&w->lead, 0, at + 1);
		make_all(&w->rank, 0, at);
		ck_assert_uint_eq(w->drift->kind, 0);
		ask(&w->rank, KIND, bad); /* seen at once, not only with the answer */
		assert_drift(w, KIND, at, 1, bad, call_make(at));
		/* Others come later, and are left out. */
		make(&w->lead, KIND, call_make(at + 1));
		make(&w->rank, KIND, call_make(at + 2));
		make(&w->lead, KVR_ALIKE_LOOKUP, call_make(1));
		make(&w->rank, KVR_ALIKE_LOOKUP, call_make(2));
		assert_drift(w, KIND, at, 1, bad, call_make(at));
	}
}
END_TEST

START_TEST(test_each_kind_is_compared)
{
	uint32_t kind;

	for (kind = 0; kind < KVR_ALIKES; kind++) {
		struct world *w = world_new();

		make(&w->lead, kind, call_make(1));
		make(&w->rank, kind, call_make(2));
		assert_drift(w, kind, 0, 1, call_make(2), call_make(1));
	}
}
END_TEST

/* A rank that is `ahead` calls ahead of its leader, all the time. */
START_TEST(test_a_rank_ahead_finds_the_first_difference)
{
	struct world *w = world_new();
	uint64_t ahead, at = 40, n;

	for (ahead = 1; ahead + 2 < WINDOW; ahead++) {
		world_again(w);
		for (n = 0; n < 100 && !w->drift->kind; n++) {
			make(&w->rank, KIND, call_make(n == at ? 1000 : n));
			if (n >= ahead)
				make(&w->lead, KIND, call_make(n - ahead));
		}
		assert_drift(w, KIND, at, 1, call_make(1000), call_make(at));
		ck_assert_uint_eq(n, at + ahead + 2); /* with its first call after the leader's */
	}
}
END_TEST

/* The leader calls after the rank did. Whatever the rank does next finds it. */
START_TEST(test_what_the_leader_calls_later_is_compared)
{
	struct world *w = world_new();
	struct call bad = call_make(1000);
	struct kvr_drift d;
	int how;

	for (how = 0; how < 4; how++) {
		world_again(w);
		ask(&w->rank, KIND, bad);
		assert_no_drift(w);
		make(&w->lead, KIND, call_make(0));
		ck_assert_int_eq(kvr_alike_drift(w->drift, &d), 0);
		if (how == 0)
			ask(&w->rank, KIND, bad); /* goes on with it */
		else if (how == 1)
			kvr_alike_answered(&w->rank, KIND);
		else if (how == 2)
			make(&w->rank, KIND, call_make(1));
		else
			ck_assert_int_eq(kvr_alike_check(&w->rank, &d), 1);
		assert_drift(w, KIND, 0, 1, bad, call_make(0));
		ck_assert_int_eq(kvr_alike_check(&w->rank, &d), 1); /* and it stays */
		ck_assert_uint_eq(d.request, bad.req.id);
	}
}
END_TEST

/* What one of them did further back than its log holds, nobody can see. */
START_TEST(test_too_far_apart_is_not_exact)
{
	struct world *w = world_new();

	make_all(&w->lead, 0, 10);
	make_all(&w->rank, 0, 10);
	/* The rank's calls 10 to 29 differ; of the leader's 16 to 30 can be read. */
	make_all(&w->lead, 10, 31);
	make_all(&w->rank, 110, 115);
	ck_assert_uint_eq(w->drift->kind, 0);
	make_all(&w->rank, 115, 130);
	assert_drift(w, KIND, 16, 0, call_make(116), call_make(16));

	/* The other way about. */
	world_again(w);
	make_all(&w->lead, 0, 10);
	make_all(&w->rank, 0, 10);
	make_all(&w->rank, 110, 131);
	make_all(&w->lead, 10, 15);
	assert_no_drift(w);
	make_all(&w->lead, 15, 30);
	ask(&w->rank, KIND, call_make(131));
	assert_drift(w, KIND, 17, 0, call_make(117), call_make(17));
}
END_TEST

/* Equal chains say that what was not looked at was equal, too. */
START_TEST(test_after_a_gap_it_is_exact_again)
{
	struct world *w = world_new();

	make_all(&w->lead, 0, 100);
	make_all(&w->rank, 0, 50); /* too far behind */
	assert_no_drift(w);
	make_all(&w->rank, 50, 100);
	make_all(&w->lead, 100, 100 + WINDOW - 1);
	make(&w->rank, KIND, call_make(1000));
	assert_drift(w, KIND, 100, 1, call_make(1000), call_make(100));
}
END_TEST

START_TEST(test_a_rank_only_reads_its_leaders_log)
{
	struct world *w = world_new();
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE),
		 bytes = kvr_layout_log(&w->layout, KVR_ALIKES);
	uint8_t *from = w->lead_mem + bytes - kvr_align_up(bytes, page);

	make_all(&w->lead, 0, 20);
	ck_assert_int_eq(mprotect(from, kvr_align_up(bytes, page), PROT_READ), 0);
	make_all(&w->rank, 0, 10);
	make(&w->rank, KIND, call_make(1000));
	assert_drift(w, KIND, 10, 1, call_make(1000), call_make(10));
}
END_TEST

/* --- the order of stores ---------------------------------------------------------------------- */

/* What a word says when the first store to a page is about to be done. */
static struct {
	uint8_t *page;
	const uint64_t *word;
	uint64_t said;
	int faults;
} watched;

static void on_fault(int sig, siginfo_t *info, void *context)
{
	uint64_t size = (uint64_t)sysconf(_SC_PAGESIZE);

	(void)context;
	if ((uint8_t *)info->si_addr - watched.page >= (ptrdiff_t)size ||
	    mprotect(watched.page, size, PROT_READ | PROT_WRITE))
		signal(sig, SIG_DFL);
	watched.said = kvr_load_relaxed(watched.word);
	watched.faults++;
}

/* Two pages; the second one is watched. Returns where it begins. */
static uint8_t *watch_new(void)
{
	uint64_t size = (uint64_t)sysconf(_SC_PAGESIZE);
	struct sigaction act = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO };

	watched.page = memory_new(2 * size) + size;
	sigaction(SIGSEGV, &act, NULL);
	return watched.page;
}

static void watch(const void *word, uint8_t *page)
{
	watched.word = word;
	watched.page = page;
	watched.faults = 0;
	ck_assert_int_eq(mprotect(page, (size_t)sysconf(_SC_PAGESIZE), PROT_READ), 0);
}

/* The control line is the end of a page, so the records of the first kind begin another. */
START_TEST(test_a_record_is_written_before_it_is_counted)
{
	struct world *w = world_new();
	uint8_t *page = watch_new();
	struct kvr_alike_log *log = (void *)(page - sizeof(*log));
	struct kvr_alike_call *call = (void *)page;

	w->lead_mem = (void *)log;
	world_init(w);
	make(&w->lead, 0, call_make(0));
	watch(&log->count, page);
	make(&w->lead, 0, call_make(1));
	ck_assert_int_eq(watched.faults, 1);
	ck_assert_uint_eq(watched.said, 1);
	/* Its index is the last word. */
	watch(&call[2].index, page - sysconf(_SC_PAGESIZE));
	make(&w->lead, 0, call_make(2));
	ck_assert_int_eq(watched.faults, 1);
	ck_assert_uint_eq(watched.said, 2);
	ck_assert_uint_eq(log->count, 3);
}
END_TEST

START_TEST(test_evidence_is_written_before_it_is_announced)
{
	struct world *w = world_new();
	uint8_t *page = watch_new();
	void *mem = page - offsetof(struct kvr_drift, index);

	w->drift = mem;
	world_init(w);
	make(&w->lead, KIND, call_make(0));
	watch(mem, page);
	make(&w->rank, KIND, call_make(1));
	ck_assert_int_eq(watched.faults, 1);
	ck_assert_uint_eq((uint32_t)watched.said, 0); /* the kind; the attempt may be there */
	assert_drift(w, KIND, 0, 1, call_make(1), call_make(0));
}
END_TEST

/* --- beside a running writer ------------------------------------------------------------------ */

#define CALLS 100000u

struct live {
	struct world *w;
	uint64_t *chains; /* what they must be */
	uint32_t over;
	struct kvr_drift *drifts;
};

static struct live live_new(void)
{
	struct live l = { .w = world_new(), .chains = (void *)memory_new(CALLS * 8) };
	struct kvr_alike_call got;
	uint64_t n;

	for (n = 0; n < CALLS; n++) {
		make(&l.w->lead, KIND, call_make(n));
		ck_assert_int_eq(kvr_alike_read(log_of(&l.w->lead, KIND), WINDOW, n, &got), 1);
		l.chains[n] = got.chain;
	}
	world_again(l.w);
	return l;
}

static int whole(const struct live *l, uint64_t index, const struct kvr_alike_call *got)
{
	struct call c = call_make(index);

	return index < CALLS && got->index == index && got->chain == l->chains[index] &&
	       got->request == c.req.id && got->attempt == c.req.attempt && got->keys == c.keys;
}

static void *writer_main(void *arg)
{
	struct live *l = arg;

	make_all(&l->w->lead, 0, CALLS);
	kvr_store_relaxed32(&l->over, 1);
	return NULL;
}

START_TEST(test_reader_beside_a_writer_gets_whole_records)
{
	struct live l = live_new();
	const void *log = log_of(&l.w->lead, KIND);
	uint64_t read = 0, tries = 0, count, index;
	struct kvr_alike_call got;
	pthread_t t;

	ck_assert_int_eq(pthread_create(&t, NULL, writer_main, &l), 0);
	while (!kvr_load_relaxed32(&l.over)) {
		count = kvr_alike_count(log);
		/* The one that is about to be written, the newest, the one about to go, another. */
		index = count - (uint64_t[]){ 0, 1, WINDOW - 1, count % WINDOW }[tries++ % 4];
		if (kvr_alike_read(log, WINDOW, index, &got)) {
			ck_assert(whole(&l, index, &got));
			read++;
		} else if (index < count) { /* it was there */
			ck_assert_uint_ge(kvr_alike_count(log) - index, WINDOW);
		}
	}
	pthread_join(t, NULL);
	printf("%llu of %llu tries read\n", (unsigned long long)read, (unsigned long long)tries);
	for (index = CALLS - WINDOW + 1; index < CALLS; index++) {
		ck_assert_int_eq(kvr_alike_read(log, WINDOW, index, &got), 1);
		ck_assert(whole(&l, index, &got));
	}
}
END_TEST

/* Not so far ahead of the other that they would never meet. */
static void stay_near(uint64_t n, const struct kvr_alike_logs *other)
{
	while (n > kvr_alike_count(log_of(other, KIND)) + 2 * WINDOW)
		sched_yield();
}

static void *leader_main(void *arg)
{
	struct live *l = arg;
	uint64_t n;

	for (n = 0; n < CALLS; n++) {
		stay_near(n, &l->w->rank);
		make(&l->w->lead, KIND, call_make(n));
	}
	return NULL;
}

/* Now one is ahead, now the other, and again and again by more than the window. */
START_TEST(test_rank_beside_a_leader_sees_no_drift)
{
	struct live l = { .w = world_new() };
	uint64_t n, compared = 0;
	pthread_t t;

	ck_assert_int_eq(pthread_create(&t, NULL, leader_main, &l), 0);
	for (n = 0; n < CALLS; n++) {
		stay_near(n, &l.w->lead);
		make(&l.w->rank, KIND, call_make(n));
		compared += l.w->rank.kind[KIND].same == n + 1;
	}
	pthread_join(t, NULL);
	assert_no_drift(l.w);
	ck_assert_uint_eq(l.w->rank.kind[KIND].same, CALLS);
	printf("%llu compared at once\n", (unsigned long long)compared);
}
END_TEST

#define ROUNDS 2000u

static void *drifting_main(void *arg)
{
	struct live *l = arg;
	uint32_t i;

	for (i = 0; i < ROUNDS; i++) {
		world_again(l->w);
		l->w->rank.drift = &l->drifts[i];
		make(&l->w->lead, KIND, call_make(i));
		make(&l->w->rank, KIND, call_make(i + 1));
	}
	return NULL;
}

START_TEST(test_evidence_is_seen_whole)
{
	struct live l = { .w = world_new() };
	struct kvr_drift d;
	pthread_t t;
	uint32_t i;

	l.drifts = (void *)memory_new(ROUNDS * sizeof(d));
	ck_assert_int_eq(pthread_create(&t, NULL, drifting_main, &l), 0);
	for (i = 0; i < ROUNDS; i++) {
		while (!kvr_alike_drift(&l.drifts[i], &d))
			kvr_relax();
		ck_assert_uint_eq(d.its_request, call_make(i).req.id);
		ck_assert_uint_eq(d.request, call_make(i + 1).req.id);
		ck_assert_uint_eq(d.its_attempt, call_make(i).req.attempt);
		ck_assert_uint_eq(d.attempt, call_make(i + 1).req.attempt);
		ck_assert_uint_eq(d.exact, 1);
		ck_assert_uint_ne(d.ns, 0);
	}
	pthread_join(t, NULL);
}
END_TEST

/* The count of before, then records that go on to change, and the later count. */
START_TEST(test_copy_leaves_out_what_was_touched)
{
	struct world *w = world_new();
	struct kvr_alike_log *copy = (void *)memory_new(LOG_BYTES);
	struct kvr_alike_call got;
	uint64_t i;

	make_all(&w->lead, 0, 24);
	memcpy(copy, log_of(&w->lead, KIND), LOG_BYTES);
	copy->count = 20;
	kvr_alike_copied(copy, WINDOW, 24); /* so that the slot of 24 and 8 may be torn */
	for (i = 0; i < 40; i++)
		ck_assert_int_eq(kvr_alike_read(copy, WINDOW, i, &got), i > 8 && i < 20);
}
END_TEST

/* Copied by the kernel, as an inspector does it: count, records, count. */
START_TEST(test_copy_beside_a_writer_is_whole)
{
	struct live l = live_new();
	uint64_t bytes = kvr_layout_log(&l.w->layout, KVR_ALIKES), later, index, read = 0, old = 0;
	struct kvr_alike_log *copy = (void *)memory_new(LOG_BYTES);
	int fd = memfd_create("kvr-test-alike", MFD_CLOEXEC);
	off_t at = (off_t)kvr_layout_log(&l.w->layout, KIND);
	struct kvr_alike_call got;
	pthread_t t;

	ck_assert_int_eq(ftruncate(fd, (off_t)bytes), 0);
	l.w->lead_mem = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	ck_assert_ptr_ne(l.w->lead_mem, MAP_FAILED);
	world_init(l.w);
	ck_assert_int_eq(pthread_create(&t, NULL, writer_main, &l), 0);
	do {
		ck_assert_int_eq(pread(fd, &copy->count, 8, at), 8);
		ck_assert_int_eq(pread(fd, copy->call, LOG_BYTES - 128, at + 128), LOG_BYTES - 128);
		ck_assert_int_eq(pread(fd, &later, 8, at), 8);
		kvr_alike_copied(copy, WINDOW, later);
		for (index = copy->count; index && copy->count - index < WINDOW; index--)
			if (kvr_alike_read(copy, WINDOW, index - 1, &got)) {
				ck_assert(whole(&l, index - 1, &got));
				read++;
			}
		old += later != copy->count;
	} while (copy->count < CALLS);
	pthread_join(t, NULL);
	ck_assert_uint_ge(read, WINDOW - 1); /* of the last one at least */
	printf("%llu read, %llu copies were old\n", (unsigned long long)read,
	       (unsigned long long)old);
	close(fd);
}
END_TEST

static Suite *make_suite(void)
{
	Suite *s = suite_create("alike");
	TCase *t = tcase_create("alike");

	tcase_add_test(t, test_a_call_is_recorded);
	tcase_add_test(t, test_everything_that_must_be_equal_is_in_the_chain);
	tcase_add_test(t, test_a_chain_has_all_calls_before_it);
	tcase_add_test(t, test_records_are_overwritten_in_turn);
	tcase_add_test(t, test_what_is_not_there_is_not_read);
	tcase_add_test(t, test_half_written_record_is_not_read);
	tcase_add_test(t, test_going_on_with_a_call_is_no_call);
	tcase_add_test(t, test_polling_for_many_calls_is_no_call);
	tcase_add_test(t, test_the_first_call_may_be_for_request_0);
	tcase_add_test(t, test_kinds_are_open_on_their_own);
	tcase_add_test(t, test_equal_calls_are_no_drift);
	tcase_add_test(t, test_a_leader_and_silence_are_no_drift);
	tcase_add_test(t, test_the_first_difference_is_kept);
	tcase_add_test(t, test_each_kind_is_compared);
	tcase_add_test(t, test_a_rank_ahead_finds_the_first_difference);
	tcase_add_test(t, test_what_the_leader_calls_later_is_compared);
	tcase_add_test(t, test_too_far_apart_is_not_exact);
	tcase_add_test(t, test_after_a_gap_it_is_exact_again);
	tcase_add_test(t, test_a_rank_only_reads_its_leaders_log);
	tcase_add_test(t, test_a_record_is_written_before_it_is_counted);
	tcase_add_test(t, test_evidence_is_written_before_it_is_announced);
	tcase_add_test(t, test_reader_beside_a_writer_gets_whole_records);
	tcase_add_test(t, test_rank_beside_a_leader_sees_no_drift);
	tcase_add_test(t, test_evidence_is_seen_whole);
	tcase_add_test(t, test_copy_leaves_out_what_was_touched);
	tcase_add_test(t, test_copy_beside_a_writer_is_whole);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	return kvr_test_main(make_suite);
}
