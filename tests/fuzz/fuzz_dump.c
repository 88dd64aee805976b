/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Looking into a file that was changed anywhere and cut off anywhere, before and between the reads
 * of one look. Whatever it holds, each call must end with what fits the caller's room or with an
 * error, and what ring-dump prints must be text for a terminal or one JSON value.
 */
#include "fuzz.h"

#include "../../tools/dump_table.h"
#include "expect.h"
#include "kvring/inspect.h"

static struct kvr_layout layout; /* as the file's header was last given one */
static char path[KVR_SHM_PATH];
static int file = -1;

/* --- what happens between two reads ---------------------------------------------------- */

static struct seg_later later;
static int looking; /* inside the library */

static void file_cut(struct script *s)
{
	uint64_t most = layout.total + KVR_PAGE;

	must(!ftruncate(file, (off_t)(script_u32(s) % most)));
}

static void file_change(struct script *s)
{
	if (script_u8(s) % 8)
		seg_change(s, &layout, file);
	else
		file_cut(s);
}

/* The library's own: it has no other way to the file. Bytes of a short read are nobody's. */
ssize_t pread(int fd, void *to, size_t len, off_t off)
{
	if (looking && seg_later_now(&later))
		file_change(&later.s);
	if (looking)
		memset(to, 0xa5, len);
	return (ssize_t)syscall(SYS_pread64, fd, to, len, off);
}

static int certain; /* nothing happens between the reads of this look */

static void look_begin(struct script *s)
{
	seg_later_set(&later, s, 80);
	certain = !later.when;
	looking = 1;
}

/* A count that fits, or an error with a sentence. */
static int look_end(int rc, uint32_t most)
{
	looking = 0;
	must(rc <= (int)most);
	must(rc >= -4095 && (rc >= 0 || *kvr_explain()));
	return rc;
}

/* What a handle may say about sizes is what the header said when it was opened. */
struct handle {
	struct kvr_inspect *in;
	struct kvr_layout l;
	int sure; /* of all offsets, not only of the numbers of ranks and so on */
};

/* A look that reads up to `end` fails exactly where the file ends before. */
static void must_end(const struct handle *h, int rc, uint64_t end)
{
	struct stat st;

	must(!fstat(file, &st));
	if (certain && h->sure)
		must((rc == -EBADMSG) == ((uint64_t)st.st_size < end));
}

/* --- one call after another ------------------------------------------------------------ */

static void check_text(const char *text, size_t size)
{
	size_t i, n = strnlen(text, size);

	must(n < size);
	for (i = 0; i < n; i++)
		must(text[i] >= 0x20 && text[i] < 0x7f);
}

static void look_group(struct script *s, const struct handle *h)
{
	struct kvr_inspect_group g;
	int rc;

	memset(&g, 0x5a, sizeof g);
	look_begin(s);
	rc = look_end(kvr_inspect_group(h->in, &g), 0);
	must_end(h, rc, h->l.leader + KVR_PAGE);
	if (rc) {
		must(rc == -EBADMSG);
		return;
	}
	check_text(g.name, sizeof g.name);
	check_text(g.library, sizeof g.library);
	check_text(g.model.name, sizeof g.model.name);
	check_text(g.model.revision, sizeof g.model.revision);
	check_text(g.model.dtype, sizeof g.model.dtype);
	must(strnlen(g.setup, sizeof g.setup) < sizeof g.setup);
	check_text(kvr_inspect_state_name(g.state), 32);
	must(g.ranks >= 1 && g.ranks <= KVR_MAX_RANKS && g.same_boot <= 1);
}

/* A rank that may be one of the group, or the leader, or nobody. */
static uint32_t any_rank(struct script *s)
{
	uint8_t how = script_u8(s);

	return how < 0xe0 ? how % (layout.ranks + 1) : how % 2 ? DUMP_LEADER : script_u32(s);
}

static void look_proc(struct script *s, const struct handle *h)
{
	struct kvr_inspect_proc p;
	uint32_t rank = any_rank(s);
	int rc;

	look_begin(s);
	rc = look_end(kvr_inspect_proc(h->in, rank, &p), 0);
	if (rank >= h->l.ranks && rank != DUMP_LEADER)
		must(rc == -EINVAL);
	else
		must_end(h, rc,
			 KVR_PAGE + (rank == DUMP_LEADER ? h->l.leader
							 : kvr_layout_rank(&h->l, rank)));
	if (rc)
		return;
	must(p.rank == rank && p.alive >= -1 && p.alive <= 1);
	check_text(kvr_inspect_call_name(p.in_call), 32);
}

static void look_channel(struct script *s, const struct handle *h)
{
	uint32_t channel = script_u8(s) % (KVR_CHANNELS + 1), rank = any_rank(s);
	struct kvr_inspect_channel c;
	int rc;

	look_begin(s);
	rc = look_end(kvr_inspect_channel(h->in, channel, rank, &c), 0);
	if (rank >= h->l.ranks || channel >= KVR_CHANNELS)
		must(rc == -EINVAL);
	else
		must(!rc || rc == -EBADMSG);
	must(rc || (c.channel == channel && c.rank == rank));
}

static void look_messages(struct script *s, const struct handle *h)
{
	uint32_t channel = script_u8(s) % (KVR_CHANNELS + 1), rank = any_rank(s);
	uint32_t max = 40 - script_u8(s) % 41;
	struct kvr_inspect_message *m = malloc(max * sizeof *m);
	int i, rc;

	must(m);
	look_begin(s);
	rc = look_end(kvr_inspect_messages(h->in, channel, rank, m, max), max);
	if (rank >= h->l.ranks || channel >= KVR_CHANNELS)
		must(rc == -EINVAL);
	else
		must(rc >= 0 || rc == -EBADMSG);
	for (i = 0; i < rc; i++) {
		must(m[i].channel == channel && m[i].rank == rank);
		must(m[i].bulk >= -1 && m[i].bulk <= 1);
		must(m[i].len <= (m[i].bulk > 0 ? h->l.bulk_bytes
						: kvr_ring_max_payload(h->l.ring_bytes) -
							  sizeof(struct kvr_msg_head)));
		must(m[i].read >= -1 && m[i].read <= 1);
		must(!i || (int32_t)(m[i].seq - m[i - 1].seq) > 0);
	}
	free(m);
}

static void look_ops(struct script *s, const struct handle *h)
{
	uint32_t max = 20 - script_u8(s) % 21;
	struct kvr_inspect_op *o = malloc(max * sizeof *o);
	int i, rc;

	must(o);
	look_begin(s);
	rc = look_end(kvr_inspect_ops(h->in, o, max), max);
	must_end(h, rc, h->l.leader_rec);
	for (i = 0; i < rc; i++) {
		must(o[i].entry < h->l.ops && (!i || o[i].entry > o[i - 1].entry));
		must(o[i].stage >= KVR_STAGE_BEGUN && o[i].stage < KVR_STAGES);
		must(o[i].stage < KVR_STAGE_END || o[i].need & ~o[i].acked);
	}
	free(o);
}

static void count_line(void *arg, uint64_t ns, const char *line)
{
	uint32_t *n = arg;

	(void)ns;
	check_text(line, 256);
	must(*line);
	++*n;
}

static uint64_t recorder_end(const struct kvr_layout *l, uint32_t rank)
{
	uint64_t at = rank == DUMP_LEADER ? l->leader_rec : kvr_layout_rank(l, rank) + l->rank_rec;

	return at + sizeof(struct kvr_rec_ctl) + l->events * sizeof(struct kvr_event);
}

static void look_events(struct script *s, const struct handle *h)
{
	int channel = script_u8(s) % (KVR_CHANNELS + 2) - 1;
	uint32_t rank = any_rank(s), max = 80 - script_u8(s) % 81, told = 0;
	int rc;

	look_begin(s);
	rc = look_end(kvr_inspect_events(h->in, rank, channel, max, count_line, &told), max);
	if (rank >= h->l.ranks && rank != DUMP_LEADER)
		must(rc == -EINVAL);
	else
		must_end(h, rc, recorder_end(&h->l, rank));
	must(told == (rc < 0 ? 0 : (uint32_t)rc));
}

static void look_next(struct script *s, const struct handle *h)
{
	uint32_t rank = any_rank(s), max = 80 - script_u8(s) % 81;
	struct kvr_inspect_event *e = malloc(max * sizeof *e);
	uint64_t next = script_u8(s) % 2 ? script_u8(s) : script_u64(s), from = next;
	char text[256];
	int i, rc;

	must(e);
	look_begin(s);
	rc = look_end(kvr_inspect_events_next(h->in, rank, &next, e, max), max);
	if (rank >= h->l.ranks && rank != DUMP_LEADER)
		must(rc == -EINVAL);
	else
		must(rc >= 0 || rc == -EBADMSG);
	must(next >= from);
	for (i = 0; i < rc; i++) {
		must(e[i].rank == rank && e[i].index >= from && e[i].index < next);
		must(!i || e[i].index > e[i - 1].index);
		kvr_inspect_event_text(&e[i], text, sizeof text);
		check_text(text, sizeof text);
		must(*text);
	}
	free(e);
}

static void look_meets(struct script *s, const struct handle *h)
{
	uint32_t max = 40 - script_u8(s) % 41;
	struct kvr_inspect_meet *m = malloc(max * sizeof *m);
	int i, rc;

	must(m);
	look_begin(s);
	rc = look_end(kvr_inspect_meets(h->in, m, max), max);
	must(rc >= 0 || rc == -EBADMSG);
	for (i = 0; i < rc; i++) {
		must(m[i].ranks && (h->l.ranks == 64 || !(m[i].ranks >> h->l.ranks)));
		must(!(m[i].arrived & ~m[i].ranks) && m[i].values < 256);
		must(m[i].with_leader <= 1 && m[i].leader_arrived <= m[i].with_leader);
		must(m[i].round || !m[i].arrived);
	}
	free(m);
}

static void look_logs(struct script *s, const struct handle *h)
{
	uint32_t rank = any_rank(s), kind = script_u8(s) % (KVR_ALIKES + 1);
	uint32_t max = 40 - script_u8(s) % 41;
	struct kvr_inspect_call *c = malloc(max * sizeof *c);
	struct kvr_inspect_drift drift;
	struct kvr_inspect_log log;
	int i, rc, bad = kind == KVR_ALIKES || (rank >= h->l.ranks && rank != DUMP_LEADER);

	must(c);
	look_begin(s);
	rc = look_end(kvr_inspect_log(h->in, rank, kind, &log, c, max), max);
	must(bad ? rc == -EINVAL : rc >= 0 || rc == -EBADMSG);
	for (i = 0; i < rc; i++)
		must(c[i].index < log.count && log.count - c[i].index < h->l.window &&
		     (!i || c[i].index > c[i - 1].index));
	must(rc < 0 || !log.last_known || log.last.index == log.count - 1);
	look_begin(s);
	rc = look_end(kvr_inspect_drift(h->in, rank, kind, &drift), 1);
	must(bad || rank == DUMP_LEADER ? rc == -EINVAL : rc >= 0 || rc == -EBADMSG);
	must(rc != 1 || (drift.rank == rank && drift.kind == kind && drift.exact <= 1));
	free(c);
}

/* A copy shows what the file showed; or the copying failed, and left nothing. */
static void look_save(struct script *s, const struct handle *h)
{
	char copy[KVR_SHM_PATH + 8];
	struct kvr_inspect *in;
	struct stat st;
	int rc;

	snprintf(copy, sizeof copy, "%s/copy", seg_dir);
	look_begin(s);
	rc = look_end(kvr_inspect_save(h->in, copy, 0), 0);
	must(!rc || rc == -EBADMSG);
	must((stat(copy, &st) == 0) == !rc);
	if (rc)
		return;
	rc = kvr_inspect_open(copy, &in);
	must(!rc);
	kvr_inspect_close(in);
	must(!unlink(copy));
}

/* --- JSON ---------------------------------------------------------------------------------- */

struct json {
	const char *at; /* ends with a 0 */
};

static int json_is(struct json *j, char c)
{
	if (*j->at != c)
		return 0;
	j->at++;
	return 1;
}

static void json_string(struct json *j)
{
	must(json_is(j, '"'));
	while (!json_is(j, '"')) {
		must(*j->at >= 0x20 && *j->at < 0x7f);
		if (!json_is(j, '\\')) {
			j->at++;
		} else if (json_is(j, 'u')) {
			must(strspn(j->at, "0123456789abcdef") >= 4);
			j->at += 4;
		} else {
			must(*j->at && strchr("\"\\/bfnrt", *j->at));
			j->at++;
		}
	}
}

static void json_digits(struct json *j)
{
	size_t n = strspn(j->at, "0123456789");

	must(n);
	j->at += n;
}

static void json_number(struct json *j)
{
	json_is(j, '-');
	must(j->at[0] != '0' || j->at[1] < '0' || j->at[1] > '9');
	json_digits(j);
	if (json_is(j, '.'))
		json_digits(j);
}

static void json_value(struct json *j);

/* Members of an object with their names, or of an array without. */
static void json_members(struct json *j, char end, int names)
{
	struct {
		const char *at;
		size_t len;
	} seen[64];
	uint32_t n = 0, i;

	j->at++;
	if (json_is(j, end))
		return;
	do {
		if (names) {
			must(n < KVR_ARRAY_LEN(seen));
			seen[n].at = j->at;
			json_string(j);
			seen[n].len = (size_t)(j->at - seen[n].at);
			for (i = 0; i < n; i++)
				must(seen[i].len != seen[n].len ||
				     memcmp(seen[i].at, seen[n].at, seen[n].len));
			n++;
			must(json_is(j, ':'));
		}
		json_value(j);
	} while (json_is(j, ','));
	must(json_is(j, end));
}

static void json_value(struct json *j)
{
	static const char *const words[] = { "true", "false", "null" };
	size_t i;

	if (*j->at == '{') {
		json_members(j, '}', 1);
	} else if (*j->at == '[') {
		json_members(j, ']', 0);
	} else if (*j->at == '"') {
		json_string(j);
	} else if (*j->at == '-' || (*j->at >= '0' && *j->at <= '9')) {
		json_number(j);
	} else {
		for (i = 0; i < 3 && strncmp(j->at, words[i], strlen(words[i])); i++)
			;
		must(i < 3);
		j->at += strlen(words[i]);
	}
}

/* --- ring-dump ------------------------------------------------------------------------------ */

struct page {
	char *text;
	size_t size;
	FILE *out;
};

static void page_open(struct page *p)
{
	*p = (struct page){ 0 };
	p->out = open_memstream(&p->text, &p->size);
	must(p->out);
}

/* What was printed must be one JSON value, or lines that a terminal shows as they are. */
static void page_close(struct page *p, int json)
{
	struct json j;
	size_t i;

	must(!fclose(p->out));
	must(strlen(p->text) == p->size);
	if (json) {
		j.at = p->text;
		json_value(&j);
		must(!strcmp(j.at, "\n") || !*j.at);
	}
	for (i = 0; i < p->size; i++)
		must(p->text[i] == '\n' || (p->text[i] >= 0x20 && p->text[i] < 0x7f));
	free(p->text);
}

static struct dump dump; /* large */

static struct dump_want any_want(struct script *s)
{
	struct dump_want w = { .views = script_u8(s),
			       .messages = 24 - script_u8(s) % 25,
			       .events = 80 - script_u8(s) % 81,
			       .calls = script_u8(s) % 20,
			       .filter = DUMP_EVERYTHING,
			       .stall_ns = script_u8(s) % 2 ? script_u64(s) : 0 };
	uint8_t how = script_u8(s);

	if (how & 1)
		w.filter.channel = script_u8(s) % KVR_CHANNELS;
	if (how & 2)
		w.filter.tag = script_u8(s);
	if (how & 4)
		w.filter.rank = any_rank(s);
	if (how & 8) {
		w.filter.by_request = 1;
		w.filter.request = script_u8(s);
	}
	return w;
}

static void look_dump(struct script *s, struct kvr_inspect *in)
{
	const struct dump *all[] = { &dump };
	struct dump_want want = any_want(s);
	static struct dump_counts before; /* of whatever was looked at last */
	struct page p;
	int rc;

	look_begin(s);
	rc = look_end(dump_read(in, path, &want, &dump), 0);
	must(!rc || rc == -EBADMSG);
	if (!rc) {
		must(*dump.verdict && dump.status >= DUMP_FINE && dump.status <= DUMP_OVER);
		check_text(dump.verdict, sizeof dump.verdict);
		page_open(&p);
		dump_text(&dump, p.out);
		page_close(&p, 0);
		page_open(&p);
		dump_json(&dump, p.out);
		page_close(&p, 1);
		page_open(&p);
		dump_prom(all, 1, 0, p.out);
		page_close(&p, 0);
		page_open(&p);
		dump_table(&dump, &before, 80, 5, 1000000000u, p.out);
		dump_table_events(&dump, 20, p.out);
		page_close(&p, 0);
		dump_counts(&dump, &before);
	}
	dump_free(&dump);
}

struct listing {
	struct page *p;
	int json, count;
};

/* As ring-dump does it. */
static void list_one(void *arg, const char *each)
{
	const struct dump_want none = { .filter = DUMP_EVERYTHING };
	struct listing *l = arg;
	struct kvr_inspect *in;
	int rc = kvr_inspect_open(each, &in);

	must(!strcmp(each, path));
	memset(&dump, 0, sizeof dump);
	if (!rc) {
		rc = dump_read(in, each, &none, &dump);
		kvr_inspect_close(in);
	}
	must(rc <= 0);
	(l->json ? dump_list_json : dump_list_text)(&dump, each, rc ? kvr_explain() : NULL,
						    !l->count++, l->p->out);
	dump_free(&dump);
}

static void look_list(struct script *s)
{
	struct page p;
	struct listing l = { .p = &p, .json = script_u8(s) % 2 };

	page_open(&p);
	look_begin(s);
	must(look_end(kvr_inspect_list(seg_dir, list_one, &l), 1) == 1 && l.count == 1);
	page_close(&p, l.json);
}

/* --- files ---------------------------------------------------------------------------------- */

static void file_open(struct script *s)
{
	static struct kvr_layout sample_layout;
	static uint8_t *sample;
	uint8_t how, n;

	if (!sample) {
		seg_dir_open();
		sample = seg_sample(&sample_layout);
		seg_path(path, KVR_SHM_SEGMENT, 0);
		file = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
		must(file >= 0);
	}
	layout = sample_layout;
	must(!ftruncate(file, 0));
	must(syscall(SYS_pwrite64, file, sample, layout.total, 0) == (long)layout.total);
	how = script_u8(s);
	if (how % 8 == 1)
		seg_resize(s, file, 512u << 10, &layout);
	for (n = script_u8(s) % 6; n; n--)
		seg_change(s, &layout, file);
	if (how < 0xe0)
		seg_seal(file);
	if (how % 16 == 2)
		file_cut(s);
}

static int handle_open(struct script *s, struct handle *h)
{
	int by_name = script_u8(s) % 2, rc;
	struct state x = state_of(path);
	struct kvr_inspect_group g;

	look_begin(s);
	rc = look_end(by_name ? kvr_inspect_open_name(seg_dir, SEG_NAME, &h->in)
			      : kvr_inspect_open(path, &h->in),
		      0);
	must(!rc || rc == -EPROTO || rc == -EBADMSG);
	h->sure = certain;
	h->l = x.l;
	if (certain)
		must((rc == 0) == x.good);
	if (!rc && !certain) {
		rc = kvr_inspect_group(h->in, &g); /* fails when it was cut off meanwhile */
		if (!rc)
			must(!kvr_layout_init(&h->l, KVR_PAGE, g.ranks, g.ring_bytes, g.ops,
					      g.events, g.bulk_bytes));
		else
			kvr_inspect_close(h->in);
	}
	state_free(&x);
	return !rc;
}

#define LOOKS 24u /* of one input: many short inputs find more than a few long ones */
#define PAGES 8u  /* a page is worth so many */

static uint32_t budget;

static void spend(uint32_t looks)
{
	budget -= looks < budget ? looks : budget;
}

static void look(struct script *s, struct handle *h)
{
	spend(1);
	switch (script_u8(s) % 16) {
	case 0:
		look_group(s, h);
		break;
	case 1:
		look_proc(s, h);
		break;
	case 2:
		look_channel(s, h);
		break;
	case 3:
	case 4:
		look_messages(s, h);
		break;
	case 5:
		look_ops(s, h);
		break;
	case 6:
	case 7:
		look_events(s, h);
		break;
	case 8:
		spend(PAGES);
		look_list(s);
		break;
	case 9:
	case 10:
		spend(PAGES);
		look_dump(s, h->in);
		break;
	case 11:
		look_next(s, h);
		break;
	case 12:
		look_meets(s, h);
		look_logs(s, h);
		break;
	case 13:
		spend(PAGES);
		look_save(s, h);
		break;
	default:
		file_change(s);
		break;
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct script s = { data, size };
	struct handle h;
	int fd;

	file_open(&s);
	fd = seg_next_fd();
	budget = LOOKS;
	if (handle_open(&s, &h)) {
		/* Also for an input that ends here. */
		look_events(&s, &h);
		look_messages(&s, &h);
		look_ops(&s, &h);
		look_next(&s, &h);
		look_meets(&s, &h);
		look_logs(&s, &h);
		if (size % 4 == 0)
			look_dump(&s, h.in);
		while (s.left && budget)
			look(&s, &h);
		kvr_inspect_close(h.in);
	} else {
		look_list(&s);
	}
	must(seg_next_fd() == fd);
	return 0;
}
