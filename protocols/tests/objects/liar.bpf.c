/* SPDX-License-Identifier: Apache-2.0 */
/* Says what the stream tells it to say: first byte the verdict, second byte the span. */
#include "underdeck_protocol.h"

UD_PROTOCOL(liar)
{
	c->verdict = c->len ? c->window[0] : UD_NEED_MORE;
	c->span = c->len > 1 ? c->window[1] : 1;
	return 0;
}
