/* SPDX-License-Identifier: Apache-2.0 */
/* The end report, for people or as one JSON object. Both print the same figures. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "replay.h"

static const char *const latency_names[REPLAY_LATENCIES] = { "lookup", "first_layer", "load",
							     "store", "request" };

/* --- JSON ------------------------------------------------------------------------------------- */

static void json_string(const char *text)
{
	const unsigned char *p;

	putchar('"');
	for (p = (const unsigned char *)text; *p; p++) {
		if (*p == '"' || *p == '\\')
			printf("\\%c", *p);
		else if (*p < 0x20 || *p >= 0x7f) /* bytes of a path need not be UTF-8 */
			printf("\\u%04x", *p);
		else
			putchar(*p);
	}
	putchar('"');
}

static void json_u64(const char *name, uint64_t value)
{
	printf(", \"%s\": %" PRIu64, name, value);
}

static void json_bool(const char *name, int value)
{
	printf(", \"%s\": %s", name, value ? "true" : "false");
}

static double gbps(uint64_t bytes, uint64_t ns)
{
	return ns ? (double)bytes / (double)ns : 0;
}

static void json_sentences(const struct replay_job *job)
{
	const struct replay_area *area = job->area;
	uint32_t i, n;

	printf(", \"degraded\": [");
	for (i = 0; i < area->degraded; i++) {
		printf("%s", i ? ", " : "");
		json_string(area->sentence[i]);
	}
	printf("], \"errors\": [");
	for (i = n = 0; i <= job->opts.ranks; i++) {
		if (!area->proc[i].sentence[0])
			continue;
		printf("%s", n++ ? ", " : "");
		json_string(area->proc[i].sentence);
	}
	printf("], \"wrong\": [");
	for (i = n = 0; i <= job->opts.ranks; i++) {
		if (!area->proc[i].wrong[0])
			continue;
		printf("%s", n++ ? ", " : "");
		json_string(area->proc[i].wrong);
	}
	printf("]");
}

static void json_latencies(const struct replay_area *area)
{
	const struct replay_latency *l;
	uint32_t i;

	printf(", \"latency_us\": {");
	for (i = 0; i < REPLAY_LATENCIES; i++) {
		l = &area->latency[i];
		printf("%s\"%s\": {\"count\": %" PRIu64
		       ", \"p50\": %.1f, \"p90\": %.1f, \"p99\": %.1f, \"max\": %.1f}",
		       i ? ", " : "", latency_names[i], l->count,
		       (double)replay_latency_at(l, .5) / 1e3,
		       (double)replay_latency_at(l, .9) / 1e3,
		       (double)replay_latency_at(l, .99) / 1e3, (double)l->max_ns / 1e3);
	}
	printf("}");
}

static void json_counts(const struct replay_job *job)
{
	const struct replay_area *area = job->area;
	const struct replay_proc *p = &area->proc[0];
	const struct replay_blocks *b = &p->blocks;
	uint64_t ticks, equal = replay_ticks_equal(job, &ticks);

	json_u64("requests", p->requests);
	json_u64("references", p->references);
	json_u64("blocks_stored", b->copied);
	json_u64("blocks_written", area->stats.blocks_written);
	json_u64("blocks_loaded", b->loaded);
	json_u64("hit_blocks", b->hits_host + b->hits_nvme);
	json_u64("hit_blocks_host", b->hits_host);
	json_u64("hit_blocks_nvme", b->hits_nvme);
	json_u64("possible_hits", area->counts.possible);
	json_u64("stale_hits", area->counts.stale);
	json_u64("recovered_blocks", area->stats.blocks_recovered);
	json_u64("wrong_bytes", replay_wrong_bytes(job));
	json_u64("unfinished", replay_unfinished(job));
	json_u64("operations", p->ops);
	json_u64("operations_failed", p->ops_failed);
	json_u64("operations_cancelled", p->ops_cancelled);
	json_u64("ticks", ticks);
	json_bool("ticks_equal", equal == ticks);
	json_bool("counts_equal", replay_counts_equal(job));
	json_u64("host_evictions", area->stats.host_evictions);
	json_u64("nvme_evictions", area->stats.nvme_evictions);
	json_u64("bad_blocks", area->stats.blocks_bad);
	json_u64("bytes_read", area->stats.bytes_read);
	json_u64("bytes_written", area->stats.bytes_written);
	json_u64("pool_slots", area->stats.pool_slots);
	json_u64("store_slots", area->stats.store_slots);
	json_u64("store_used", area->stats.store_used);
}

static void json_protocol(const struct replay_job *job)
{
	const struct replay_opts *o = &job->opts;
	const struct replay_counts *c = &job->area->counts;

	json_bool("layers", o->layers);
	json_u64("prefetch", o->prefetch);
	json_u64("prefetches", c->prefetches);
	json_u64("prefetched_blocks", c->prefetched);
	json_u64("prefetched_used", c->prefetch_used);
	json_u64("prefetched_wasted", c->prefetch_wasted);
	json_u64("prefetch_cancelled", c->prefetch_cancelled);
	printf(", \"abort\": %g", o->abort);
	json_u64("aborted", job->area->proc[0].aborted);
	json_u64("reset_every", o->reset_every);
	json_u64("resets", job->area->proc[0].resets);
	json_u64("late", c->late);
	json_u64("duplicate", c->duplicate);
	json_u64("foreign", c->foreign);
	json_u64("quarantined_slots", c->quarantined);
	json_u64("quarantined_slots_most", c->quarantine_most);
}

static void report_json(const struct replay_job *job, int status)
{
	const struct replay_opts *o = &job->opts;
	const struct replay_area *area = job->area;
	const struct replay_proc *p = &area->proc[0];
	uint32_t i;

	printf("{\"version\": \"" KVR_VERSION_STRING "\", \"trace\": ");
	json_string(o->trace ? o->trace : "generated");
	printf(", \"name\": ");
	json_string(o->name);
	json_counts(job);
	json_protocol(job);
	printf(", \"store_gbps\": %.3f, \"load_gbps\": %.3f, \"seconds\": %.3f",
	       gbps(p->store_bytes, p->store_ns), gbps(p->load_bytes, p->load_ns),
	       (double)area->run_ns / 1e9);
	json_u64("ranks", o->ranks);
	json_u64("block_bytes", o->block_bytes);
	json_u64("layer_groups", o->layer_groups);
	json_bool("replicated", o->replicated);
	json_u64("seed", o->seed);
	printf(", \"epochs\": [");
	for (i = 0; i < area->phases; i++)
		printf("%s%" PRIu64, i ? ", " : "", area->epochs[i]);
	printf("]");
	json_latencies(area);
	json_sentences(job);
	json_bool("interrupted", area->interrupted);
	json_bool("ok", status == REPLAY_OK);
	printf("}\n");
}

/* --- text ------------------------------------------------------------------------------------- */

static void print_bytes(uint64_t bytes)
{
	static const char *const units[] = { "bytes", "KiB", "MiB", "GiB", "TiB" };
	uint32_t i = 0;

	while (i < 4 && bytes && bytes % 1024 == 0)
		bytes /= 1024, i++;
	printf("%" PRIu64 " %s", bytes, units[i]);
}

static void print_time(uint64_t ns)
{
	if (ns < 1000000)
		printf("  %6.1f us", (double)ns / 1e3);
	else if (ns < 10000000000)
		printf("  %6.1f ms", (double)ns / 1e6);
	else
		printf("  %6.1f s ", (double)ns / 1e9);
}

static void text_latencies(const struct replay_area *area)
{
	static const char *const what[REPLAY_LATENCIES] = { "lookup", "first layer", "load",
							    "store to host", "request" };
	const struct replay_latency *l;
	uint32_t i;

	printf("  latency                p50        p90        p99        max\n");
	for (i = 0; i < REPLAY_LATENCIES; i++) {
		l = &area->latency[i];
		if (i == REPLAY_LAYER && !l->count)
			continue;
		printf("    %-14s", what[i]);
		print_time(replay_latency_at(l, .5));
		print_time(replay_latency_at(l, .9));
		print_time(replay_latency_at(l, .99));
		print_time(l->max_ns);
		printf("\n");
	}
}

static void text_head(const struct replay_job *job)
{
	const struct replay_opts *o = &job->opts;

	printf("%s, %u rank%s, blocks of ", o->trace ? o->trace : "generated conversations",
	       o->ranks, o->ranks == 1 ? "" : "s");
	print_bytes(o->block_bytes);
	printf(" (%s, %u layer group%s%s), host ", o->replicated ? "replicated" : "split",
	       o->layer_groups, o->layer_groups == 1 ? "" : "s",
	       o->layers ? ", loaded by layers" : "");
	print_bytes(o->host);
	printf(", NVMe ");
	print_bytes(o->nvme);
	printf("\n");
}

static void text_blocks(const struct replay_job *job)
{
	const struct replay_area *area = job->area;
	const struct replay_proc *p = &area->proc[0];
	const struct replay_blocks *b = &p->blocks;
	uint64_t hits = b->hits_host + b->hits_nvme;

	printf("  requests         %" PRIu64 " of %zu in %.1f s%s\n", p->requests, job->trace.n,
	       (double)area->run_ns / 1e9, area->phases > 1 ? ", with a restart half-way" : "");
	printf("  hits             %" PRIu64 " of %" PRIu64 " blocks (%.1f %%): %" PRIu64
	       " in host memory, %" PRIu64 " on NVMe\n",
	       hits, p->references,
	       p->references ? (double)hits * 100 / (double)p->references : 0.0, b->hits_host,
	       b->hits_nvme);
	printf("  hits possible    %" PRIu64 ", if it began empty and nothing was evicted\n",
	       area->counts.possible);
	if (area->counts.stale)
		printf("  STALE HITS       %" PRIu64 " blocks, not stored since the last reset\n",
		       area->counts.stale);
	printf("  blocks loaded    %" PRIu64 ", %.2f GB/s\n", b->loaded,
	       gbps(p->load_bytes, p->load_ns));
	printf("  blocks stored    %" PRIu64 ", %.2f GB/s to host memory; %" PRIu64
	       " written to NVMe\n",
	       b->copied, gbps(p->store_bytes, p->store_ns), area->stats.blocks_written);
	printf("  blocks evicted   %" PRIu64 " from host memory, %" PRIu64 " from NVMe\n",
	       area->stats.host_evictions, area->stats.nvme_evictions);
	printf("  blocks recovered %" PRIu64 " at the last start (epoch %" PRIu64 ")\n",
	       area->stats.blocks_recovered, area->phases ? area->epochs[area->phases - 1] : 0);
}

static void text_protocol(const struct replay_job *job)
{
	const struct replay_opts *o = &job->opts;
	const struct replay_counts *c = &job->area->counts;

	if (o->prefetch)
		printf("  prefetched       %" PRIu64 " blocks for %" PRIu64 " requests: %" PRIu64
		       " used, %" PRIu64 " wasted; %" PRIu64 " more cancelled\n",
		       c->prefetched, c->prefetches, c->prefetch_used, c->prefetch_wasted,
		       c->prefetch_cancelled);
	if (o->abort > 0)
		printf("  aborted          %" PRIu64 " of the requests\n",
		       job->area->proc[0].aborted);
	if (o->reset_every)
		printf("  resets           %" PRIu64 "\n", job->area->proc[0].resets);
}

static void text_verdict(const struct replay_job *job, int status)
{
	const struct replay_counts *c = &job->area->counts;
	const struct replay_proc *p = &job->area->proc[0];
	uint64_t ticks, equal = replay_ticks_equal(job, &ticks);
	uint32_t i;

	printf("  wrong bytes      %" PRIu64 "\n", replay_wrong_bytes(job));
	for (i = 0; i <= job->opts.ranks; i++)
		if (job->area->proc[i].wrong[0])
			printf("    %s\n", job->area->proc[i].wrong);
	printf("  operations       %" PRIu64 ", unfinished %" PRIu64 ", failed %" PRIu64
	       ", cancelled %" PRIu64 "\n",
	       p->ops, replay_unfinished(job), p->ops_failed, p->ops_cancelled);
	printf("  not applied      %" PRIu64 " late answers of ranks, %" PRIu64
	       " repeated, %" PRIu64 " foreign\n",
	       c->late, c->duplicate, c->foreign);
	printf("  quarantine       %" PRIu64 " slots, %" PRIu64 " at most\n", c->quarantined,
	       c->quarantine_most);
	printf("  ticks            %" PRIu64
	       ", the same completions on leader and ranks at %" PRIu64 "%s\n",
	       ticks, equal,
	       replay_counts_equal(job) ? "" : "; THE COUNTS OF BLOCKS AND OPERATIONS DIFFER");
	for (i = 0; i < job->area->degraded; i++)
		printf("  degraded         %s\n", job->area->sentence[i]);
	if (status == REPLAY_OK)
		printf("right: every byte, every operation ended, every tick the same\n");
	else if (status == REPLAY_INTERRUPTED)
		printf("interrupted; right up to there\n");
	else
		printf("%s\n", p->finished ? "NOT RIGHT"
					   : "ended by a failure; standard error has the reason");
}

int replay_report(const struct replay_job *job, int status)
{
	if (job->opts.json) {
		report_json(job, status);
	} else {
		text_head(job);
		text_blocks(job);
		text_protocol(job);
		text_latencies(job->area);
		text_verdict(job, status);
	}
	if (!fflush(stdout) && !ferror(stdout))
		return 0;
	replay_complain("the report could not be written to standard output");
	return -1;
}
