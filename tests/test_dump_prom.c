/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ring-dump --prom, read the way Prometheus does: a small parser of the text format, which refuses
 * what a scrape would refuse, and values that are what the group is.
 */
#include <ctype.h>

#include "dump_util.h"

#define SAMPLES 4096

struct sample {
	char name[64];
	char labels[400]; /* as printed, with their braces */
	double value;
};

static char dir[256];
static struct sample sample[SAMPLES];
static uint32_t samples;
static char seen[128][64]; /* names that had their HELP */
static uint32_t names;

static void setup_dir(void)
{
	test_tool(tool, sizeof tool, "ring-dump");
	setup_tool();
	test_tmpdir(dir, sizeof dir);
}

static void teardown_dir(void)
{
	test_rmdir(dir);
	teardown();
}

static size_t word(const char *at, char *to, size_t size)
{
	size_t n = 0;

	while (at[n] && (isalnum((unsigned char)at[n]) || at[n] == '_'))
		n++;
	ck_assert_msg(n && !isdigit((unsigned char)*at), "no name: %.60s", at);
	ck_assert_uint_lt(n, size);
	memcpy(to, at, n);
	to[n] = 0;
	return n;
}

/* {label="value",...}, with \\ \" and \n alone as escapes. Returns its end. */
static const char *labels(const char *at)
{
	char label[32];

	ck_assert_int_eq(*at++, '{');
	for (;;) {
		at += word(at, label, sizeof label);
		ck_assert_msg(at[0] == '=' && at[1] == '"', "no value: %.60s", at);
		for (at += 2; *at != '"'; at++) {
			ck_assert_msg(*at >= ' ' && *at <= '~', "a byte %#x", (unsigned)*at);
			if (*at == '\\') {
				at++;
				ck_assert_msg(*at == '\\' || *at == '"' || *at == 'n',
					      "escape: %.20s", at);
			}
		}
		at++;
		if (*at == '}')
			return at + 1;
		ck_assert_int_eq(*at++, ',');
	}
}

/* "# HELP name text", "# TYPE name gauge"; the name. Each comes once, HELP before TYPE. */
static void comment(const char *line, char name[64])
{
	int type = !strncmp(line, "# TYPE ", 7);
	char *space;

	ck_assert_msg(type || !strncmp(line, "# HELP ", 7), "%s", line);
	space = strchr(line + 7, ' ');
	ck_assert_ptr_nonnull(space);
	if (!type) {
		word(line + 7, name, 64);
		for (uint32_t i = 0; i < names; i++)
			ck_assert_str_ne(seen[i], name);
		strcpy(seen[names++], name);
		ck_assert_uint_gt(strlen(space + 1), 5);
		ck_assert_int_eq(line[strlen(line) - 1], '.');
		return;
	}
	*space = 0;
	ck_assert_str_eq(line + 7, name);
	ck_assert(!strcmp(space + 1, "gauge") || !strcmp(space + 1, "counter"));
	ck_assert_int_eq(!strcmp(space + 1, "counter"),
			 strlen(name) > 6 && !strcmp(name + strlen(name) - 6, "_total"));
}

/* Everything that was printed. */
static void parse(void)
{
	char name[64] = "", *save = NULL;

	samples = names = 0;
	ck_assert_int_eq(output[strlen(output) - 1], '\n');
	for (char *line = strtok_r(output, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
		struct sample *s = &sample[samples];
		const char *at;
		char *end;

		if (*line == '#') {
			comment(line, name);
			continue;
		}
		ck_assert_uint_lt(++samples, SAMPLES);
		at = line + word(line, s->name, sizeof s->name);
		ck_assert_str_eq(s->name, name); /* all of a name in one block */
		ck_assert_int_eq(strncmp(s->name, "kvring_", 7), 0);
		end = (char *)(uintptr_t)(*at == '{' ? labels(at) : at);
		ck_assert_uint_lt((size_t)(end - at), sizeof s->labels);
		memcpy(s->labels, at, (size_t)(end - at));
		s->labels[end - at] = 0;
		ck_assert_int_eq(*end, ' ');
		s->value = strtod(end + 1, &end);
		ck_assert_int_eq(*end, 0);
		for (uint32_t i = 0; i + 1 < samples; i++)
			ck_assert(strcmp(sample[i].name, s->name) != 0 ||
				  strcmp(sample[i].labels, s->labels) != 0);
	}
}

static const struct sample *find(const char *name, const char *label)
{
	for (uint32_t i = 0; i < samples; i++)
		if (!strcmp(sample[i].name, name) && strstr(sample[i].labels, label))
			return &sample[i];
	ck_abort_msg("no %s with %s", name, label);
	return NULL;
}

static void is(const char *name, const char *label, double value)
{
	ck_assert_msg(find(name, label)->value == value, "%s with %s is %g, not %g", name, label,
		      find(name, label)->value, value);
}

START_TEST(test_values_are_those_of_the_group)
{
	char name[KVR_NAME_MAX], label[128];
	struct kvr_alike_logs logs[2];
	struct side l, r[2];

	make_dump_group(name, &l, r, NULL);
	logs_of(&l, &logs[0]);
	logs_of(&r[1], &logs[1]);
	call_alike(&logs[0], KVR_ALIKE_LOAD, 1);
	call_alike(&logs[1], KVR_ALIKE_LOAD, 2);
	kvr_group_enter(r[0].g, KVR_CALL_LOAD_WAIT, KVR_CH_LOAD);
	must(kvr_group_phase(r[1].g, "compile", test_deadline_ms(60000)));
	kvr_group_own_page(r[1].g)->late = 5;
	kvr_group_leader_page(l.g)->quarantined_slots = 3;
	kvr_group_own_page(r[0].g)->meet[0] = (struct kvr_meet){ .ranks = 3, .round = 1 << 8 };
	test_sleep_ms(20);
	ck_assert_int_eq(run(tool, NULL, "--prom", name, NULL), 0);
	parse();
	snprintf(label, sizeof label, "{group=\"%s\"", name);
	is("kvring_info", label, 1);
	is("kvring_status", label, 1); /* drift */
	is("kvring_unreadable", "", 0);
	is("kvring_alive", "rank=\"leader\"", 1);
	is("kvring_alive", "rank=\"1\"", 1);
	is("kvring_long_phase", "rank=\"0\"", 0);
	is("kvring_long_phase", "rank=\"1\"", 1);
	is("kvring_calls_total", "rank=\"leader\",call=\"publish\"", 13);
	is("kvring_calls_total", "rank=\"1\",call=\"take\"", 11);
	is("kvring_late_total", "rank=\"1\"", 5);
	is("kvring_calls_alike_total", "rank=\"1\",kind=\"load\"", 1);
	is("kvring_drift", "rank=\"0\"", 0);
	is("kvring_drift", "rank=\"1\"", 1);
	is("kvring_published_total", "rank=\"1\",channel=\"STORE\"", 12);
	is("kvring_taken_total", "rank=\"1\",channel=\"STORE\"", 11);
	is("kvring_behind", "rank=\"1\",channel=\"STORE\"", 1);
	is("kvring_behind", "rank=\"0\",channel=\"STORE\"", 0);
	is("kvring_operations", "kind=\"store\",stage=\"host\"", 1);
	is("kvring_quarantined_slots", label, 3);
	is("kvring_bulk_bytes", label, 1 << 20);
	is("kvring_barrier_missing", "set=\"0-1\",leader=\"0\"", 1);
	ck_assert(find("kvring_in_call_seconds", "call=\"load_wait\"")->value >= 0.02);
	ck_assert(find("kvring_in_call_seconds", "rank=\"0\"")->value <= 60);
	ck_assert(find("kvring_oldest_unread_seconds", "rank=\"1\"")->value >= 0.02);
	ck_assert(find("kvring_oldest_operation_seconds", label)->value >= 0.02);
	kvr_group_leave(r[0].g, KVR_CALL_LOAD_WAIT, KVR_CH_LOAD, NULL, 0);
	end_group(&l, r);
}
END_TEST

START_TEST(test_all_groups_and_hostile_names)
{
	char name[2][KVR_NAME_MAX], label[128], path[KVR_SHM_PATH];
	struct kvr_seg_header *h;
	struct side l[2], r[2][2];
	uint8_t *bytes;
	size_t len;

	group_dir = dir;
	make_dump_group(name[0], &l[0], r[0], NULL);
	make_dump_group(name[1], &l[1], r[1], NULL);
	must(kvr_shm_path(path, sizeof path, dir, name[0], KVR_SHM_SEGMENT, 0));
	bytes = load(path, &len);
	ck_assert_int_eq(run(tool, NULL, "--prom", "--dir", dir, NULL), 0);
	parse();
	for (uint32_t i = 0; i < 2; i++) {
		snprintf(label, sizeof label, "group=\"%s\"", name[i]);
		is("kvring_status", label, 0);
	}
	/* A retired segment says nothing about the present, and would say it twice. */
	((struct kvr_seg_takeover *)(void *)(bytes + l[0].g->layout.takeover))->new_epoch = 2;
	must(kvr_shm_path(path, sizeof path, dir, name[0], KVR_SHM_RETIRED, 1));
	save(path, bytes, len);
	((struct kvr_seg_takeover *)(void *)(bytes + l[0].g->layout.takeover))->new_epoch = 0;
	ck_assert_int_eq(run(tool, NULL, "--prom", "--dir", dir, NULL), 0);
	parse();
	ck_assert_int_eq(run(tool, NULL, "--prom", path, NULL), 0);
	parse();
	is("kvring_status", "", 2);
	/* A header that somebody made on purpose. */
	h = (void *)bytes;
	memcpy(h->name, "a\"b\\c\nd\x01", 9);
	h->checksum = kvr_header_sum(h);
	snprintf(label, sizeof label, "test-hostile-%d", (int)getpid());
	must(kvr_shm_path(path, sizeof path, dir, label, KVR_SHM_SEGMENT, 0));
	save(path, bytes, len);
	must(kvr_shm_path(path, sizeof path, dir, "test-nothing", KVR_SHM_SEGMENT, 0));
	save(path, "x", 1);
	ck_assert_int_eq(run(tool, NULL, "--prom", "--dir", dir, NULL), 0);
	parse();
	is("kvring_unreadable", "", 1);
	is("kvring_epoch_age_seconds", "group=\"a\\\"b\\\\c?d?\"",
	   find("kvring_epoch_age_seconds", "group=\"a")->value);
	snprintf(path, sizeof path, "%s/a\nb\"c\\", dir);
	save(path, bytes, len);
	ck_assert_int_eq(run(tool, NULL, "--prom", path, NULL), 0);
	parse();
	is("kvring_info", "/a\\nb\\\"c\\\\\"", 1);
	free(bytes);
	end_group(&l[1], r[1]);
	end_group(&l[0], r[0]);
	ck_assert_int_eq(run(tool, NULL, "--prom", "--dir", "/no/such/dir", NULL), 3);
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("dump_prom");
	TCase *t = tcase_create("dump_prom");

	tcase_add_checked_fixture(t, setup_dir, teardown_dir);
	tcase_add_test(t, test_values_are_those_of_the_group);
	tcase_add_test(t, test_all_groups_and_hostile_names);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	return kvr_test_main(suite);
}
