/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lib/ring.c, unchanged, under relacy: a writer and a reader in every order that the scheduler
 * thinks of, where a load may return an older value unless the orders in ring.c forbid it.
 *
 *   ring [-p] [-r] [RUNS [FIRST]]    FIRST: the seed of the first random schedule
 *
 * -r: random schedules alone. -p: the relaxed accesses to the cells count as plain ones. Without a
 * race that shows what ring.h says: what P1 publishes needs no order of its own.
 *
 * Each word of the ring's memory has a shadow. kvr_load_* and kvr_store_* of ring.c are accesses
 * to relacy's atomics (ring_atomic.h); the payload that this file writes and reads is plain memory
 * to relacy. So a missing acquire or release is a data race, and so is a message that is
 * overwritten before it is released. Every word of a payload is compared.
 *
 * What must never arrive: messages that were aborted, and payload bytes that look like a commit
 * word. See lib/ring.c for how the writer hides those.
 *
 * Exit status: 0; 3, when relacy found something (history on standard error); 2, usage.
 */
#include <errno.h>
#include <streambuf>

static const int again = -EAGAIN; /* relacy redefines the names of its pthread model */

#include <relacy/relacy.hpp>

#include "kvring/err.h"
#include "kvring/ring.h"
#include "ring_atomic.h"

enum { CELLS = KVR_RING_MIN / KVR_RING_CELL, WORDS = KVR_RING_CELL / 8 };
enum { ONE = 48, LESS = 96, TWO = 112 }; /* payloads that fill one cell and, almost, two */
enum { MESSAGES = 128, SCRIPT = 160 };
enum { DEPTH = 4000 }; /* steps of a run, before a wait counts as endless */
enum { USAGE = 2, FOUND = 3 };

/*
 * A script is what the writer does, a letter a step. Reserve and fill a message:
 *   s  of one cell         d  of two cells         u  of two cells, which is left unfilled
 *   t  of two, the second of which seems to start a message of this lap,
 *   n  of the next lap,    m  of the lap after next
 *   S D N  the same with a copy (kvr_ring_put)
 *   1 2 3  written alone (kvr_ring_write): of one cell, of almost two, of two
 *   4  like 2, and the second cell seems to start a message of the next lap
 * and
 *   ,  commit              x  abort
 * Before the threads start, the reader
 *   R  takes and releases everything       T  takes and releases one: so it goes on in a stream
 */
struct scenario {
	const char *name;
	uint64_t start;	    /* the first position, in cells */
	const char *before; /* done before the threads start; nullptr: scripts at random */
	const char *writer;
	unsigned hold;	 /* messages that the reader takes before it releases them; 0: at random */
	unsigned rewind; /* how often it may rewind instead */
	int switches;	 /* search every schedule of so many; EVERY: every one; 0: do not search */
};
enum { EVERY = -1 };

#define X2(s) s s
#define X4(s) X2(s) X2(s)
#define X8(s) X4(s) X4(s)
#define X11(s) X8(s) X2(s) s
#define X13(s) X8(s) X4(s) s
#define X14(s) X8(s) X4(s) X2(s)
#define X32(s) X8(s) X8(s) X8(s) X8(s)
#define NEAR_2_32 ((1ull << 32) - CELLS)

static const struct scenario scenarios[] = {
	{ "first messages", 0, "", "s,s,", 1, 0, EVERY },
	{ "two cells", 0, "", "d,", 1, 0, EVERY },
	{ "end of the ring", 0, X14("s,R"), "s,s,", 1, 0, EVERY },
	{ "past position 2^32", NEAR_2_32, X14("s,R"), "s,s,s,", 1, 0, 4 },
	{ "padding", NEAR_2_32, X13("s,R"), "d,d,s,", 1, 0, 4 },
	{ "padding in a batch", 0, X14("s,R"), "sds,s,", 1, 1, 3 },
	{ "batches", 0, X13("s,R"), "sds,ss,", 2, 0, 4 },
	{ "abort", 0, "s,R", "ssxs,dxd,", 1, 0, 4 },
	{ "full ring", 0, X13("s,"), "d,ss,s,", 3, 0, 2 },
	{ "full ring, late release", NEAR_2_32, X13("s,") "R" X11("s,"), "d,d,s,", 3, 0, 2 },
	{ "payload like commit words", 0, X8("n,R"), "s,s,s,s,", 1, 0, 4 },
	{ "the same past 2^32", NEAR_2_32, X8("n,R"), "s,d,s,", 2, 1, 3 },
	{ "two laps later", 0, X8("m,R") X8("u,R"), "s,s,s,", 1, 0, 4 },
	{ "in an aborted batch", 0, "s,R", "txs,s,tnxs,", 1, 0, 3 },
	{ "copied", 0, X13("s,R"), "SDS,D,", 1, 0, 3 },
	{ "copied, like commit words", 0, X8("N,R"), "1s,S,1", 1, 0, 3 },
	{ "written alone", 0, X13("s,R"), "1231", 1, 0, 4 },
	{ "the same, full ring", NEAR_2_32, X14("s,"), "1121", 3, 0, 2 },
	{ "the same, like commit words", 0, X8("4R"), "1s,11", 1, 0, 3 },
	{ "stream", 0, "s," X32("s,T"), "s,1ss,d,", 1, 0, 2 },
	{ "stream that goes on", 0, "s," X32("s,T") X8("s,"), "1111", 2, 1, 1 },
	{ "anything", 0, nullptr, nullptr, 0, 2, 0 },
	{ "anything past 2^32", NEAR_2_32, nullptr, nullptr, 0, 2, 0 },
};

static const struct scenario *scenario;
static const char *found; /* why this run failed, where relacy does not say it */
static bool plain;	  /* the ring's relaxed accesses are no atomics, but plain ones */

static void fail(const char *why, rl::debug_info_param at)
{
	found = why;
	rl::ctx().fail_test(why, rl::test_result_user_assert_failed, at); /* does not return */
}

#define MUST(x, why)                          \
	do {                                  \
		if (!(x))                     \
			fail(why, (RL_INFO)); \
	} while (0)

/* --- the ring and its shadow -------------------------------------------------------------- */
alignas(KVR_LINE) static uint64_t memory[(KVR_RING_CTL + KVR_RING_MIN) / 8];
static struct kvr_ring_cursor cursor;
static struct kvr_ring_writer w;
static struct kvr_ring_reader r;

/*
 * One of the first two words of a cell. It is a commit word, tag and number, or payload: so it has
 * atomic and plain accesses. Loads and stores of relacy's variables stand for the conflicts.
 */
struct head {
	rl::atomic<uint64_t> value{ 0 };
	rl::var<int> stored{ 0 }; /* a plain store conflicts with every other access */
	rl::var<int> loaded[2]{ { 0 }, { 0 } }; /* a thread's plain load, with atomic stores too */

	uint64_t plain_load(rl::debug_info_param at)
	{
		(void)stored(at).load();
		loaded[rl::thread_index()](at).store(0);
		return value(at).load(rl::mo_relaxed);
	}
	void plain_store(uint64_t v, rl::debug_info_param at)
	{
		stored(at).store(0);
		value(at).store(v, rl::mo_relaxed);
	}
	uint64_t load(rl::memory_order order, rl::debug_info_param at)
	{
		(void)stored(at).load();
		return value(at).load(order);
	}
	void store(uint64_t v, rl::memory_order order, rl::debug_info_param at)
	{
		(void)stored(at).load();
		(void)loaded[0](at).load();
		(void)loaded[1](at).load();
		value(at).store(v, order);
	}
};

struct cell {
	head heads[2];
	rl::var<uint64_t> rest[WORDS - 2];
};

struct shadow {
	cell cells[CELLS];
	rl::atomic<uint64_t> control{ 0 };
	rl::atomic<uint64_t> cursor{ 0 };
};
static struct shadow *shadow;

/* The cell and the word in it; nullptr: elsewhere. */
static cell *cell_at(const void *p, unsigned *ret_word)
{
	size_t i = (size_t)((const uint64_t *)p - memory);

	if (p < (const void *)memory || i < KVR_RING_CTL / 8 || i >= sizeof memory / 8)
		return nullptr;
	i -= KVR_RING_CTL / 8;
	*ret_word = i % WORDS;
	return &shadow->cells[i / WORDS];
}

uint64_t model_load(const uint64_t *p, int acquire, const char *func, unsigned line)
{
	rl::debug_info at(func, "lib/ring.c", line);
	rl::memory_order order = acquire ? rl::mo_acquire : rl::mo_relaxed;
	unsigned word = 0;
	cell *c = cell_at(p, &word);

	if (p == &cursor.pos)
		return shadow->cursor(at).load(order);
	if (p == memory)
		return shadow->control(at).load(order);
	if (!c)
		return *p;
	MUST(word < 2, "an atomic load inside of a payload");
	if (plain && !acquire)
		return c->heads[word].plain_load(at);
	return c->heads[word].load(order, at);
}

void model_store(uint64_t *p, uint64_t v, int release, const char *func, unsigned line)
{
	rl::debug_info at(func, "lib/ring.c", line);
	rl::memory_order order = release ? rl::mo_release : rl::mo_relaxed;
	unsigned word = 0;
	cell *c = cell_at(p, &word);

	if (p == &cursor.pos) {
		shadow->cursor(at).store(v, order);
	} else if (p == memory) {
		shadow->control(at).store(v, order);
	} else if (!c) {
		*p = v;
	} else {
		MUST(word < 2, "an atomic store inside of a payload");
		if (plain && !release)
			c->heads[word].plain_store(v, at);
		else
			c->heads[word].store(v, order, at);
	}
}

/* --- messages ------------------------------------------------------------------------------ */
struct message {
	uint64_t words[TWO / 8];
	uint32_t len;
	bool filled;
};
static struct message made[MESSAGES]; /* by tag; also those that are aborted */
static uint32_t sent[MESSAGES];	      /* the tags of the committed ones */
static uint32_t n_made, n_sent, n_batch, n_taken, n_released;
static const void *taken_at[MESSAGES];

static void word_write(uint64_t *to, uint64_t v)
{
	unsigned word = 0;
	cell *c = cell_at(to, &word);

	if (word < 2)
		c->heads[word].plain_store(v, RL_INFO);
	else
		c->rest[word - 2](RL_INFO).store(v);
}

/* The calls that copy, copy whole words here. */
void *model_copy(void *to, const void *from, size_t n)
{
	const uint64_t *words = (const uint64_t *)from;
	unsigned word;

	if (!cell_at(to, &word))
		return memcpy(to, from, n);
	MUST(n % 8 == 0 && (uintptr_t)to % 8 == 0, "a copy of half a word");
	for (size_t i = 0; i < n / 8; i++)
		word_write((uint64_t *)to + i, words[i]);
	return to;
}

static void payload_write(void *payload, const struct message *m)
{
	for (unsigned i = 0; m->filled && i < m->len / 8; i++)
		word_write((uint64_t *)payload + i, m->words[i]);
}

static void payload_check(const void *payload, const struct message *m)
{
	uint64_t v;
	unsigned i, word = 0;

	for (i = 0; i < m->len / 8; i++) {
		cell *c = cell_at((const uint64_t *)payload + i, &word);

		if (word < 2)
			v = c->heads[word].plain_load(RL_INFO);
		else
			v = c->rest[word - 2](RL_INFO).load();
		MUST(!m->filled || v == m->words[i], "a payload of other bytes");
	}
}

/* Its words are its tag's; those of its second cell, at `pos`, may look like a commit word. */
static void message_make(struct message *m, uint32_t tag, char kind, uint64_t pos)
{
	static const char looks[] = "tnm";
	const char *laps = strchr(looks, kind);
	unsigned i;

	m->len = kind == 's' ? ONE : TWO;
	m->filled = kind != 'u';
	for (i = 0; i < m->len / 8; i++)
		m->words[i] = (uint64_t)tag << 8 | i;
	if (laps) {
		pos += (uint64_t)(laps - looks) * CELLS;
		m->words[WORDS - 2] = pos << 32 | 1u << 31 | 8;
		m->words[WORDS - 1] = (uint64_t)(n_sent + 1) << 32;
	}
}

static void message_made(void)
{
	sent[n_sent + n_batch++] = n_made++;
	MUST(w.pos - w.reader <= CELLS, "more than the ring holds");
}

static void commit(void)
{
	n_sent += n_batch;
	n_batch = 0;
}

static void reserve(char kind)
{
	uint32_t tag = n_made;
	void *payload;
	int err;

	while ((err = kvr_ring_reserve(&w, tag, kind == 's' ? ONE : TWO, &payload)) == again)
		rl::yield(1, RL_INFO);
	MUST(!err, kvr_explain());
	message_make(&made[tag], tag, kind, w.pos - 1);
	payload_write(payload, &made[tag]);
	message_made();
}

static void copy(char letter)
{
	static const char letters[] = "SDN1234", kinds[] = "sdnsddn";
	char kind = kinds[strchr(letters, letter) - letters];
	struct message *m = &made[n_made];
	bool alone = letter <= '4';
	uint64_t second = w.pos + 1;
	int err;

	if (second % CELLS == 0) /* one of two cells goes to the start */
		second++;
	message_make(m, n_made, kind, second);
	if (letter == '2' || letter == '4')
		m->len = LESS;
	/* Committed before its reader can see it. */
	sent[n_sent + n_batch] = n_made;
	if (alone)
		n_sent += n_batch + 1;
	while ((err = (alone ? kvr_ring_write : kvr_ring_put)(&w, n_made, m->words, m->len)) ==
	       again)
		rl::yield(1, RL_INFO);
	MUST(!err, kvr_explain());
	if (!alone) {
		message_made();
	} else {
		n_batch = 0;
		n_made++;
	}
}

/* Peeks one message and checks it: 1, or 0 when there is none. */
static int take(void)
{
	struct kvr_ring_msg m;
	int rc;

	if (!r.cells) /* in the thread itself, if nothing is taken before it starts */
		MUST(!kvr_ring_reader_init(&r, memory, KVR_RING_MIN, &cursor, scenario->start),
		     kvr_explain());
	rc = kvr_ring_peek(&r, &m);
	MUST(rc >= 0, kvr_explain());
	if (!rc) {
		MUST(!kvr_ring_check(&r), kvr_explain()); /* nobody overwrites anything here */
		return 0;
	}
	MUST(n_taken < n_sent, "a message that was not committed");
	MUST(m.seq == n_taken, "a message of another number");
	MUST(m.tag == sent[n_taken], "a message of another tag");
	MUST(m.len == made[m.tag].len, "a message of another length");
	payload_check(m.data, &made[m.tag]);
	taken_at[n_taken++] = m.data;
	return 1;
}

/* They are the reader's until here: so it looks at them again. */
static void release(void)
{
	while (n_released < n_taken) {
		payload_check(taken_at[n_released], &made[sent[n_released]]);
		n_released++;
	}
	kvr_ring_release(&r);
}

static void run(const char *script)
{
	for (; *script; script++) {
		switch (*script) {
		case ',':
			commit();
			kvr_ring_commit(&w);
			break;
		case 'x':
			n_batch = 0;
			kvr_ring_abort(&w);
			break;
		case 'R':
			while (take())
				;
			release();
			(void)take(); /* finds nothing, so the writer is told */
			break;
		case 'T':
			(void)take();
			release();
			break;
		default:
			if (strchr("SDN1234", *script))
				copy(*script);
			else
				reserve(*script);
		}
	}
}

static uint32_t messages_in(const char *script)
{
	uint32_t n = 0, batch = 0;

	for (; *script; script++) {
		if (strchr("1234", *script))
			batch++;
		if (strchr(",1234", *script))
			n += batch;
		if (strchr(",x1234", *script))
			batch = 0;
		else if (*script != 'R' && *script != 'T')
			batch++;
	}
	return n;
}

/* Batches of up to three messages. A quarter of them is aborted. */
static void script_make(char *to, unsigned batches, const char *after)
{
	unsigned i;

	while (batches--) {
		for (i = 1 + rl::rand(3); i; i--)
			*to++ = "sdutnmSDN"[rl::rand(9)];
		*to++ = ",,,1234xx,,"[rl::rand(11)];
		to = stpcpy(to, after);
	}
	*to = 0;
}

/* --- the suite ------------------------------------------------------------------------------ */
struct ring_suite : rl::test_suite<ring_suite, 2> {
	struct shadow own;
	char before_made[SCRIPT], writer_made[SCRIPT];
	const char *writer_script;
	uint32_t total;
	unsigned rewinds;

	void before()
	{
		const char *first = scenario->before;

		shadow = &own;
		n_made = n_sent = n_batch = n_taken = n_released = 0;
		rewinds = scenario->rewind;
		writer_script = scenario->writer;
		if (!first) {
			script_make(before_made, 5 + rl::rand(8), "R");
			for (unsigned unread = rl::rand(14); unread; unread--)
				strcat(before_made, "s,");
			script_make(writer_made, 2 + rl::rand(4), "");
			first = before_made;
			writer_script = writer_made;
		}
		total = messages_in(first) + messages_in(writer_script);
		MUST(total < MESSAGES, "the script is too long");
		ring_init();
		run(first);
	}

	void ring_init()
	{
		memset(memory, 0xa5, sizeof memory);
		memset(&cursor, 0, sizeof cursor);
		MUST(!kvr_ring_writer_init(&w, memory, KVR_RING_MIN, &cursor, scenario->start),
		     kvr_explain());
		for (unsigned i = KVR_RING_CTL / 8; i < sizeof memory / 8; i++)
			MUST(!memory[i], "the cells are not zeroed"); /* as their shadows are */
		for (cell &c : own.cells)
			for (rl::var<uint64_t> &v : c.rest)
				v(RL_INFO).store(0);
		/* By the rules of ring.h, for a writer that comes first. */
		own.cursor(RL_INFO).store(scenario->start, rl::mo_relaxed);
		own.control(RL_INFO).store(memory[0], rl::mo_relaxed);
		r = {};
	}

	void thread(unsigned index)
	{
		if (index == 0)
			run(writer_script);
		else
			reader();
	}

	void reader()
	{
		unsigned hold = hold_next();

		while (n_taken < total || n_released < n_taken) {
			if (n_taken < total && n_taken - n_released < hold && take())
				continue;
			if (n_released == n_taken)
				rl::yield(1, RL_INFO);
			else if (rewinds && rl::rand(2))
				rewind();
			else
				release();
			hold = hold_next();
		}
		(void)take();
	}

	unsigned hold_next()
	{
		return scenario->hold ? scenario->hold : 1 + rl::rand(6);
	}

	void rewind()
	{
		rewinds--;
		n_taken = n_released;
		kvr_ring_rewind(&r);
	}

	void after()
	{
		MUST(own.cursor(RL_INFO).load(rl::mo_relaxed) == w.published,
		     "the writer was not told of the last release");
	}
};

/* --- running it ------------------------------------------------------------------------------ */
/* relacy replaces operator new while it runs: what it prints is kept without any allocation. */
struct : std::streambuf {
	char text[1 << 20]; /* ends with a 0 */
	size_t len;

	int overflow(int c)
	{
		if (len < sizeof text - 1)
			text[len++] = (char)c;
		return c;
	}

	/* What relacy says in its history, with the place. */
	const char *verdict(const char *result)
	{
		const char *at;

		text[len] = 0;
		at = strstr(text, "\nexecution history");
		at = at ? strstr(at, result) : nullptr;
		if (!at)
			return result;
		text[strcspn(at, "\n") + (size_t)(at - text)] = 0;
		return at;
	}
} captured;

static uint64_t executions;

/* Random schedules, `runs` from `first` on, or those of up to `switches` switches. */
static bool explore(uint64_t first, uint64_t runs, int switches)
{
	std::ostream out(&captured);
	rl::test_params params;
	const char *why;
	uint64_t n;

	captured.len = 0;
	found = nullptr;
	params.output_stream = params.progress_stream = &out;
	params.execution_depth_limit = DEPTH;
	if (!switches) {
		params.search_type = rl::sched_random;
		params.iteration_count = first + runs - 1;
		params.initial_state = std::to_string(first).c_str();
	} else {
		params.search_type = switches == EVERY ? rl::sched_full : rl::sched_bound;
		params.context_bound = (unsigned)switches;
	}
	if (!rl::simulate<ring_suite>(params)) {
		fwrite(captured.text, 1, captured.len, stderr);
		why = found ? found : captured.verdict(rl::test_result_str(params.test_result));
		printf("\n%s: schedule %llu: %s\n", scenario->name,
		       (unsigned long long)params.stop_iteration, why);
		return false;
	}
	n = params.stop_iteration - (switches ? 0 : first - 1);
	executions += n;
	printf(switches ? ", %llu of " : "%llu random", (unsigned long long)n);
	if (switches == EVERY)
		printf("all");
	else if (switches)
		printf("up to %d switches", switches);
	return true;
}

int main(int argc, char **argv)
{
	bool search = true;
	uint64_t runs, first;
	int c;

	while ((c = getopt(argc, argv, "pr")) != -1) {
		if (c == 'p')
			plain = true;
		else if (c == 'r')
			search = false;
		else
			return USAGE;
	}
	runs = optind < argc ? strtoull(argv[optind++], nullptr, 0) : 10000;
	first = optind < argc ? strtoull(argv[optind++], nullptr, 0) : 1;
	if (optind < argc || !runs || !first)
		return USAGE;
	setvbuf(stdout, nullptr, _IOLBF, 0);
	for (const struct scenario &s : scenarios) {
		scenario = &s;
		printf("  %-28s", s.name);
		/* Scripts at random get more, as each run is another one. */
		if (!explore(first, s.before ? runs : 5 * runs, 0) ||
		    (search && s.switches && !explore(1, 0, s.switches)))
			return FOUND;
		printf("\n");
	}
	printf("%zu scenarios, %llu executions\n", sizeof scenarios / sizeof scenarios[0],
	       (unsigned long long)executions);
	return 0;
}
