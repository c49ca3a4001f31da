/* What the generated code is written with. */
#ifndef UNDERDECK_MESH_DECISION_H
#define UNDERDECK_MESH_DECISION_H

#include "policy.bpf.h"

/* Where the tables of a regular expression begin, and what is special in them. */
struct ud_automaton {
	ud_u32 first_class, first_row;
	ud_u32 end_column; /* Whether a text may end in a state. */
	ud_u32 dead;       /* The state that never leads to a match. */
};

/* All of these end a decision: 1. */
inline_always int envoy(struct ud_head *h)
{
	h->verdict = UD_ENVOY;
	h->reason = UD_REASON_POLICY;
	return 1;
}

inline_always int answer(struct ud_head *h, ud_u32 action)
{
	h->verdict = UD_ANSWER;
	h->action = action;
	return 1;
}

inline_always int send(struct ud_head *h, ud_u32 action, ud_u32 cluster, ud_u32 response_edits)
{
	h->verdict = UD_FORWARD;
	h->action = action;
	h->cluster = cluster;
	h->response_edits = response_edits;
	return 1;
}

/* A second number from the first, so that faults and weights do not depend on each other. */
inline_always ud_u32 mixed(ud_u32 x)
{
	x ^= x >> 16;
	x *= 0x7feb352d;
	x ^= x >> 15;
	x *= 0x846ca68b;
	x ^= x >> 16;
	return x;
}

/* Takes a port off the host that is matched. 0: it is not that plain (an IPv6 address, an odd port). */
apart int without_port(struct ud_head *h never_null)
{
	ud_u32 i = zero(), at = h->authority.at, len = h->authority.len, colon = len;

	while (i < len && can_loop) {
		ud_u8 c = AT(h, at + i);

		if (c == '[' || (c == ':' && colon != len))
			return 0;
		if (c == ':')
			colon = i;
		else if (colon != len && (c < '0' || c > '9'))
			return 0;
		step(i, 1);
	}
	h->value[UD_NAME_HOST].len = colon;
	return 1;
}

apart int has_port(struct ud_head *h never_null)
{
	ud_u32 i = zero(), at = h->authority.at, len = h->authority.len;

	while (i < len && can_loop) {
		if (AT(h, at + i) == ':')
			return 1;
		step(i, 1);
	}
	return 0;
}

/* Makes the host name ready for comparisons. 0: it is too long for a name. */
apart int lower_host(struct ud_head *h never_null)
{
	ud_u32 i = zero(), at = h->value[UD_NAME_HOST].at, len = h->value[UD_NAME_HOST].len;

	if (len > 8 * UD_HOST_WORDS)
		return 0;
	while (i < len && can_loop) {
		ud_u32 n = i / 8;

		hide(n);
		h->host_words[n & (UD_HOST_WORDS - 1)] = lower(word(h, at + i));
		step(i, 8);
	}
	return 1;
}

/* Reads the edited head, which is what a workload sees. `len` stays that of the head that came. */
apart int read_again(struct ud_head *h never_null)
{
	ud_u32 len = h->len, size = h->out_len;

	if (!h->edited)
		return 0;
	hide(size);
	if (size > UD_HEAD_MAX)
		return -1;
	bpf_probe_read_kernel(h->text, size, h->out);
	h->size = size;
	if (read_head(h))
		return -1;
	h->authority = h->value[UD_NAME_HOST];
	h->len = len;
	return 0;
}

/* Whether the text is a decimal integer of the range. */
apart int in_range(struct ud_head *h never_null, ud_u32 at, ud_u32 len, long long start,
						      long long end)
{
	ud_u32 i = zero(), sign = 0;
	long long value = 0;

	if (len && (AT(h, at) == '-' || AT(h, at) == '+')) {
		sign = AT(h, at) == '-';
		i = 1 ^ zero();
	}
	if (i >= len || len > 18)
		return 0;
	while (i < len && can_loop) {
		ud_u8 c = AT(h, at + i);

		if (c < '0' || c > '9')
			return 0;
		value = value * 10 + (c - '0');
		step(i, 1);
	}
	if (sign)
		value = -value;
	return value >= start && value < end;
}

#endif
