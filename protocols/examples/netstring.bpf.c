/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Netstrings: "5:hello," is a length in decimal, a colon, the payload, a comma. Both directions alike.
 */
#include "leaf.bpf.h"

/* One word per direction: bytes of payload to come, plus one; 1 means that only the comma is left. */
#define TO_COME c->state[c->direction & 1]

UD_PROTOCOL(netstring)
{
	ud_u64 to_come = TO_COME, number, end;

	if (to_come > 1) {
		TO_COME = 1;
		c->verdict = UD_OPAQUE;
		c->span = to_come - 1;
		return 0;
	}
	if (!c->len) {
		c->verdict = UD_NEED_MORE;
		return 0;
	}
	c->verdict = UD_PASS;
	if (to_come == 1) {
		if (ud_at(c, 0) == ',') {
			TO_COME = 0;
			c->verdict = UD_METADATA;
			c->span = 1;
		}
		return 0;
	}
	number = ud_number(c, 0, 10);
	end = UD_NUMBER_END(number);
	if (!end || (ud_at(c, 0) == '0' && end > 1))
		return 0; /* no digit, too many, or a leading zero, which the format forbids */
	if (end == c->len) {
		c->verdict = UD_NEED_MORE;
	} else if (ud_at(c, end) == ':') {
		TO_COME = UD_NUMBER_VALUE(number) + 1;
		c->verdict = UD_METADATA;
		c->span = end + 1;
	}
	return 0;
}
