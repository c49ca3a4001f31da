/* SPDX-License-Identifier: Apache-2.0 */
/*
 * HTTP/1.0 and HTTP/1.1 (RFC 9112): heads, chunk sizes and trailers are metadata, content and tunnels are opaque.
 *
 * Metadata is always safe; opaque must be exact. Whatever two implementations might frame differently is a pass, for good:
 * nothing here is ever guessed.
 */
#include "leaf.bpf.h"

enum side { REQUESTS = 0, RESPONSES = 1 };

/* What the next byte of a side belongs to. */
enum phase {
	START = 0,      /* a start line, or an empty line before a request; after a tunnel began: the tunnel */
	TARGET = 1,     /* a request target that did not fit in one window */
	FIELDS = 2,     /* a header field line, or with FACT_TRAILERS a trailer field line */
	SKIP = 3,       /* the rest of a field line that did not fit in one window */
	CHUNK_SIZE = 4, /* a chunk-size line */
	CHUNK_END = 5,  /* the CR LF after the data of a chunk */
	UNTIL_CLOSE = 6,
};

/* What is known of the message whose head is being read; together with the phase it makes one word per side. */
#define PHASE(w) ((w) & 0xff)
#define FACT_HTTP10 (1 << 8)
#define FACT_LENGTH (1 << 9)   /* Content-Length was seen; its value is in LENGTH */
#define FACT_CHUNKED (1 << 10) /* Transfer-Encoding: chunked was seen */
#define FACT_UPGRADE (1 << 11)
#define FACT_HEAD (1 << 12)
#define FACT_CONNECT (1 << 13)
#define FACT_TRAILERS (1 << 14)
#define STATUS(w) ((w) >> 16)

/* Kinds of requests whose responses are outstanding, two bits each, the oldest lowest. */
enum kind { PLAIN = 0, HEAD = 1, CONNECT = 2, UPGRADE = 3 };
#define QUEUE_MAX 32

/* Words of state. */
#define LENGTH(side) c->state[(side) & 1]
#define WORD(side) c->state[2 + ((side) & 1)]
#define QUEUE c->state[4]
#define QUEUED c->state[5]
#define FLAGS c->state[6]
/* An Upgrade or CONNECT request awaits its answer: what its side would carry next is not known. */
#define FLAG_UNDECIDED 1
/* 101, or 2xx to CONNECT: no HTTP any more once both sides have finished their message. */
#define FLAG_TUNNEL 2

#define LETTERS8(A, B, C, D, E, F, G, H)                                                                               \
	((ud_u64)(A) | (ud_u64)(B) << 8 | (ud_u64)(C) << 16 | (ud_u64)(D) << 24 | (ud_u64)(E) << 32 | (ud_u64)(F) << 40 | \
	 (ud_u64)(G) << 48 | (ud_u64)(H) << 56)
#define LOWER8 0x2020202020202020ULL
#define SEVEN 0x00ffffffffffffffULL
#define METHOD_MAX 20
/* Blanks allowed on either side of a field value; more are left to others. */
#define BLANKS_MAX 8

#define WANTED_NAMES                                                                                                   \
	(UD_WANTED('c', 14) | UD_WANTED('t', 17) << 16 | UD_WANTED('u', 7) << 32)

/* What the steps below return: how far they got, or one of these. */
#define PASS (~0ULL)
#define MORE (~1ULL)

UD_INLINE int metadata(struct ud_cut *c, ud_u64 span)
{
	c->verdict = UD_METADATA;
	c->span = span;
	return 0;
}

UD_INLINE int opaque(struct ud_cut *c, ud_u64 span)
{
	c->verdict = UD_OPAQUE;
	c->span = span;
	return 0;
}

UD_INLINE int is_crlf(const struct ud_cut *c, ud_u64 i)
{
	return ud_at(c, i) == '\r' && ud_at(c, i + 1) == '\n';
}

/* "HTTP/1.0" or "HTTP/1.1" at `i`: 0 or 1; anything else: 2. */
UD_INLINE ud_u64 minor_version(const struct ud_cut *c, ud_u64 i)
{
	ud_u64 minor = ud_at8(c, i) ^ LETTERS8('H', 'T', 'T', 'P', '/', '1', '.', '0');

	return minor >> 56 <= 1 && !(minor & SEVEN) ? minor >> 56 : 2;
}

/* The end of the method at window[0], which is a blank; 0 while it is not to be seen. */
static __attribute__((noinline)) ud_u64 method_end(struct ud_cut *c)
{
	ud_u64 i;

	for (i = 0; i < METHOD_MAX; i++) {
		ud_u8 b = ud_at(c, i);

		if (i >= c->len)
			return 0;
		if (b == ' ' && i)
			return i;
		if ((b < 'A' || b > 'Z') && b != '-')
			return PASS;
	}
	return PASS;
}

/* " HTTP/1.x\r\n" at `blank`, the end of a request target: the end of the request line. */
UD_INLINE ud_u64 request_version(struct ud_cut *c, ud_u64 blank)
{
	ud_u64 minor;

	if (ud_at(c, blank) != ' ')
		return PASS;
	if (blank + 11 > ud_len(c)) {
		/* The target is not needed again. */
		WORD(REQUESTS) = (WORD(REQUESTS) & ~0xffULL) | TARGET;
		return MORE;
	}
	minor = minor_version(c, blank + 1);
	if (minor > 1 || !is_crlf(c, blank + 9))
		return PASS;
	WORD(REQUESTS) = (WORD(REQUESTS) & ~0xffULL) | FIELDS | (minor ? 0 : FACT_HTTP10);
	return blank + 11;
}

/* Whether what begins at [from, end) is a request target (RFC 9112, section 3.2); MORE if that cannot be told yet. */
UD_INLINE ud_u64 target_form(struct ud_cut *c, ud_u64 from, ud_u64 end, ud_u64 facts)
{
	ud_u64 scheme = ud_at8(c, from) | LOWER8;

	if (ud_at(c, from) == '/' || (facts & FACT_CONNECT))
		return 0;
	if (ud_at(c, from) == '*')
		return end > from + 1 ? PASS : end < ud_len(c) ? 0 : MORE;
	if (end < from + 8)
		return end < ud_len(c) ? PASS : MORE;
	if (scheme == LETTERS8('h', 't', 't', 'p', 's', ':', '/', '/') ||
	    (scheme & SEVEN) == LETTERS8('h', 't', 't', 'p', ':', '/', '/', 0))
		return 0;
	return PASS;
}

/* A request line at window[0]. `*seen` is what may be given out as metadata if the result is MORE. */
UD_INLINE ud_u64 request_line(struct ud_cut *c, ud_u64 *seen)
{
	ud_u64 first = ud_at8(c, 0), end, target_end, form, facts = 0;

	if ((ud_u32)first == (ud_u32)LETTERS8('G', 'E', 'T', ' ', 0, 0, 0, 0) && c->len >= 4)
		end = 3;
	else
		end = method_end(c);
	if (end == PASS)
		return PASS;
	if (!end)
		return MORE;
	if (end == 4 && (ud_u32)first == (ud_u32)LETTERS8('H', 'E', 'A', 'D', 0, 0, 0, 0))
		facts = FACT_HEAD;
	if (end == 7 && (first & SEVEN) == LETTERS8('C', 'O', 'N', 'N', 'E', 'C', 'T', 0))
		facts = FACT_CONNECT;
	WORD(REQUESTS) = TARGET | facts;
	target_end = ud_word(c, end + 1);
	if (target_end == end + 1)
		return target_end < ud_len(c) ? PASS : MORE;
	form = target_form(c, end + 1, target_end, facts);
	if (form)
		return form;
	*seen = target_end;
	return target_end < ud_len(c) ? request_version(c, target_end) : MORE;
}

/* A status line at window[0]: "HTTP/1.1 200 OK\r\n"; the blank before an absent reason may be absent too. */
UD_INLINE ud_u64 status_line(struct ud_cut *c)
{
	ud_u64 len = ud_len(c), minor, status, end;
	ud_u8 a = ud_at(c, 9) - '0', b = ud_at(c, 10) - '0', d = ud_at(c, 11) - '0';

	if (len < 13)
		return MORE;
	minor = minor_version(c, 0);
	if (minor > 1 || ud_at(c, 8) != ' ' || a < 1 || a > 5 || b > 9 || d > 9)
		return PASS;
	if (ud_at(c, 12) != ' ' && ud_at(c, 12) != '\r')
		return PASS;
	end = ud_text(c, 12);
	if (end + 2 > len)
		return len < UD_WINDOW && (end == len || ud_at(c, end) == '\r') ? MORE : PASS;
	if (!is_crlf(c, end))
		return PASS;
	status = a * 100 + b * 10 + d;
	WORD(RESPONSES) = FIELDS | (minor ? 0 : FACT_HTTP10) | status << 16;
	return end + 2;
}

/* Takes in a field line [line, next) whose name has a wanted letter and length. 0 if it is ambiguous. */
static __attribute__((noinline)) int take_field(struct ud_cut *c, ud_u64 side, ud_u64 line, ud_u64 next)
{
	ud_u64 name = ud_at8(c, line) | LOWER8, word = WORD(side), from, end = next - 2, n, number;
	int is_length = 0;

	if (name == LETTERS8('c', 'o', 'n', 't', 'e', 'n', 't', '-') && ud_at(c, line + 14) == ':' &&
	    (ud_at8(c, line + 6) | LOWER8) == LETTERS8('t', '-', 'l', 'e', 'n', 'g', 't', 'h')) {
		is_length = 1;
		from = line + 15;
	} else if (name == LETTERS8('t', 'r', 'a', 'n', 's', 'f', 'e', 'r') && ud_at(c, line + 17) == ':' &&
		   (ud_at8(c, line + 8) | LOWER8) == LETTERS8('-', 'e', 'n', 'c', 'o', 'd', 'i', 'n') &&
		   (ud_at(c, line + 16) | 0x20) == 'g') {
		from = line + 18;
	} else if (name == LETTERS8('u', 'p', 'g', 'r', 'a', 'd', 'e', ':')) {
		WORD(side) = word | FACT_UPGRADE;
		return !(word & FACT_TRAILERS);
	} else {
		return 1;
	}
	/* One of the two, once: anything else has been framed differently by someone. */
	if (word & (FACT_LENGTH | FACT_CHUNKED | FACT_TRAILERS))
		return 0;
	/* Tabs are allowed too, but not everybody takes them for blanks. */
	for (n = 0; n < BLANKS_MAX && ud_at(c, from) == ' '; n++)
		from++;
	for (n = 0; n < BLANKS_MAX && end > from && ud_at(c, end - 1) == ' '; n++)
		end--;
	if (is_length) {
		number = ud_number(c, from, 10);
		if (end <= from || UD_NUMBER_END(number) != end)
			return 0;
		LENGTH(side) = UD_NUMBER_VALUE(number);
		WORD(side) = word | FACT_LENGTH;
		return 1;
	}
	if (end - from != 7 || ((ud_at8(c, from) | LOWER8) & SEVEN) != LETTERS8('c', 'h', 'u', 'n', 'k', 'e', 'd', 0))
		return 0;
	WORD(side) = word | FACT_CHUNKED;
	return 1;
}

/* The phase after a head that may have content behind it. */
UD_INLINE ud_u64 framed(struct ud_cut *c, ud_u64 side, ud_u64 word, ud_u64 unframed)
{
	if (word & FACT_CHUNKED)
		return CHUNK_SIZE;
	if (word & FACT_LENGTH) {
		if (LENGTH(side))
			c->then = LENGTH(side);
		return START;
	}
	return unframed;
}

/* The end of a request's head: the phase that follows, or PASS. */
UD_INLINE ud_u64 request_head(struct ud_cut *c, ud_u64 word)
{
	ud_u64 kind = PLAIN, queued = QUEUED;

	if (queued >= QUEUE_MAX)
		return PASS;
	QUEUED = queued + 1;
	if (word & (FACT_HEAD | FACT_CONNECT | FACT_UPGRADE)) {
		if (word & FACT_HEAD)
			kind = HEAD;
		else if (word & FACT_CONNECT)
			kind = CONNECT;
		else if (!(word & FACT_HTTP10))
			kind = UPGRADE;
		/* Content of a CONNECT has no defined meaning (RFC 9110, section 9.3.6). */
		if (kind == CONNECT && (word & (FACT_LENGTH | FACT_CHUNKED)))
			return PASS;
		QUEUE |= kind << (2 * queued & 63);
		if (kind >= CONNECT)
			FLAGS |= FLAG_UNDECIDED;
	}
	return framed(c, REQUESTS, word, START);
}

/* The end of a response's head: the phase that follows (RFC 9112, section 6.3), or PASS. */
UD_INLINE ud_u64 response_head(struct ud_cut *c, ud_u64 word)
{
	ud_u64 status = STATUS(word), framing = word & (FACT_LENGTH | FACT_CHUNKED), kind = PLAIN;

	if (status < 200 && status != 101)
		return framing ? PASS : START;
	if (QUEUED) {
		kind = QUEUE & 3;
		QUEUE >>= 2;
		QUEUED -= 1;
	} else if (PHASE(WORD(REQUESTS)) != START) {
		/* An answer before the request is known: HEAD or not decides, and cannot be told. */
		return PASS;
	}
	if (status == 101 || (kind == CONNECT && status < 300)) {
		if ((status == 101 && kind != UPGRADE) || framing)
			return PASS;
		FLAGS = FLAG_TUNNEL;
		return START;
	}
	if (kind >= CONNECT)
		FLAGS &= ~(ud_u64)FLAG_UNDECIDED;
	if (status == 204 && ((word & FACT_CHUNKED) || ((word & FACT_LENGTH) && LENGTH(RESPONSES))))
		return PASS;
	if (kind == HEAD || status == 204 || status == 304)
		return START;
	return framed(c, RESPONSES, word, UNTIL_CLOSE);
}

UD_INLINE ud_u64 end_of_head(struct ud_cut *c, ud_u64 side)
{
	ud_u64 word = WORD(side), next;

	if (word & FACT_TRAILERS)
		next = START;
	else if ((word & FACT_HTTP10) && (word & FACT_CHUNKED))
		next = PASS;
	else
		next = side == REQUESTS ? request_head(c, word) : response_head(c, word);
	if (next == PASS)
		return PASS;
	WORD(side) = next;
	if (next == START && !c->then && !(FLAGS & FLAG_TUNNEL))
		c->then = UD_BETWEEN;
	return next;
}

/* Field lines from `from` on. */
static __attribute__((noinline)) int fields(struct ud_cut *c, ud_u64 side, ud_u64 from)
{
	ud_u64 n, result, line, next, stop;

	for (n = 0; n < 6; n++) {
		result = ud_fields(c, from, WANTED_NAMES);
		line = UD_FIELDS_LINE(result);
		next = UD_FIELDS_NEXT(result);
		stop = UD_FIELDS_STOP(result);
		switch (stop) {
		case UD_FIELDS_END:
			return end_of_head(c, side) == PASS ? 0 : metadata(c, next);
		case UD_FIELDS_WANTED:
			if (!take_field(c, side, line, next))
				return 0;
			from = next;
			continue;
		case UD_FIELDS_PART:
		case UD_FIELDS_VALUE:
			if (line)
				return metadata(c, line);
			if (c->len < UD_WINDOW) {
				c->verdict = UD_NEED_MORE;
				return 0;
			}
			if (stop == UD_FIELDS_PART)
				return 0;
			WORD(side) = (WORD(side) & ~0xffULL) | SKIP;
			return metadata(c, ud_at(c, UD_WINDOW - 1) == '\r' ? UD_WINDOW - 1 : UD_WINDOW);
		default:
			return 0;
		}
	}
	return metadata(c, from);
}

/* The rest of a long field line, then other field lines. */
UD_INLINE int skip(struct ud_cut *c, ud_u64 side)
{
	ud_u64 len = ud_len(c), end = ud_text(c, 0);

	if (end + 2 > len) {
		if (end < len && ud_at(c, end) != '\r')
			return 0;
		if (end)
			return metadata(c, end);
		c->verdict = UD_NEED_MORE;
		return 0;
	}
	if (!is_crlf(c, end))
		return 0;
	WORD(side) = (WORD(side) & ~0xffULL) | FIELDS;
	return metadata(c, end + 2);
}

/* Extensions allowed in one chunk. */
#define EXTENSIONS_MAX 8

/* The end of ";name", ";name=token" and ";name=\"token\"" from `from` on. A quoted value with anything else in it is left
 * alone: parsers disagree about what it says. */
UD_INLINE ud_u64 extensions(struct ud_cut *c, ud_u64 from, ud_u64 len)
{
	ud_u64 n, end, quoted;

	for (n = 0; n < EXTENSIONS_MAX && from < len && ud_at(c, from) == ';'; n++) {
		end = ud_token(c, from + 1);
		if (end == from + 1 && end < len)
			return PASS;
		from = end;
		if (from < len && ud_at(c, from) == '=') {
			quoted = from + 1 < len && ud_at(c, from + 1) == '"';
			end = ud_token(c, from + 1 + quoted);
			if (end < len && (end == from + 1 || (quoted && ud_at(c, end) != '"')))
				return PASS;
			from = end < len ? end + quoted : len;
		}
	}
	return from;
}

/* A chunk-size line at `from`; what is before it is metadata. */
static __attribute__((noinline)) int chunk_size(struct ud_cut *c, ud_u64 side, ud_u64 from)
{
	ud_u64 len = ud_len(c), number = ud_number(c, from, 16), end = UD_NUMBER_END(number);

	if (from < len && (!number || end == from))
		return 0;
	if (end < len)
		end = extensions(c, end, len);
	if (end == PASS)
		return 0;
	if (end + 2 > len) {
		if (end < len && ud_at(c, end) != '\r')
			return 0;
		if (from)
			return metadata(c, from);
		if (len < UD_WINDOW)
			c->verdict = UD_NEED_MORE;
		return 0;
	}
	if (!is_crlf(c, end))
		return 0;
	if (UD_NUMBER_VALUE(number)) {
		WORD(side) = CHUNK_END;
		c->then = UD_NUMBER_VALUE(number);
		return metadata(c, end + 2);
	}
	WORD(side) = FIELDS | FACT_TRAILERS;
	return fields(c, side, end + 2);
}

/* A start line, and as much of the head as is there. */
UD_INLINE int start(struct ud_cut *c, ud_u64 side)
{
	ud_u64 seen = 0, end;

	if (!c->len) {
		c->verdict = UD_NEED_MORE;
		return 0;
	}
	if (PHASE(WORD(side)) == TARGET) {
		seen = ud_word(c, 0);
		end = seen < c->len ? request_version(c, seen) : MORE;
	} else if (side == RESPONSES) {
		end = status_line(c);
	} else if (FLAGS & FLAG_UNDECIDED) {
		return 0;
	} else if (ud_at(c, 0) == '\r') {
		/* An empty line before a request is to be ignored (RFC 9112, section 2.2). */
		if (c->len < 2)
			c->verdict = UD_NEED_MORE;
		return c->len >= 2 && is_crlf(c, 0) ? metadata(c, 2) : 0;
	} else {
		end = request_line(c, &seen);
	}
	if (end == PASS)
		return 0;
	if (end != MORE)
		return fields(c, side, end);
	if (seen)
		return metadata(c, seen);
	c->verdict = UD_NEED_MORE;
	return 0;
}

UD_PROTOCOL(http1)
{
	/* RX at a server and TX at a client carry requests. */
	ud_u64 side = (c->direction ^ c->role) & 1;
	ud_u64 word = WORD(side);

	c->verdict = UD_PASS;
	/* Where more is needed: whether more is bound to follow. */
	c->span = PHASE(word) != START;
	if (PHASE(word) == START && (FLAGS & FLAG_TUNNEL))
		return opaque(c, UD_UNTIL_CLOSE);
	if (PHASE(word) <= TARGET)
		return start(c, side);
	switch (PHASE(word)) {
	case UNTIL_CLOSE:
		return opaque(c, UD_UNTIL_CLOSE);
	case FIELDS:
		return fields(c, side, 0);
	case SKIP:
		return skip(c, side);
	case CHUNK_SIZE:
		return chunk_size(c, side, 0);
	case CHUNK_END:
		if (c->len < 2) {
			c->verdict = UD_NEED_MORE;
			return 0;
		}
		WORD(side) = CHUNK_SIZE;
		return is_crlf(c, 0) ? chunk_size(c, side, 2) : 0;
	}
	return 0;
}
