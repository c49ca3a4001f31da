/* SPDX-License-Identifier: Apache-2.0 */
/* Looks at a byte that is not the stream's. */
#include "underdeck_protocol.h"

UD_PROTOCOL(peeker)
{
	c->verdict = UD_OPAQUE;
	c->span = 1 + c->window[(c->len + 1) & (UD_WINDOW - 1)];
	return 0;
}
