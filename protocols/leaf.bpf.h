/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Leaf functions: what a program would otherwise do byte by byte.
 *
 * They are ordinary functions of the object, so the kernel's verifier checks them like everything else. The user-space
 * engine knows them by name and calls native code in their stead, with the same results for every input (a property
 * test holds both together). Names that begin with ud_ are reserved for this. Weak, so that the compiler assumes nothing
 * about a caller from the body that is replaced.
 *
 * Indices count from the beginning of the window; `len` of the context is where the bytes end.
 */
#ifndef UNDERDECK_LEAF_H
#define UNDERDECK_LEAF_H

#include "underdeck_protocol.h"

#define UD_LEAF __attribute__((noinline, weak))
#define UD_INLINE static inline __attribute__((always_inline))

/* The byte at `i`; `i` is taken modulo the window, which the verifier wants to see. */
UD_INLINE ud_u8 ud_at(const struct ud_cut *c, ud_u64 i)
{
	return c->window[i & (UD_WINDOW - 1)];
}

/* Eight bytes from `i` on, the first one lowest. Near the end of the window the last ones are not the stream's. */
UD_INLINE ud_u64 ud_at8(const struct ud_cut *c, ud_u64 i)
{
	return *(const ud_u64 *)(c->window + (i & (UD_WINDOW - 1)));
}

UD_INLINE ud_u64 ud_len(const struct ud_cut *c)
{
	ud_u64 len = c->len;

	return len < UD_WINDOW ? len : UD_WINDOW;
}

/* Visible ASCII: 0x21 to 0x7e. */
UD_INLINE int ud_is_word(ud_u8 b)
{
	return b >= 0x21 && b <= 0x7e;
}

/* Anything but control characters; tab is text. */
UD_INLINE int ud_is_text(ud_u8 b)
{
	return b == '\t' || (b >= 0x20 && b != 0x7f);
}

/* tchar of RFC 9110, section 5.6.2. */
UD_INLINE int ud_is_token(ud_u8 b)
{
	ud_u64 set = b < 64 ? 0x03ff6cfa00000000ULL : 0x57ffffffc7fffffeULL;

	return b < 128 && (set >> (b & 63) & 1);
}

/* The first index >= from whose byte is not visible ASCII; len if there is none. */
UD_LEAF ud_u64 ud_word(struct ud_cut *c, ud_u64 from)
{
	ud_u64 len, n;

	if (!c)
		return 0;
	len = ud_len(c);
	for (n = 0; n < UD_WINDOW; n++) {
		if (from >= len)
			return len;
		if (!ud_is_word(ud_at(c, from)))
			return from;
		from++;
	}
	return len;
}

/* The first index >= from whose byte is a control character other than tab; len if there is none. */
UD_LEAF ud_u64 ud_text(struct ud_cut *c, ud_u64 from)
{
	ud_u64 len, n;

	if (!c)
		return 0;
	len = ud_len(c);
	for (n = 0; n < UD_WINDOW; n++) {
		if (from >= len)
			return len;
		if (!ud_is_text(ud_at(c, from)))
			return from;
		from++;
	}
	return len;
}

/* The first index >= from whose byte is no token character; len if there is none. */
UD_LEAF ud_u64 ud_token(struct ud_cut *c, ud_u64 from)
{
	ud_u64 len, n;

	if (!c)
		return 0;
	len = ud_len(c);
	for (n = 0; n < UD_WINDOW; n++) {
		if (from >= len)
			return len;
		if (!ud_is_token(ud_at(c, from)))
			return from;
		from++;
	}
	return len;
}

/* The value of the digit at `i`, which may be hexadecimal; 255 if there is none. */
UD_LEAF ud_u64 ud_digit(struct ud_cut *c, ud_u64 i)
{
	ud_u8 b, letter;

	if (!c || i >= ud_len(c))
		return 255;
	b = ud_at(c, i);
	letter = (b | 0x20) - 'a';
	if (letter <= 5)
		return letter + 10;
	return b >= '0' && b <= '9' ? b - '0' : 255;
}

/*
 * The number whose digits (of base 10 or 16) begin at `from`: bits 0..47 are its value, bits 48..63 the index after its
 * last digit, which is `from` if there is no digit. 0 if it has more digits than always fit: 14 decimal, 12 hexadecimal.
 */
#define UD_NUMBER_END(r) ((r) >> 48)
#define UD_NUMBER_VALUE(r) ((r) & ((1ULL << 48) - 1))
#define UD_DECIMAL_DIGITS 14
#define UD_HEX_DIGITS 12

UD_LEAF ud_u64 ud_number(struct ud_cut *c, ud_u64 from, ud_u64 base)
{
	ud_u64 n, digit, value = 0;

	if (!c)
		return 0;
	if (from > ud_len(c))
		from = ud_len(c);
	for (n = 0; n <= UD_DECIMAL_DIGITS; n++) {
		digit = ud_digit(c, from);
		if (digit >= base || digit > 15)
			return value | from << 48;
		if (n == UD_DECIMAL_DIGITS || (base == 16 && n == UD_HEX_DIGITS))
			return 0;
		value = value * base + digit;
		from++;
	}
	return 0;
}

/*
 * Walks over header field lines ("name: value\r\n") from `from`, the beginning of a line, and stops at the first line
 * that is not just another field. A name is a token directly followed by a colon, a value is text.
 *
 * `wanted` holds four 16-bit pairs (first letter in lower case | length of the name << 8); lines whose name matches one
 * of them are stopped at. Bits 0..15 of the result are the index at which the line begins, bits 16..31 the index after it,
 * bits 32.. say why:
 */
enum ud_fields_stop {
	UD_FIELDS_END = 0,    /* an empty line: the end of the head */
	UD_FIELDS_WANTED = 1, /* a whole line whose name has a wanted letter and length */
	UD_FIELDS_PART = 2,   /* the bytes end in a line (or before one): wanted, or not known yet */
	UD_FIELDS_VALUE = 3,  /* the bytes end in the value (or in the line's CR LF) of a line that is not wanted */
	UD_FIELDS_BROKEN = 4, /* no field line: obs-fold, bare CR or LF, NUL, no colon, blank before the colon, … */
};
#define UD_FIELDS_LINE(r) ((r) & 0xffff)
#define UD_FIELDS_NEXT(r) ((r) >> 16 & 0xffff)
#define UD_FIELDS_STOP(r) ((r) >> 32)
#define UD_WANTED(LETTER, LENGTH) ((ud_u64)(LETTER) | (ud_u64)(LENGTH) << 8)

UD_INLINE int ud_is_wanted(ud_u64 letter, ud_u64 length, ud_u64 wanted)
{
	ud_u64 pair = (letter | 0x20) | length << 8;

	return pair == (wanted & 0xffff) || pair == (wanted >> 16 & 0xffff) || pair == (wanted >> 32 & 0xffff) ||
	       pair == wanted >> 48;
}

UD_INLINE ud_u64 ud_fields_result(ud_u64 line, ud_u64 next, ud_u64 stop)
{
	return line | next << 16 | stop << 32;
}

/* The shortest line is "a:\r\n". */
#define UD_FIELDS_MAX (UD_WINDOW / 4 + 1)

UD_LEAF ud_u64 ud_fields(struct ud_cut *c, ud_u64 from, ud_u64 wanted)
{
	ud_u64 len, n, line = from, colon, end, hit;

	if (!c)
		return 0;
	len = ud_len(c);
	if (line > len)
		line = len;
	for (n = 0; n < UD_FIELDS_MAX; n++) {
		colon = ud_token(c, line);
		if (colon >= len)
			break;
		if (colon == line) {
			if (ud_at(c, line) != '\r')
				return ud_fields_result(line, len, UD_FIELDS_BROKEN);
			if (line + 1 >= len)
				break;
			return ud_fields_result(line, line + 2, ud_at(c, line + 1) == '\n' ? UD_FIELDS_END : UD_FIELDS_BROKEN);
		}
		if (ud_at(c, colon) != ':')
			return ud_fields_result(line, len, UD_FIELDS_BROKEN);
		hit = ud_is_wanted(ud_at(c, line), colon - line, wanted);
		end = ud_text(c, colon + 1);
		if (end >= len || (ud_at(c, end) == '\r' && end + 1 >= len))
			return ud_fields_result(line, len, hit ? UD_FIELDS_PART : UD_FIELDS_VALUE);
		if (ud_at(c, end) != '\r' || ud_at(c, end + 1) != '\n')
			return ud_fields_result(line, len, UD_FIELDS_BROKEN);
		if (hit)
			return ud_fields_result(line, end + 2, UD_FIELDS_WANTED);
		line = end + 2;
	}
	return ud_fields_result(line, len, UD_FIELDS_PART);
}

#endif
