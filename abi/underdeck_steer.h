/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Flow rules: what handoff/steer writes into a map and its programs at the traffic control hooks look up.
 *
 * One map holds the rules of both directions. A rule names one TCP connection by its exact addresses and ports, as they
 * stand in the packet at the hook. Addresses and ports are in network order; an IPv4 address fills the first four bytes.
 */
#ifndef UNDERDECK_STEER_H
#define UNDERDECK_STEER_H

#include <linux/types.h>

/* The hook at which a rule holds. */
enum ud_hook {
	UD_HOOK_INGRESS = 0, /* packets of the peer */
	UD_HOOK_EGRESS = 1,  /* packets to the peer */
};

enum ud_action {
	UD_ACTION_BLOCK = 1,    /* drop it, at either hook */
	UD_ACTION_REDIRECT = 2, /* new destination address and port, then out of `ifindex` to its next hop */
	UD_ACTION_SOURCE = 3,   /* new source address and port, then on its way */
};

struct ud_flow {
	__u8 source[16];
	__u8 destination[16];
	__be16 source_port;
	__be16 destination_port;
	__u8 family; /* 4 or 6 */
	__u8 hook;   /* enum ud_hook */
	__u8 zero[2];
};

/* Flags of TCP segments that matched, as in the header. */
#define UD_SEEN_FIN 1
#define UD_SEEN_RST 4

struct ud_rule {
	__u32 action;  /* enum ud_action */
	__u32 ifindex; /* of UD_ACTION_REDIRECT */
	__u8 address[16];
	__be16 port;
	__u8 zero[6];
	__u64 owner; /* tells the rules of one process from those that it inherited */
	/* Written by the programs: */
	__u64 packets;
	__u64 bytes;   /* of whole frames, before the network card cuts or after it has merged them */
	__u64 last_ns; /* CLOCK_MONOTONIC_COARSE of the last match, 0 if there was none */
	__u64 seen;    /* UD_SEEN_… */
};

_Static_assert(sizeof(struct ud_flow) == 40, "no padding: the map compares every byte");
_Static_assert(sizeof(struct ud_rule) == 72, "no padding");

#endif
