/* SPDX-License-Identifier: Apache-2.0 */
/* Never ends. */
#include "underdeck_protocol.h"

UD_PROTOCOL(forever)
{
	volatile ud_u32 *len = &c->len;

	while (*len < 1000)
		c->span++;
	return 0;
}
