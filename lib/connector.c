/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The connector's calls: what all have in common, and the switch to the leader's part
 * (connector_lead.c) or the rank's (connector_rank.c). Opening is in connector_open.c.
 */
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "atomic.h"
#include "connector_priv.h"
#include "err.h"
#include "fork.h"
#include "util.h"

#define FULL_POLL 1024u

static int is_leader(const struct kvr_connector *c)
{
	return c->rank == KVR_LEADER;
}

void kvr_connector_destroy(struct kvr_connector *c)
{
	kvr_engine_stop(c->engine);
	kvr_channels_close(c->channels);
	kvr_group_close(c->group);
	if (!is_leader(c)) {
		kvr_pool_close(&c->pool);
		kvr_rank_close(c);
	}
	if (c->event_fd >= 0)
		close(c->event_fd);
	free(c->blocks);
	free(c->names);
	free(c->message);
	free(c);
}

void kvr_connector_close(struct kvr_connector *c)
{
	/* In a forked child threads and names are its parent's: nothing is touched. */
	if (c && c->forks == kvr_fork_generation())
		kvr_connector_destroy(c);
}

/* --- calls
 * ---------------------------------------------------------------------------------------- */

static int enter(struct kvr_connector *c, enum kvr_call call, uint32_t channel)
{
	if (c->forks != kvr_fork_generation())
		return KVR_FAIL(-EINVAL,
				"%s in a forked child: the handle is its parent's; the child must "
				"open its own",
				kvr_call_name(call));
	kvr_group_enter(c->group, call, channel);
	return 0;
}

/* A leader starts nothing when the epoch is over; how things ended it can still ask. */
static int enter_alive(struct kvr_connector *c, enum kvr_call call, uint32_t channel)
{
	int err = enter(c, call, channel);

	return !err && is_leader(c) ? kvr_group_check(c->group) : err;
}

/*
 * A call that all must make alike goes into this process's log, once: calling again for an answer
 * that did not come yet is the same call. What was taken, or published, is an answer, also a
 * refusal.
 */
static void alike_call(struct kvr_connector *c, enum kvr_alike kind, const struct kvr_request *req)
{
	c->answered = 0;
	kvr_alike_call(&c->alike, kind, req, 0, NULL);
}

/* Gives up the open calls for that request, of the kinds in `kinds`. Returns those there were. */
static uint32_t alike_closed(struct kvr_connector *c, const struct kvr_request *req, uint32_t kinds)
{
	uint32_t open = 0;

	for (uint32_t kind = 0; kind < KVR_ALIKES; kind++)
		if (kinds >> kind & 1 && kvr_alike_closed(&c->alike, kind, req))
			open |= 1u << kind;
	return open;
}

static int alike_answer(struct kvr_connector *c, enum kvr_alike kind, int result)
{
	struct kvr_drift d;

	if (c->answered)
		kvr_alike_answered(&c->alike, kind);
	if (result != -ETIMEDOUT || !kvr_alike_check(&c->alike, &d))
		return result;
	return kvr_fail_more(result,
			     "; this rank's calls differ from the leader's%s its %s number %llu: "
			     "request %llu/%u here, %llu/%u there",
			     d.exact ? " since" : " before", kvr_alike_name(d.kind - 1),
			     (unsigned long long)d.index, (unsigned long long)d.request, d.attempt,
			     (unsigned long long)d.its_request, d.its_attempt);
}

static int leave(struct kvr_connector *c, enum kvr_call call, uint32_t channel,
		 const struct kvr_request *req, int result)
{
	if (c->forks != kvr_fork_generation())
		return result; /* enter() refused: the page is not ours to write */
	return kvr_group_leave(c->group, call, channel, req, result);
}

int kvr_connector_lookup(struct kvr_connector *c, const struct kvr_request *request,
			 const struct kvr_key *keys, uint32_t n, uint64_t deadline_ns,
			 struct kvr_hit *ret_hit)
{
	struct kvr_request req = kvr_request_name(request);
	int err = enter_alive(c, KVR_CALL_LOOKUP, KVR_CH_LOOKUP);

	if (!err) {
		alike_call(c, KVR_ALIKE_LOOKUP, &req);
		err = is_leader(c) ? kvr_lead_lookup(c, &req, keys, n, deadline_ns, ret_hit)
				   : kvr_rank_lookup(c, &req, keys, n, deadline_ns, ret_hit);
		err = alike_answer(c, KVR_ALIKE_LOOKUP, err);
	}
	return leave(c, KVR_CALL_LOOKUP, KVR_CH_LOOKUP, &req, err);
}

int kvr_connector_release(struct kvr_connector *c, const struct kvr_request *request)
{
	struct kvr_request req = kvr_request_name(request);
	int err = enter(c, KVR_CALL_RELEASE, KVR_CH_LOOKUP);
	uint32_t open;

	if (err)
		return err;
	open = alike_closed(c, &req, 1u << KVR_ALIKE_LOOKUP | 1u << KVR_ALIKE_LOAD);
	if (is_leader(c)) {
		kvr_engine_release(c->engine, &req);
	} else {
		kvr_rank_release(c, &req, open);
	}
	return leave(c, KVR_CALL_RELEASE, KVR_CH_LOOKUP, &req, 0);
}

int kvr_connector_abort(struct kvr_connector *c, const struct kvr_request *request)
{
	struct kvr_request req = kvr_request_name(request);
	int n = enter(c, KVR_CALL_ABORT, KVR_CH_CONTROL);
	uint32_t open;

	if (n)
		return n;
	open = alike_closed(c, &req, ~0u);
	if (is_leader(c))
		n = kvr_engine_abort(c->engine, &req);
	else
		kvr_rank_abort(c, &req, open);
	return leave(c, KVR_CALL_ABORT, KVR_CH_CONTROL, &req, n);
}

static const enum kvr_alike alike_of[] = {
	[KVR_KIND_LOOKUP] = KVR_ALIKE_LOOKUP,	  [KVR_KIND_STORE] = KVR_ALIKE_STORE,
	[KVR_KIND_LOAD] = KVR_ALIKE_LOAD,	  [KVR_KIND_PREFETCH] = KVR_ALIKE_PREFETCH,
	[KVR_KIND_DECISION] = KVR_ALIKE_DECISION,
};

int kvr_connector_refuse(struct kvr_connector *c, enum kvr_kind kind,
			 const struct kvr_request *request, int status, uint64_t deadline_ns)
{
	struct kvr_request req = kvr_request_name(request);
	int err = enter_alive(c, KVR_CALL_REFUSE, KVR_CH_CONTROL);

	if (!err && !is_leader(c))
		err = KVR_FAIL(-EINVAL, "refuse: rank %u asked; the leader decides", c->rank);
	if (!err && (status >= 0 || status < -4095 || status == -EINTR || status == -ETIMEDOUT))
		err = KVR_FAIL(-EINVAL,
			       "refuse: status %d; a negative errno that does not mean that the "
			       "answer did not come",
			       status);
	if (!err && (uint32_t)kind >= KVR_KIND_RESET)
		err = KVR_FAIL(-EINVAL, "refuse: kind %d is none that can be refused", (int)kind);
	if (!err) { /* it stands for the call that the leader does not make */
		alike_call(c, alike_of[kind], &req);
		err = kvr_lead_refuse(c, kind, &req, status, deadline_ns);
		err = alike_answer(c, alike_of[kind], err);
	}
	return leave(c, KVR_CALL_REFUSE, KVR_CH_CONTROL, &req, err);
}

int kvr_connector_store_begin(struct kvr_connector *c, const struct kvr_request *request,
			      const struct kvr_key *keys, uint32_t n, uint64_t deadline_ns,
			      struct kvr_block *ret_blocks, uint32_t max, uint32_t *ret_covered)
{
	struct kvr_request req = kvr_request_name(request);
	int err = enter_alive(c, KVR_CALL_STORE_BEGIN, KVR_CH_STORE);

	if (!err && max < kvr_min(n, c->config.max_blocks))
		err = KVR_FAIL(-EINVAL, "store_begin: room for %u blocks, %llu may come", max,
			       (unsigned long long)kvr_min(n, c->config.max_blocks));
	if (!err) {
		alike_call(c, KVR_ALIKE_STORE, &req);
		err = is_leader(c) ? kvr_lead_store_begin(c, &req, keys, n, deadline_ns, ret_blocks,
							  ret_covered)
				   : kvr_rank_store_begin(c, &req, keys, n, deadline_ns, ret_blocks,
							  ret_covered);
		err = alike_answer(c, KVR_ALIKE_STORE, err);
	}
	return leave(c, KVR_CALL_STORE_BEGIN, KVR_CH_STORE, &req, err);
}

int kvr_connector_store_copied(struct kvr_connector *c, const struct kvr_request *request,
			       int status)
{
	struct kvr_request req = kvr_request_name(request);
	int err = enter_alive(c, KVR_CALL_STORE_COPIED, KVR_CH_STORE);

	if (!err && !is_leader(c))
		err = kvr_rank_store_copied(c, &req, status);
	else if (!err && status < 0)
		err = kvr_engine_fail(c->engine, &req, KVR_OP_STORE, status);
	return leave(c, KVR_CALL_STORE_COPIED, KVR_CH_STORE, &req, err);
}

int kvr_connector_wait_store(struct kvr_connector *c, const struct kvr_request *request,
			     enum kvr_stage stage, uint64_t deadline_ns)
{
	struct kvr_request req = kvr_request_name(request);
	int err = enter(c, KVR_CALL_WAIT_STORE, KVR_CH_STORE);

	if (!err && stage != KVR_STAGE_COPIED && stage != KVR_STAGE_HOST &&
	    stage != KVR_STAGE_WRITTEN)
		err = KVR_FAIL(-EINVAL,
			       "wait_store: %s is no stage to wait for; copied, host or "
			       "written",
			       kvr_stage_name(stage));
	if (!err)
		err = is_leader(c) ? kvr_engine_wait_op(c->engine, &req, KVR_OP_STORE, stage,
							deadline_ns)
				   : kvr_rank_wait_store(c, &req, stage, deadline_ns);
	return leave(c, KVR_CALL_WAIT_STORE, KVR_CH_STORE, &req, err < 0 ? err : 0);
}

static int load_begin(struct kvr_connector *c, const struct kvr_request *request, uint32_t n,
		      int layered, uint64_t deadline_ns)
{
	struct kvr_request req = kvr_request_name(request);
	int err = enter_alive(c, KVR_CALL_LOAD_BEGIN, KVR_CH_LOAD);

	if (!err && layered && !is_leader(c) && kvr_rank_load_resumes(c, &req)) {
		err = kvr_rank_load_begin(c, &req, n, layered, deadline_ns);
	} else if (!err) {
		alike_call(c, KVR_ALIKE_LOAD, &req);
		err = is_leader(c) ? kvr_lead_load_begin(c, &req, n, layered, deadline_ns)
				   : kvr_rank_load_begin(c, &req, n, layered, deadline_ns);
		err = alike_answer(c, KVR_ALIKE_LOAD, err);
	}
	return leave(c, KVR_CALL_LOAD_BEGIN, KVR_CH_LOAD, &req, err);
}

int kvr_connector_load_begin(struct kvr_connector *c, const struct kvr_request *request, uint32_t n,
			     uint64_t deadline_ns)
{
	return load_begin(c, request, n, 0, deadline_ns);
}

int kvr_connector_load_begin_layers(struct kvr_connector *c, const struct kvr_request *request,
				    uint32_t n, uint64_t deadline_ns)
{
	return load_begin(c, request, n, 1, deadline_ns);
}

int kvr_connector_load_wait_layer(struct kvr_connector *c, const struct kvr_request *request,
				  const struct kvr_key *keys, uint32_t group, uint64_t deadline_ns,
				  struct kvr_block *ret_blocks, uint32_t max)
{
	struct kvr_request req = kvr_request_name(request);
	int err = enter(c, KVR_CALL_LOAD_WAIT_LAYER, KVR_CH_LOAD);

	if (!err && is_leader(c))
		err = KVR_FAIL(-EINVAL, "load_wait_layer: the leader copies nothing; its ranks do");
	if (!err && group >= c->config.shape.layer_groups)
		err = KVR_FAIL(-EINVAL, "load_wait_layer: group %u; the blocks have %u", group,
			       c->config.shape.layer_groups);
	if (!err)
		err = kvr_rank_load_wait_layer(c, &req, keys, group, deadline_ns, ret_blocks, max);
	return leave(c, KVR_CALL_LOAD_WAIT_LAYER, KVR_CH_LOAD, &req, err);
}

int kvr_connector_load_wait(struct kvr_connector *c, const struct kvr_request *request,
			    const struct kvr_key *keys, uint64_t deadline_ns,
			    struct kvr_block *ret_blocks, uint32_t max)
{
	struct kvr_request req = kvr_request_name(request);
	int err = enter(c, KVR_CALL_LOAD_WAIT, KVR_CH_LOAD);

	if (!err)
		err = is_leader(c)
			      ? kvr_lead_load_wait(c, &req, deadline_ns, ret_blocks, max)
			      : kvr_rank_load_wait(c, &req, keys, deadline_ns, ret_blocks, max);
	return leave(c, KVR_CALL_LOAD_WAIT, KVR_CH_LOAD, &req, err);
}

int kvr_connector_load_done(struct kvr_connector *c, const struct kvr_request *request)
{
	struct kvr_request req = kvr_request_name(request);
	int err = enter_alive(c, KVR_CALL_LOAD_DONE, KVR_CH_LOAD);

	if (!err && !is_leader(c))
		err = kvr_rank_load_done(c, &req);
	return leave(c, KVR_CALL_LOAD_DONE, KVR_CH_LOAD, &req, err);
}

int kvr_connector_prefetch(struct kvr_connector *c, const struct kvr_request *request,
			   const struct kvr_key *keys, uint32_t n, uint32_t budget,
			   uint64_t deadline_ns)
{
	struct kvr_request req = kvr_request_name(request);
	int err = enter_alive(c, KVR_CALL_PREFETCH, KVR_CH_PREFETCH);

	if (!err) {
		alike_call(c, KVR_ALIKE_PREFETCH, &req);
		err = is_leader(c) ? kvr_lead_prefetch(c, &req, keys, n, budget, deadline_ns)
				   : kvr_rank_prefetch(c, &req, n, deadline_ns);
		err = alike_answer(c, KVR_ALIKE_PREFETCH, err);
	}
	return leave(c, KVR_CALL_PREFETCH, KVR_CH_PREFETCH, &req, err);
}

int kvr_connector_prefetch_status(struct kvr_connector *c, const struct kvr_request *request,
				  uint32_t *ret_done)
{
	struct kvr_request req = kvr_request_name(request);
	uint32_t stage;
	int err, status;

	if (c->forks != kvr_fork_generation())
		return KVR_FAIL(-EINVAL, "kvr_connector_prefetch_status in a forked child");
	if (!is_leader(c))
		return kvr_rank_prefetch_status(c, &req, ret_done);
	err = kvr_engine_prefetch_status(c->engine, &req, ret_done, &stage, &status);
	if (err || stage < KVR_STAGE_END)
		return err;
	if (stage < KVR_STAGE_FAILED)
		return 1;
	return KVR_FAIL(status, "prefetch of request %llu/%u ended as %s: %s",
			(unsigned long long)req.id, req.attempt, kvr_stage_name(stage),
			kvr_strerror(status));
}

int kvr_connector_prefetch_cancel(struct kvr_connector *c, const struct kvr_request *request)
{
	struct kvr_request req = kvr_request_name(request);
	int err = enter(c, KVR_CALL_PREFETCH_CANCEL, KVR_CH_PREFETCH);

	if (!err && is_leader(c))
		kvr_engine_prefetch_cancel(c->engine, &req);
	else if (!err)
		kvr_rank_prefetch_cancel(c, &req);
	return leave(c, KVR_CALL_PREFETCH_CANCEL, KVR_CH_PREFETCH, &req, err);
}

/* --- decisions
 * ------------------------------------------------------------------------------------ */

int kvr_connector_propose(struct kvr_connector *c, const struct kvr_request *request,
			  const void *manifest, uint32_t len, uint64_t deadline_ns)
{
	struct kvr_request req = kvr_request_name(request);
	int err = enter_alive(c, KVR_CALL_PROPOSE, KVR_CH_CONTROL);

	if (!err && !is_leader(c))
		err = KVR_FAIL(-EINVAL, "propose: rank %u asked; the leader proposes", c->rank);
	if (!err) {
		alike_call(c, KVR_ALIKE_DECISION, &req);
		err = kvr_lead_propose(c, &req, manifest, len, deadline_ns);
		err = alike_answer(c, KVR_ALIKE_DECISION, err);
	}
	return leave(c, KVR_CALL_PROPOSE, KVR_CH_CONTROL, &req, err);
}

int kvr_connector_proposal(struct kvr_connector *c, const struct kvr_request *request,
			   void *ret_manifest, uint32_t max, uint64_t deadline_ns)
{
	struct kvr_request req = kvr_request_name(request);
	int err = enter(c, KVR_CALL_PROPOSE, KVR_CH_CONTROL);

	if (!err && is_leader(c))
		err = KVR_FAIL(-EINVAL, "proposal: the leader made it; its ranks take it");
	if (!err) {
		alike_call(c, KVR_ALIKE_DECISION, &req);
		err = kvr_rank_proposal(c, &req, ret_manifest, max, deadline_ns);
		err = alike_answer(c, KVR_ALIKE_DECISION, err);
	}
	return leave(c, KVR_CALL_PROPOSE, KVR_CH_CONTROL, &req, err);
}

static int bad_status(const char *call, int status)
{
	if (status <= 0 && status >= -4095)
		return 0;
	return KVR_FAIL(-EINVAL, "%s: status %d; 0 or a negative errno", call, status);
}

int kvr_connector_vote(struct kvr_connector *c, const struct kvr_request *request, int status)
{
	struct kvr_request req = kvr_request_name(request);
	int err = enter_alive(c, KVR_CALL_VOTE, KVR_CH_CONTROL);

	if (!err)
		err = bad_status("vote", status);
	if (!err && !is_leader(c))
		err = kvr_rank_vote(c, &req, status);
	else if (!err && status)
		err = kvr_engine_fail(c->engine, &req, KVR_OP_DECISION, status);
	return leave(c, KVR_CALL_VOTE, KVR_CH_CONTROL, &req, err);
}

static int decided(struct kvr_connector *c, enum kvr_call call, const struct kvr_request *request,
		   enum kvr_op_kind kind, enum kvr_stage stage, uint64_t deadline_ns)
{
	struct kvr_request req = kvr_request_name(request);
	int err = enter(c, call, KVR_CH_CONTROL);

	if (!err)
		err = is_leader(c) ? kvr_engine_wait_op(c->engine, &req, kind, stage, deadline_ns)
				   : kvr_rank_decided(c, &req, kind, stage, deadline_ns);
	return leave(c, call, KVR_CH_CONTROL, &req, err > 0 ? 0 : err);
}

int kvr_connector_decided(struct kvr_connector *c, const struct kvr_request *request,
			  uint64_t deadline_ns)
{
	return decided(c, KVR_CALL_VOTE, request, KVR_OP_DECISION, KVR_STAGE_COMMITTED,
		       deadline_ns);
}

int kvr_connector_outcome(struct kvr_connector *c, const struct kvr_request *request, int status)
{
	struct kvr_request req = kvr_request_name(request);
	int err = enter_alive(c, KVR_CALL_OUTCOME, KVR_CH_CONTROL);

	if (!err)
		err = bad_status("outcome", status);
	if (!err && !is_leader(c))
		err = kvr_rank_outcome(c, &req, status);
	else if (!err && status)
		err = kvr_engine_fail(c->engine, &req, KVR_OP_DECISION, status);
	return leave(c, KVR_CALL_OUTCOME, KVR_CH_CONTROL, &req, err);
}

int kvr_connector_reset(struct kvr_connector *c, const struct kvr_request *request,
			const struct kvr_model *model, uint64_t deadline_ns)
{
	struct kvr_request req = kvr_request_name(request);
	int err = enter_alive(c, KVR_CALL_RESET, KVR_CH_CONTROL);

	if (!err) {
		alike_call(c, KVR_ALIKE_RESET, &req);
		err = is_leader(c) ? kvr_lead_reset(c, &req, model, deadline_ns)
				   : kvr_rank_reset(c, &req, deadline_ns);
		err = alike_answer(c, KVR_ALIKE_RESET, err);
	}
	return leave(c, KVR_CALL_RESET, KVR_CH_CONTROL, &req, err);
}

int kvr_connector_reset_wait(struct kvr_connector *c, const struct kvr_request *request,
			     uint64_t deadline_ns)
{
	return decided(c, KVR_CALL_RESET, request, KVR_OP_RESET, KVR_STAGE_DONE, deadline_ns);
}

/* --- completions, the end
 * ------------------------------------------------------------------------- */

int kvr_connector_check_completed(struct kvr_connector *c, enum kvr_tick_mode mode, uint64_t tick,
				  uint64_t deadline_ns, struct kvr_completion *ret_completions,
				  uint32_t max, uint64_t *ret_tick)
{
	int err;

	/* The poll that finds nothing is the common one: no clock, no event. Now and then it is
	 * made in full, so that others see that this process lives. */
	if (mode == KVR_NOW && !is_leader(c) && c->forks == kvr_fork_generation() &&
	    ++c->polls % FULL_POLL && kvr_rank_nothing_new(c)) {
		uint64_t *calls = &c->group->calls[KVR_CALL_CHECK_COMPLETED];

		kvr_store_relaxed(calls, *calls + 1);
		if (ret_tick)
			*ret_tick = c->tick;
		return 0;
	}
	err = enter(c, KVR_CALL_CHECK_COMPLETED, KVR_CH_COMPLETE);
	if (!err && mode != KVR_TICK && mode != KVR_NEXT && mode != KVR_NOW)
		err = KVR_FAIL(-EINVAL, "check_completed: mode %d is none", (int)mode);
	if (!err)
		err = is_leader(c) ? kvr_lead_check_completed(c, mode, tick, deadline_ns,
							      ret_completions, max, ret_tick)
				   : kvr_rank_check_completed(c, mode, tick, deadline_ns,
							      ret_completions, max, ret_tick);
	return leave(c, KVR_CALL_CHECK_COMPLETED, KVR_CH_COMPLETE, NULL, err);
}

void kvr_connector_explain_lost(struct kvr_connector *c, uint32_t n)
{
	kvr_group_check(c->group); /* its sentence begins with the group's name */
	kvr_fail(0, "%u %s lost with epoch %llu of %s", n,
		 n == 1 ? "operation was" : "operations were",
		 (unsigned long long)kvr_group_epoch(c->group), kvr_explain());
}

int kvr_connector_shutdown(struct kvr_connector *c, uint64_t deadline_ns)
{
	struct kvr_request none = { 0 };
	struct kvr_message m;
	int err = enter_alive(c, KVR_CALL_SHUTDOWN, KVR_CH_CONTROL);

	if (!err)
		err = is_leader(c)
			      ? kvr_lead_shutdown(c, deadline_ns)
			      : kvr_channels_take_for(c->channels, KVR_CH_CONTROL, KVR_TAG_SHUTDOWN,
						      &none, deadline_ns, &m);
	c->ended |= !err;
	return leave(c, KVR_CALL_SHUTDOWN, KVR_CH_CONTROL, NULL, err);
}

/* --- facts
 * ---------------------------------------------------------------------------------------- */

uint32_t kvr_connector_spans(const struct kvr_connector *c, int write, struct kvr_span *ret_spans,
			     uint32_t max)
{
	const struct kvr_shape *shape = &c->config.shape;
	struct kvr_span last = { 0, 0 };
	uint32_t n = 0;

	/* In each layer group the next own shard by offset, until there is none. */
	for (uint32_t l = 0; !is_leader(c) && l < shape->layer_groups; l++)
		for (uint64_t from = 0;;) {
			const struct kvr_shard *best = NULL;

			for (uint32_t s = 0; s < shape->shards; s++) {
				const struct kvr_shard *h = &shape->shard[s];

				if ((write ? h->writer == c->rank : (h->readers >> c->rank & 1)) &&
				    h->first_layer <= l && l < h->first_layer + h->layers &&
				    h->offset >= from && (!best || h->offset < best->offset))
					best = h;
			}
			if (!best)
				break;
			from = best->offset + best->bytes;
			if (n &&
			    last.offset + last.bytes == l * shape->layer_bytes + best->offset) {
				last.bytes += best->bytes;
			} else {
				last = (struct kvr_span){ l * shape->layer_bytes + best->offset,
							  best->bytes };
				n++;
			}
			if (n <= max)
				ret_spans[n - 1] = last;
		}
	return n;
}

uint32_t kvr_connector_max_blocks(const struct kvr_connector *c)
{
	return c->config.max_blocks;
}

uint32_t kvr_connector_pool_slots(const struct kvr_connector *c)
{
	return (uint32_t)c->config.pool_slots;
}

void *kvr_connector_pool(const struct kvr_connector *c, uint64_t *ret_bytes)
{
	const struct kvr_pool *pool = is_leader(c) ? kvr_engine_pool(c->engine) : &c->pool;

	*ret_bytes = pool->bytes;
	return pool->mem;
}

int kvr_connector_stats(struct kvr_connector *c, struct kvr_stats *ret_stats)
{
	if (c->forks != kvr_fork_generation())
		return KVR_FAIL(-EINVAL, "kvr_connector_stats in a forked child");
	if (!is_leader(c))
		return KVR_FAIL(-EINVAL, "kvr_connector_stats: rank %u asked; the leader counts",
				c->rank);
	kvr_engine_stats(c->engine, ret_stats);
	ret_stats->tick = c->tick;
	return 0;
}

const char *kvr_connector_degraded(struct kvr_connector *c, uint32_t i)
{
	return is_leader(c) ? kvr_engine_degraded(c->engine, i) : NULL;
}

struct kvr_group *kvr_connector_group(struct kvr_connector *c)
{
	return c->group;
}

struct kvr_channels *kvr_connector_channels(struct kvr_connector *c)
{
	return c->channels;
}
