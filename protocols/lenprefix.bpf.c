/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frames with a length in front: four bytes, big-endian, then as many bytes of payload. Both directions alike.
 */
#include "underdeck_protocol.h"

#define PREFIX 4

UD_PROTOCOL(lenprefix)
{
	/* What is left of the frame whose prefix has gone by, one word per direction. */
	ud_u64 *left = &c->state[c->direction & 1];

	if (*left) {
		c->verdict = UD_OPAQUE;
		c->span = *left;
		*left = 0;
	} else if (c->len < PREFIX) {
		c->verdict = UD_NEED_MORE;
	} else {
		c->verdict = UD_METADATA;
		c->span = PREFIX;
		*left = (ud_u64)c->window[0] << 24 | c->window[1] << 16 | c->window[2] << 8 | c->window[3];
	}
	return 0;
}
