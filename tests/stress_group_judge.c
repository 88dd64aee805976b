/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What must hold after a round. The test knows who died, when, and who declared or closed what; so
 * for each sentence that a process kept there is one question: is there such a fact, and was it one
 * before the sentence? A sentence of a kind that is not known here is wrong.
 */
#include "stress_group_round.h"

#include <dirent.h>

#include "shm.h"

typedef unsigned long long ull;

/* --- facts --- */

uint64_t death_ns(const struct round *r, uint32_t i)
{
	const struct actor *a = &r->w->actor[i];
	int status = r->process[i].status;
	uint64_t trap = a->trap.signal == SIGKILL ? a->trapped_ns : 0;

	if (!r->process[i].pid || r->process[i].running || !WIFSIGNALED(status) ||
	    WTERMSIG(status) != SIGKILL)
		return 0;
	return trap && (!a->kill_ns || trap < a->kill_ns) ? trap : a->kill_ns;
}

static int trapped_at(const struct round *r, uint32_t i, uint32_t point)
{
	return death_ns(r, i) && r->w->actor[i].trap.point == point && r->w->actor[i].trapped_ns;
}

static uint64_t leader_death(const struct round *r, const struct reign *g)
{
	uint64_t died = death_ns(r, g->actor);

	/* It may have made, and left, several. */
	return g->closed_ns ? 0 : died;
}

/* Its leader declared it over, or heard of a death and did: not when it died on the way to that. */
static int declared(const struct round *r, const struct reign *g)
{
	return g->failed && !trapped_at(r, g->actor, KVR_POINT_fail_caused);
}

static const struct actor *by_pid(const struct round *r, uint32_t pid, uint32_t *ret_index)
{
	for (uint32_t i = 0; i < r->actors; i++)
		if ((uint32_t)r->process[i].pid == pid) {
			*ret_index = i;
			return &r->w->actor[i];
		}
	return NULL;
}

static int final_cause(int cause)
{
	return cause == -EINTR || cause == -EAGAIN || cause == -ETIMEDOUT || cause == -EMSGSIZE
		       ? -ECANCELED
		       : cause;
}

/* The rank of a sentence died in this reign, as this process. *ret_ns: when. */
static int rank_died(const struct round *r, uint32_t rank, uint32_t pid, uint64_t *ret_ns)
{
	for (uint32_t i = 0; i < r->actors; i++) {
		uint64_t died = death_ns(r, i);

		if (r->w->actor[i].rank != rank || !died)
			continue;
		/* It may have died before it wrote who it is. */
		if (pid ? (uint32_t)r->process[i].pid != pid
			: !trapped_at(r, i, KVR_POINT_attach_claimed))
			continue;
		*ret_ns = died;
		return 1;
	}
	return 0;
}

/* --- the causes: each 1 when the sentence is true, with the time of its fact --- */

static int is_leader_death(const struct round *r, const struct note *n, const struct reign *g,
			   uint64_t *ret_ns)
{
	const char *at = strstr(n->text, "the leader of epoch ");
	char who[48];
	ull epoch;

	snprintf(who, sizeof who, "the leader (pid %u, ", g->pid);
	*ret_ns = leader_death(r, g);
	return at && sscanf(at, "the leader of epoch %llu died", &epoch) == 1 &&
	       epoch == n->epoch && strstr(at, " died, after tick ") && strstr(at, who) && *ret_ns;
}

static int is_rank_death(const struct round *r, const struct note *n, uint64_t *ret_ns)
{
	const char *at = strstr(n->text, "the leader declared epoch ");
	uint32_t rank, pid;
	ull epoch;

	return at &&
	       sscanf(at,
		      "the leader declared epoch %llu over: a process died, because of rank %u "
		      "(pid %u, dead",
		      &epoch, &rank, &pid) == 3 &&
	       strstr(at, ", dead") && epoch == n->epoch && rank_died(r, rank, pid, ret_ns);
}

static int is_declared(const struct round *r, const struct note *n, const struct reign *g,
		       uint64_t *ret_ns)
{
	char words[160], who[64] = "because of no rank in particular";

	if (!g->fail_ns || !declared(r, g) || n->rc != final_cause(g->fail_cause))
		return 0;
	if (g->fail_blamed < KVR_MAX_RANKS)
		snprintf(who, sizeof who, "because of rank %u (", g->fail_blamed);
	snprintf(words, sizeof words, "the leader declared epoch %llu over: ", (ull)n->epoch);
	*ret_ns = g->fail_ns;
	return strstr(n->text, words) && strstr(n->text, who);
}

static int is_stale(const struct round *r, const struct note *n, const struct reign *g,
		    uint64_t *ret_ns)
{
	const char *at = strstr(n->text, ": epoch "), *why = strstr(n->text, "because the leader ");
	uint32_t pid, i;
	int dead = leader_death(r, g) != 0;
	char how[24] = "";
	ull old, next;

	if (!at || !why ||
	    sscanf(at, ": epoch %llu is over, epoch %llu was made", &old, &next) != 2 ||
	    old != n->epoch || next != old + 1 || !(at = strstr(at, "ago by pid ")) ||
	    sscanf(at, "ago by pid %u because", &pid) != 1 || !by_pid(r, pid, &i))
		return 0;
	sscanf(why, "because the leader %23[a-z ]", how);
	for (uint32_t k = 0; k < r->w->reigns; k++) {
		const struct reign *taker = &r->w->reign[k];
		uint32_t takeover = r->w->actor[taker->actor].takeover;

		if (taker == g || taker->pid != pid || taker->begin_ns > n->end_ns)
			continue;
		*ret_ns = taker->begin_ns;
		if (!strncmp(how, "had died", 8))
			return dead;
		if (!strncmp(how, "had left", 8))
			return g->close_ns && g->failed;
		if (!strncmp(how, "was killed by it", 16))
			return dead && takeover == KVR_TAKEOVER_KILL;
		return !strncmp(how, "was shut out by it", 18) && takeover == KVR_TAKEOVER_FENCE;
	}
	return 0;
}

/* What an old handle is told of a declared failure, too. */
static int stale_reason(const struct round *r, const struct note *n, const struct reign *g)
{
	const char *at = strstr(n->text, " after it had declared the epoch over: ");
	char who[64] = "because of no rank in particular";
	uint32_t rank, died = 0;

	/* Stopped before that was true: it may have come after the mark. */
	if (!at)
		return !declared(r, g) || r->w->actor[g->actor].trap.point == KVR_POINT_fail_caused;
	if (!g->fail_ns || !declared(r, g)) { /* a death that the leader noticed */
		at = strstr(at, "Owner died, because of rank ");
		if (at && sscanf(at, "Owner died, because of rank %u", &rank) == 1)
			for (uint32_t i = 0; i < r->actors; i++)
				died |= r->w->actor[i].rank == rank && death_ns(r, i);
		return died != 0;
	}
	if (g->fail_blamed < KVR_MAX_RANKS)
		snprintf(who, sizeof who, "because of rank %u", g->fail_blamed);
	return strstr(at, who) != NULL;
}

static int is_shutdown(const struct note *n, const struct reign *g, uint64_t *ret_ns)
{
	char words[80];

	snprintf(words, sizeof words, "the leader (pid %u) ended epoch %llu in good order", g->pid,
		 (ull)n->epoch);
	*ret_ns = g->close_ns;
	/* A declared failure says more than a good end. */
	return strstr(n->text, words) && g->close_ns && !g->failed;
}

/* What came after this reign under the same name, so that its members must hear of it. */
static const struct reign *successor(const struct round *r, const struct reign *g, uint64_t epoch)
{
	for (uint32_t k = 0; k < r->w->reigns; k++) {
		const struct reign *s = &r->w->reign[k];

		if (s != g && s->state == REIGN_MADE && s->epoch == epoch + 1 &&
		    s->begin_ns > g->begin_ns && s->made_ns > g->made_ns)
			return s;
	}
	return NULL;
}

/* --- notes --- */

static void wrong(struct round *r, const struct note *n, const char *why)
{
	static const char *const kind[NOTE_KINDS] = { "kvr_group_create", "kvr_group_attach",
						      "a wait", "kvr_group_check", "a publish" };
	const struct actor *a = &r->w->actor[n->actor];

	if (a->rank == NOBODY)
		round_trouble(r, TROUBLE_CAUSE, "%s of leader pid %d: %s: %d %s", kind[n->kind],
			      (int)r->process[n->actor].pid, why, n->rc, n->text);
	else
		round_trouble(r, TROUBLE_CAUSE, "%s of rank %u, pid %d: %s: %d %s", kind[n->kind],
			      a->rank, (int)r->process[n->actor].pid, why, n->rc, n->text);
}

static uint64_t went_on(const struct round *r, uint32_t actor, uint64_t before_ns)
{
	uint64_t cont_ns = r->w->actor[actor].cont_ns;

	return cont_ns < before_ns ? cont_ns : 0;
}

/* Late: counted from the fact, or from when those could go on who were stopped. */
static void judge_time(struct round *r, const struct note *n, const struct reign *g,
		       uint64_t fact_ns)
{
	uint64_t from = kvr_max(fact_ns, kvr_max(went_on(r, n->actor, n->end_ns),
						 went_on(r, g->actor, n->end_ns)));

	if (fact_ns > n->end_ns)
		wrong(r, n, "said before it was true");
	else if (n->end_ns > from + LATE_NS)
		wrong(r, n, "seconds after it was true");
	if (n->rc == -EOWNERDEAD && n->end_ns > from && n->end_ns - from > tally.longest_ns) {
		tally.longest_ns = n->end_ns - from;
		tally.longest_seed = r->seed;
	}
}

/* Why an epoch was over for one of its members. */
static void judge_end(struct round *r, const struct note *n)
{
	const struct reign *g = &r->w->reign[n->reign], *next;
	uint64_t fact_ns = 0;
	int known;

	tally.ends++;
	switch (n->rc) {
	case -EOWNERDEAD:
		known = is_leader_death(r, n, g, &fact_ns) || is_rank_death(r, n, &fact_ns);
		break;
	case -ESTALE:
		known = is_stale(r, n, g, &fact_ns) && stale_reason(r, n, g);
		break;
	case -ESHUTDOWN:
		known = is_shutdown(n, g, &fact_ns);
		break;
	default:
		known = is_declared(r, n, g, &fact_ns);
		break;
	}
	if (!known) {
		wrong(r, n, n->rc ? "there is no such fact" : "all is well, although it is over");
		return;
	}
	/* The first sentence of each process and epoch tells how long it took. */
	if (n->kind == NOTE_WAIT)
		judge_time(r, n, g, fact_ns);
	next = successor(r, g, n->epoch);
	if (n->rc != -ESTALE && next && n->begin_ns > next->made_ns)
		wrong(r, n, "there was a newer epoch when it was asked");
}

/* A living leader during the whole call, so that nothing was absent, dead, or over. */
static const struct reign *lived(const struct round *r, uint64_t begin_ns, uint64_t end_ns)
{
	for (uint32_t k = 0; k < r->w->reigns; k++) {
		const struct reign *g = &r->w->reign[k];
		uint64_t end = UINT64_MAX, died = leader_death(r, g);

		if (g->state != REIGN_MADE || g->made_ns > begin_ns)
			continue;
		if (g->failed || (died && died < end_ns) || (g->close_ns && g->close_ns < end_ns))
			continue;
		for (uint32_t j = 0; j < r->w->reigns; j++)
			if (j != k && r->w->reign[j].state != REIGN_REFUSED &&
			    r->w->reign[j].begin_ns > g->begin_ns && r->w->reign[j].begin_ns < end)
				end = r->w->reign[j].begin_ns;
		if (end > end_ns)
			return g;
	}
	return NULL;
}

/* "rank 3 of epoch 1 was taken by pid 812, which died": there was such a process, and it did. */
static int is_taken(const struct round *r, const struct note *n)
{
	const char *at = strstr(n->text, ": rank ");
	uint32_t rank, pid, i = 0;
	const struct actor *a;
	ull epoch;

	if (at && strstr(at, " was taken before"))
		return 1;
	if (strstr(n->text, "liveness word: ")) /* another one is just attaching */
		return strstr(n->text, "holds it already") || strstr(n->text, "its owner died");
	if (at && sscanf(at, ": rank %u of epoch %llu is taken by pid %u (0: it is just", &rank,
			 &epoch, &pid) == 3) {
		a = by_pid(r, pid, &i);
		return !pid || (a && a->rank == rank && rank == r->w->actor[n->actor].rank &&
				(!death_ns(r, i) || death_ns(r, i) > n->begin_ns));
	}
	if (!at || sscanf(at, ": rank %u of epoch %llu was taken by pid %u, which", &rank, &epoch,
			  &pid) != 3)
		return 0;
	a = by_pid(r, pid, &i);
	if (!pid)
		return strstr(at, "which died") != NULL;
	if (!a || a->rank != rank || rank != r->w->actor[n->actor].rank)
		return 0;
	return strstr(at, "which died") ? death_ns(r, i) && death_ns(r, i) < n->end_ns
					: strstr(at, "which left") != NULL;
}

static int epoch_of(const struct round *r, const char *text, const char *fmt,
		    const struct reign **ret)
{
	ull epoch;

	if (sscanf(text, fmt, &epoch) != 1)
		return 0;
	for (uint32_t k = 0; k < r->w->reigns; k++)
		/* One that died in kvr_group_create() could not say which epoch it made. */
		if (r->w->reign[k].epoch == epoch || !r->w->reign[k].epoch) {
			*ret = &r->w->reign[k];
			return 1;
		}
	return 0;
}

static int any_death(const struct round *r, uint64_t before_ns)
{
	for (uint32_t k = 0; k < r->w->reigns; k++) {
		uint64_t died = death_ns(r, r->w->reign[k].actor);

		if (died && died < before_ns)
			return 1;
	}
	return 0;
}

static int failed_with(const struct round *r, int rc)
{
	for (uint32_t k = 0; k < r->w->reigns; k++) {
		const struct reign *g = &r->w->reign[k];

		if (g->fail_ns && final_cause(g->fail_cause) == rc)
			return 1;
	}
	return rc == -EOWNERDEAD;
}

static void judge_attach(struct round *r, const struct note *n)
{
	const struct reign *g = NULL;
	const char *t = n->text, *at;
	int known = 0;

	if (n->rc == -EBUSY) {
		if (!is_taken(r, n))
			wrong(r, n, "there is no such fact");
		return;
	}
	if (n->end_ns < n->deadline_ns)
		wrong(r, n, "before its deadline");
	if (n->rc == -EOWNERDEAD && strstr(t, "liveness word: its owner died"))
		return;
	if (lived(r, n->begin_ns, n->end_ns)) {
		wrong(r, n, "there was a living leader all the time");
		return;
	}
	if (n->rc == -ETIMEDOUT && strstr(t, "does not exist; is the leader running"))
		known = 1;
	else if (n->rc == -ETIMEDOUT && (at = strstr(t, ") ended epoch ")))
		known = epoch_of(r, at, ") ended epoch %llu in good order", &g);
	else if (n->rc == -EOWNERDEAD && (at = strstr(t, "the leader of epoch ")))
		known = epoch_of(r, at, "the leader of epoch %llu (pid", &g) &&
			any_death(r, n->end_ns);
	else if (n->rc == -ESTALE && (at = strstr(t, ": epoch ")))
		known = epoch_of(r, at, ": epoch %llu was taken over by epoch", &g);
	else if ((at = strstr(t, ") declared epoch ")))
		known = epoch_of(r, at, ") declared epoch %llu over", &g) && failed_with(r, n->rc);
	if (!known)
		wrong(r, n, "there is no such fact");
}

static void judge_create(struct round *r, const struct note *n)
{
	uint32_t pid, i;
	const char *at;
	ull epoch;

	if (n->rc == -EBUSY && (at = strstr(n->text, "the leader of epoch ")) &&
	    sscanf(at, "the leader of epoch %llu lives (pid %u, ", &epoch, &pid) == 2) {
		if (!by_pid(r, pid, &i) || (death_ns(r, i) && death_ns(r, i) < n->begin_ns))
			wrong(r, n, "that one was dead before");
		return;
	}
	if (n->rc == -ETIMEDOUT && (at = strstr(n->text, "is held by another process (pid "))) {
		if (sscanf(at, "is held by another process (pid %u,", &pid) != 1 ||
		    !by_pid(r, pid, &i))
			wrong(r, n, "there is no such process");
		return;
	}
	wrong(r, n, "nothing was in its way");
}

static void judge_note(struct round *r, const struct note *n)
{
	if (n->rc && n->kind == NOTE_CREATE)
		judge_create(r, n);
	else if (n->rc && n->kind == NOTE_ATTACH)
		judge_attach(r, n);
	else if (n->kind == NOTE_WAIT || n->kind == NOTE_CHECK || n->kind == NOTE_LEAD)
		judge_end(r, n);
}

/* --- epochs --- */

/*
 * Which epoch has the name after a reign, when the next one comes to it: from *lo to *hi; 0: none.
 * They hold what was before this reign.
 */
static void name_after(const struct round *r, const struct reign *g, const struct reign *next,
		       uint64_t *lo, uint64_t *hi)
{
	const struct actor *a = &r->w->actor[g->actor];
	int closing = g->close_ns && g->close_ns < next->made_ns && !g->failed;

	if (g->state == REIGN_BEGUN) { /* it died in kvr_group_create() */
		if (a->trap.point == KVR_POINT_create_retired)
			*lo = *hi = 0;
		else if (a->trap.point == KVR_POINT_create_published)
			*hi = ++*lo;
		return;
	}
	*lo = *hi = g->epoch;
	if (r->removed_ns > g->made_ns && r->removed_ns < next->begin_ns)
		*lo = *hi = 0;
	if (!closing || trapped_at(r, g->actor, KVR_POINT_leave_told))
		return;
	*lo = 0;
	if ((g->closed_ns && g->closed_ns < next->begin_ns) ||
	    (a->trap.point == KVR_POINT_leave_unlinked && a->trapped_ns &&
	     a->trapped_ns < next->begin_ns))
		*hi = 0;
}

/* When it came out of kvr_group_create(), or died at a point of it; else 0. */
static uint64_t passed_ns(const struct round *r, const struct reign *g)
{
	if (g->state == REIGN_MADE)
		return g->made_ns;
	return g->state == REIGN_BEGUN && r->w->actor[g->actor].trapped_ns ? death_ns(r, g->actor)
									   : 0;
}

/* The name lock puts them in line. */
static void judge_epochs(struct round *r)
{
	const struct reign *before = NULL, *g;
	uint64_t lo = 0, hi = 0, unknown = 0;

	/* Killed by a rival while it came out: it made an epoch, and could not say so. */
	for (uint32_t k = 0; k < r->w->reigns; k++)
		unknown += r->w->reign[k].state == REIGN_BEGUN && !passed_ns(r, &r->w->reign[k]);
	for (;; before = g) {
		g = NULL;
		for (uint32_t k = 0; k < r->w->reigns; k++) {
			const struct reign *x = &r->w->reign[k];
			uint64_t at = passed_ns(r, x);

			if (at && (!before || at > passed_ns(r, before)) &&
			    (!g || at < passed_ns(r, g)))
				g = x;
		}
		if (!g)
			return;
		if (before)
			name_after(r, before, g, &lo, &hi);
		if (g->state == REIGN_MADE && (g->epoch < lo + 1 || g->epoch > hi + 1 + unknown))
			round_trouble(r, TROUBLE_CAUSE,
				      "pid %u made epoch %llu, after epoch %llu (0: nothing)",
				      g->pid, (ull)g->epoch, (ull)hi);
	}
}

/* --- histories --- */

static const struct past *judge_past(struct round *r, const struct past *p,
				     const struct past *other)
{
	const struct reign *g = &r->w->reign[p->reign];

	for (uint32_t ch = 0; ch < r->w->channels; ch++) {
		uint64_t all = letter_next(r->w, p->reign, ch, p->rank, p->watermark[ch], -1);
		uint64_t most = g->published[ch] + 1;

		if (p->last[ch] > p->watermark[ch])
			round_trouble(r, TROUBLE_BROKEN,
				      "rank %u took message %llu of channel %u; finished are %llu",
				      p->rank, (ull)p->last[ch], ch, (ull)p->watermark[ch]);
		if (p->watermark[ch] > most)
			round_trouble(r, TROUBLE_BROKEN,
				      "channel %u: finished are %llu messages, published %llu", ch,
				      (ull)p->watermark[ch], (ull)g->published[ch]);
		if (!p->rc)
			continue; /* it left by itself */
		if (p->last[ch] != all)
			round_trouble(r, TROUBLE_BROKEN,
				      "rank %u ended with %d after message %llu of channel %u; to "
				      "it were finished %llu",
				      p->rank, p->rc, (ull)p->last[ch], ch, (ull)all);
		if (p->watermark[ch] < g->published[ch])
			round_trouble(r, TROUBLE_BROKEN,
				      "rank %u ended with %d: of channel %u %llu messages count, "
				      "published were %llu",
				      p->rank, p->rc, ch, (ull)p->watermark[ch],
				      (ull)g->published[ch]);
		if (other && other->watermark[ch] != p->watermark[ch])
			round_trouble(r, TROUBLE_BROKEN,
				      "channel %u: rank %u ended at %llu, rank %u at %llu", ch,
				      p->rank, (ull)p->watermark[ch], other->rank,
				      (ull)other->watermark[ch]);
	}
	return p->rc ? p : other;
}

/* Of the connector: after the same end all were told the same. */
static const struct past *judge_ticks(struct round *r, const struct past *p,
				      const struct past *other)
{
	if (p->ticks > p->tick_done)
		round_trouble(r, TROUBLE_BROKEN, "rank %u had tick %llu, the last one was %llu",
			      p->rank, (ull)p->ticks, (ull)p->tick_done);
	if (other && (p->told != other->told || p->sum != other->sum))
		round_trouble(r, TROUBLE_BROKEN,
			      "rank %u was told %llu completions, rank %u %llu, or others", p->rank,
			      (ull)p->told, other->rank, (ull)other->told);
	return p;
}

static void judge_pasts(struct round *r)
{
	for (uint32_t k = 0; k < r->w->reigns; k++) {
		const struct past *other = NULL;

		for (uint32_t i = 0; i < r->w->pasts; i++) {
			const struct past *p = &r->w->past[i];

			if (!p->done || p->reign != k)
				continue;
			if (r->w->actor[p->actor].role == ROLE_TICKED)
				other = judge_ticks(r, p, other);
			else
				other = judge_past(r, p, other);
		}
	}
}

void judge_round(struct round *r)
{
	for (uint32_t i = 0; i < r->w->notes; i++)
		if (r->w->note[i].done)
			judge_note(r, &r->w->note[i]);
	judge_epochs(r);
	judge_pasts(r);
	for (uint32_t i = 0; i < r->actors; i++) {
		tally.timeouts += r->w->actor[i].timeouts;
		tally.unsure += r->w->actor[i].unsure > 0;
	}
	for (uint32_t k = 0; k < r->w->reigns; k++)
		for (uint32_t ch = 0; ch < WORLD_CHANNELS; ch++)
			tally.messages += r->w->reign[k].published[ch];
}

/* --- files --- */

struct listing {
	struct round *r;
	uint32_t retired, others, locks;
	char other[300];
};

static void look_at(struct listing *l, const char *file)
{
	enum kvr_shm_kind kind;
	char name[KVR_NAME_MAX];
	uint64_t epoch;

	kind = KVR_SHM_SEGMENT;
	if (file[0] == '.' || (!l->r->w->dir[0] && !strstr(file, l->r->w->name)))
		return;
	if (kvr_shm_parse(file, name, sizeof name, &kind, &epoch))
		name[0] = 0;
	if (kind == KVR_SHM_RETIRED && !strcmp(name, l->r->w->name)) {
		l->retired++;
	} else if (kind == KVR_SHM_LOCK && !strcmp(name, l->r->w->name)) {
		l->locks++;
	} else {
		l->others++;
		snprintf(l->other, sizeof l->other, "%s", file);
	}
}

/* Everything in the directory, whoever made it. */
static struct listing list(struct round *r)
{
	const char *dir = r->w->dir[0] ? r->w->dir : KVR_SHM_DIR;
	struct listing l = { .r = r };
	DIR *d = opendir(dir);
	struct dirent *e;

	if (!d)
		round_bad(r, TROUBLE_BROKEN, "%s: %s", dir, strerror(errno));
	while ((e = readdir(d)))
		look_at(&l, e->d_name);
	closedir(d);
	return l;
}

int files_there(struct round *r, enum kvr_shm_kind kind)
{
	char path[KVR_SHM_PATH];

	if (kvr_shm_path(path, sizeof path, r->w->dir[0] ? r->w->dir : NULL, r->w->name, kind, 0))
		round_bad(r, TROUBLE_BROKEN, "%s", kvr_explain());
	return !access(path, F_OK);
}

/* The last that had the name lock died with it: its file stays for the next to find. */
static int lock_stays(const struct round *r)
{
	uint64_t made = 0, died = 0;

	for (uint32_t k = 0; k < r->w->reigns; k++) {
		const struct reign *g = &r->w->reign[k];

		if (g->state == REIGN_MADE)
			made = kvr_max(made, g->made_ns);
		else if (g->state == REIGN_BEGUN)
			died = kvr_max(died, death_ns(r, g->actor));
	}
	return died > made;
}

/* The last two epochs that were taken over are kept. */
static uint32_t kept(const struct round *r)
{
	uint64_t highest = 0;

	for (uint32_t k = 0; k < r->w->reigns; k++)
		if (r->w->reign[k].made_ns > r->removed_ns)
			highest = kvr_max(highest, r->w->reign[k].epoch);
	return highest > 2 ? 2 : highest > 1;
}

/* After a good end there are two retired segments at most; kvr_group_remove() takes them, too. */
void judge_files(struct round *r)
{
	struct listing l = list(r);
	int rc;

	if (l.others)
		round_trouble(r, TROUBLE_LEFT, "%u files, such as %s", l.others, l.other);
	if (l.retired > 2 || l.retired < kept(r))
		round_trouble(r, TROUBLE_LEFT, "%u retired segments, of %u at least", l.retired,
			      kept(r));
	if (l.locks && !lock_stays(r))
		round_trouble(r, TROUBLE_LEFT, "the name lock");
	rc = kvr_group_remove(r->w->name, r->w->dir[0] ? r->w->dir : NULL);
	if (rc != (l.retired || l.others ? 0 : -ENOENT))
		round_trouble(r, TROUBLE_LEFT, "kvr_group_remove with %u files there: %d %s",
			      l.retired + l.others, rc, rc ? kvr_explain() : "");
	l = list(r);
	if (l.retired || l.others || l.locks)
		round_trouble(r, TROUBLE_LEFT, "%u files after kvr_group_remove",
			      l.retired + l.others + l.locks);
}
