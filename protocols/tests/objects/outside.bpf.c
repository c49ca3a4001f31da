/* SPDX-License-Identifier: Apache-2.0 */
/* Reads beyond its context. */
#include "underdeck_protocol.h"

UD_PROTOCOL(outside)
{
	return ((volatile ud_u64 *)c)[c->len];
}
