/* Reads a request head, and writes the edited one.
 *
 * The parser is narrow on purpose: what it does not know with certainty is Envoy's. `name_of` is generated: it knows
 * the header names that the policies in force mention, and no others.
 */
#ifndef UNDERDECK_MESH_HEAD_H
#define UNDERDECK_MESH_HEAD_H

#include "helpers.bpf.h"

/* A function that the verifier looks at once, whoever calls it: it must hold for any head. */
#define apart __attribute__((noinline))
#define never_null __attribute__((btf_decl_tag("arg:nonnull")))

#define ONES 0x0101010101010101ULL
#define HIGHS 0x8080808080808080ULL
#define AT(h, i) ((h)->text[(i) & (UD_HEAD_MAX - 1)])

/* RFC 9110 section 5.6.2: characters of a token. */
static const ud_u8 token_char[256] = {
	['!'] = 1, ['#'] = 1, ['$'] = 1, ['%'] = 1, ['&'] = 1, ['\''] = 1, ['*'] = 1, ['+'] = 1, ['-'] = 1, ['.'] = 1,
	['^'] = 1, ['_'] = 1, ['`'] = 1, ['|'] = 1, ['~'] = 1, ['0' ... '9'] = 1, ['A' ... 'Z'] = 1, ['a' ... 'z'] = 1,
};

inline_always ud_u64 word(struct ud_head *h, ud_u32 at)
{
	return load_word(&h->text[at & (UD_HEAD_MAX - 1)]);
}

/* A word with its letters in lower case. */
inline_always ud_u64 lower(ud_u64 w)
{
	ud_u64 low = w & ~HIGHS, from_a = low + (0x80 - 'A') * ONES, past_z = low + (0x7f - 'Z') * ONES;

	return w | ((from_a ^ past_z) & ~w & HIGHS) >> 2;
}

/* Which byte of a word is the first one with its high bit set in `marks`. */
inline_always ud_u32 first_mark(ud_u64 marks)
{
	return (ud_u32)(((((marks & -marks) - 1) & ONES) * ONES) >> 56) - 1;
}

apart int name_of(struct ud_head *h never_null, ud_u32 at, ud_u32 len);

inline_always int refuse(struct ud_head *h, ud_u32 reason)
{
	h->verdict = UD_ENVOY;
	h->reason = reason;
	return -1;
}

/* Envoy refuses methods that it does not know; these are the ones that it surely knows. */
inline_always int is_known_method(struct ud_head *h, ud_u32 len)
{
	ud_u64 w = word(h, 0);

	switch (len) {
	case 3:
		return (w & 0xffffff) == 0x544547 || (w & 0xffffff) == 0x545550;
	case 4:
		return (w & 0xffffffff) == 0x44414548 || (w & 0xffffffff) == 0x54534f50;
	case 5:
		return (w & 0xffffffffffULL) == 0x4843544150ULL;
	case 6:
		return (w & 0xffffffffffffULL) == 0x4554454c4544ULL;
	case 7:
		return (w & 0xffffffffffffffULL) == 0x534e4f4954504fULL;
	default:
		return 0;
	}
}

/* The value of a hexadecimal digit; 16 of any other character. */
inline_always ud_u32 digit_of(ud_u8 c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	c |= 0x20;
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : 16;
}

/* Whether `%XX` stays as it is: all but unreserved characters (RFC 3986 section 2.3), slashes and controls. */
apart int stays_escaped(struct ud_head *h never_null, ud_u32 at)
{
	ud_u32 high = digit_of(AT(h, at + 1)), low = digit_of(AT(h, at + 2)), c = high << 4 | low;

	if (high > 15 || low > 15 || c < 0x20 || c == 0x7f || c == '/' || c == '\\')
		return 0;
	if ((c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z'))
		return 0;
	return c != '-' && c != '.' && c != '_' && c != '~';
}

/* `METHOD SP TARGET SP HTTP/1.1 CRLF`; the offset behind it, 0 if it is not complete, or -1. */
apart int request_line(struct ud_head *h never_null)
{
	ud_u32 i = zero(), end = h->size, query = 0, start, odd = 0;
	ud_u8 before = 0;

	while (i < end && token_char[AT(h, i)] && can_loop)
		step(i, 1);
	if (i + 1 >= end)
		return 0;
	if (AT(h, i) != ' ' || !is_known_method(h, i))
		return refuse(h, UD_REASON_SYNTAX);
	h->method.at = 0;
	h->method.len = i;
	/* One path for the verifier, whatever the method. */
	step(i, 1);
	start = i;
	if (AT(h, i) != '/')
		return refuse(h, UD_REASON_TARGET);
	while (i < end && can_loop) {
		ud_u8 c = AT(h, i);

		if (c <= ' ')
			break;
		if (c >= 0x7f || c == '#' || c == '"' || c == '<' || c == '>')
			return refuse(h, UD_REASON_TARGET);
		if (c == '?' && !query)
			query = i;
		if (!query && c == '%' && !stays_escaped(h, i))
			odd = 1;
		if (!query && (c == '\\' || (before == '/' && (c == '/' || c == '.')) || c == '^' || c == '`' ||
			       c == '{' || c == '}' || c == '|'))
			odd = 1;
		before = c;
		step(i, 1);
	}
	if (i + 11 > end)
		return 0;
	if (odd)
		return refuse(h, UD_REASON_PATH);
	h->target.at = h->path.at = start;
	h->target.len = i - start;
	h->path.len = (query ? query : i) - start;
	for (ud_u32 n = 0; n < UD_PATH_WORDS; n++)
		h->path_words[n] = word(h, start + 8 * n);
	if (AT(h, i) != ' ' || word(h, i + 1) != 0x312e312f50545448ULL || AT(h, i + 9) != '\r' || AT(h, i + 10) != '\n')
		return refuse(h, UD_REASON_SYNTAX);
	return i + 11;
}

/* The first byte from `i` on that is no plain character of a value. */
inline_always ud_u32 value_end(struct ud_head *h, ud_u32 i, ud_u32 end)
{
	while (i < end && can_loop) {
		ud_u64 w = word(h, i);
		ud_u64 marks = ((w - 0x20 * ONES) & ~w & HIGHS) | (w & HIGHS);
		ud_u64 del = w ^ (0x7f * ONES);

		marks |= (del - ONES) & ~del & HIGHS;
		if (marks)
			return i + first_mark(marks);
		step(i, 8);
	}
	return i;
}

inline_always int length_of(struct ud_head *h, ud_u32 at, ud_u32 len)
{
	ud_u64 length = 0;
	ud_u32 i = zero();

	if (len == 0 || len > 15)
		return -1;
	while (i < len && can_loop) {
		ud_u8 c = AT(h, at + i);

		if (c < '0' || c > '9')
			return -1;
		length = length * 10 + (c - '0');
		step(i, 1);
	}
	h->content_length = length;
	return 0;
}

/* One line that policies or the parser look at. */
inline_always int note_line(struct ud_head *h, ud_u32 name, ud_u32 start, ud_u32 at, ud_u32 len, ud_u32 end)
{
	ud_u32 n = h->lines;
	struct ud_line *line;

	hide(name);
	name &= UD_NAMES_MAX - 1;
	if (h->seen & (1ULL << name))
		return refuse(h, UD_REASON_DUPLICATE);
	h->seen |= 1ULL << name;
	h->value[name].at = at;
	h->value[name].len = len;
	hide(n);
	if (n >= UD_LINES_MAX)
		return refuse(h, UD_REASON_CROWDED);
	line = &h->line[n];
	line->start = start;
	line->end = end;
	line->name = name;
	h->lines = n + 1;
	return 0;
}

/* What belongs to the framing or to the connection, beyond the plainest forms of it. */
inline_always int framing(struct ud_head *h, int name, ud_u32 at, ud_u32 len)
{
	switch (name) {
	case UD_NAME_LENGTH:
		if (h->body || length_of(h, at, len))
			return refuse(h, UD_REASON_FRAMING);
		h->body = UD_BODY_LENGTH;
		return 0;
	case UD_NAME_CODING:
		/* "chunked" and nothing else, and no length beside it. */
		if (h->body || len != 7 || (word(h, at) | 0xff20202020202020ULL) != 0xff64656b6e756863ULL)
			return refuse(h, UD_REASON_FRAMING);
		h->body = UD_BODY_CHUNKED;
		return 0;
	case UD_NAME_CONNECTION:
		/* "keep-alive", which is what HTTP/1.1 does anyway. */
		if (len == 10 && (word(h, at) | 0x2020200020202020ULL) == 0x696c612d7065656bULL &&
		    (AT(h, at + 8) | 0x20) == 'v' && (AT(h, at + 9) | 0x20) == 'e')
			return 0;
		return refuse(h, UD_REASON_CONNECTION);
	default:
		return 0;
	}
}

/* Reads `h->text`. 0: all of the head is there and understood; 1: more bytes are needed; -1: Envoy. */
apart int read_head(struct ud_head *h never_null)
{
	ud_u32 end = h->size, i, start;
	int at;

	h->len = h->body = h->lines = 0;
	h->content_length = h->seen = 0;
	at = request_line(h);
	if (at <= 0)
		return at < 0 ? -1 : 1;
	i = at;
	while (i + 1 < end && can_loop) {
		ud_u32 colon, from, to;
		int name;

		if (AT(h, i) == '\r') {
			if (AT(h, i + 1) != '\n')
				return refuse(h, UD_REASON_SYNTAX);
			h->len = i + 2;
			return 0;
		}
		start = i;
		while (i < end && token_char[AT(h, i)] && can_loop)
			step(i, 1);
		colon = i;
		if (colon + 1 >= end)
			break;
		if (colon == start || AT(h, colon) != ':')
			return refuse(h, UD_REASON_SYNTAX);
		name = name_of(h, start, colon - start);
		if (name < -1)
			return refuse(h, UD_REASON_CONNECTION);
		from = colon + 1;
		while (from < end && AT(h, from) == ' ' && can_loop)
			step(from, 1);
		to = value_end(h, from, end);
		if (to + 1 >= end)
			break;
		if (AT(h, to) != '\r' || AT(h, to + 1) != '\n')
			return refuse(h, UD_REASON_SYNTAX);
		i = (to + 2) ^ zero();
		if (name < 0)
			continue;
		while (to > from && AT(h, to - 1) == ' ' && can_loop)
			step(to, -1);
		if (note_line(h, name, start, from, to - from, i) || framing(h, name, from, to - from))
			return -1;
	}
	return 1;
}

/* Appends bytes of the head. */
apart int put_text(struct ud_head *h never_null, ud_u32 from, ud_u32 to)
{
	ud_u32 at = h->out_len, len = to - from;

	if (from >= to)
		return 0;
	hide(len);
	if (len > UD_HEAD_MAX || at > UD_OUT_MAX - UD_HEAD_MAX)
		return -1;
	bpf_probe_read_kernel(&h->out[at], len, &h->text[from & (UD_HEAD_MAX - 1)]);
	h->out_len = at + len;
	return 0;
}

/* Appends a literal of a policy. */
#define put_literal(h, literal, bytes)                                               \
	({                                                                               \
		ud_u32 put_at = (h)->out_len;                                                \
		int put_result = -1;                                                         \
		hide(put_at);                                                                \
		if (put_at <= UD_OUT_MAX - (bytes)) {                                        \
			bpf_probe_read_kernel(&(h)->out[put_at], bytes, literal);                \
			(h)->out_len = put_at + (bytes);                                         \
			put_result = 0;                                                          \
		}                                                                            \
		put_result;                                                                  \
	})

/* Appends the lines from `from` on, up to the empty line, without those whose names are in `removed`. */
apart int put_lines(struct ud_head *h never_null, ud_u32 from, ud_u64 removed)
{
	ud_u32 n = zero();

	while (n < h->lines && n < UD_LINES_MAX && can_loop) {
		struct ud_line *line = &h->line[n & (UD_LINES_MAX - 1)];

		if (removed & (1ULL << (line->name & 63))) {
			if (put_text(h, from, line->start))
				return -1;
			from = line->end;
		}
		step(n, 1);
	}
	return put_text(h, from, h->len - 2);
}

#endif
