/* SPDX-License-Identifier: Apache-2.0 */
/* Frames with one byte of length in front; says with the length that the payload follows. 255: to the end of the stream. */
#include "underdeck_protocol.h"

UD_PROTOCOL(foreteller)
{
	ud_u8 length = c->window[0];

	if (!c->len) {
		c->verdict = UD_NEED_MORE;
		return 0;
	}
	c->verdict = UD_METADATA;
	c->span = 1;
	c->then = length == 255 ? UD_UNTIL_CLOSE : length ? length : UD_BETWEEN;
	return 0;
}
