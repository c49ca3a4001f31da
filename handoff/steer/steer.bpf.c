/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks, redirects and rewrites the packets of single TCP connections at the traffic control hooks.
 *
 * Whatever is no TCP over IPv4 or IPv6, is a fragment, or has no rule, goes on untouched to the next program.
 * Checksums are only changed through helpers, which know whether a checksum is complete, partial (every packet of a veth
 * device, and every large packet that is sent) or still to be verified.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>
#include <stddef.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "underdeck_steer.h"

#define INLINE static inline __attribute__((always_inline))

/* Offsets in the TCP header. */
#define TCP_SOURCE 0
#define TCP_DESTINATION 2
#define TCP_FLAGS 13
#define TCP_CHECKSUM 16

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1); /* set before loading */
	__type(key, struct ud_flow);
	__type(value, struct ud_rule);
} ud_rules SEC(".maps");

INLINE int read_ipv4(struct __sk_buff *skb, struct ud_flow *flow, __u32 *tcp)
{
	struct iphdr ip;

	if (bpf_skb_load_bytes(skb, ETH_HLEN, &ip, sizeof(ip)))
		return 0;
	/* All bits of frag_off but "don't fragment": a fragment. */
	if (ip.version != 4 || ip.protocol != IPPROTO_TCP || ip.frag_off & bpf_htons(0x3fff))
		return 0;
	__builtin_memcpy(flow->source, &ip.saddr, sizeof(ip.saddr));
	__builtin_memcpy(flow->destination, &ip.daddr, sizeof(ip.daddr));
	flow->family = 4;
	*tcp = ETH_HLEN + ip.ihl * 4;
	return 1;
}

INLINE int read_ipv6(struct __sk_buff *skb, struct ud_flow *flow, __u32 *tcp)
{
	struct ipv6hdr ip;

	if (bpf_skb_load_bytes(skb, ETH_HLEN, &ip, sizeof(ip)))
		return 0;
	if (ip.version != 6 || ip.nexthdr != IPPROTO_TCP)
		return 0;
	__builtin_memcpy(flow->source, &ip.saddr, sizeof(ip.saddr));
	__builtin_memcpy(flow->destination, &ip.daddr, sizeof(ip.daddr));
	flow->family = 6;
	*tcp = ETH_HLEN + sizeof(ip);
	return 1;
}

/* The rule for a packet, and where its TCP header begins. */
INLINE struct ud_rule *find(struct __sk_buff *skb, __u8 hook, struct ud_flow *flow, __u32 *tcp)
{
	struct ud_rule *rule;
	__u8 head[TCP_FLAGS + 1];

	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		if (!read_ipv4(skb, flow, tcp))
			return NULL;
	} else if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		if (!read_ipv6(skb, flow, tcp))
			return NULL;
	} else {
		return NULL;
	}
	if (bpf_skb_load_bytes(skb, *tcp, head, sizeof(head)))
		return NULL;
	__builtin_memcpy(&flow->source_port, head + TCP_SOURCE, 2);
	__builtin_memcpy(&flow->destination_port, head + TCP_DESTINATION, 2);
	flow->hook = hook;
	rule = bpf_map_lookup_elem(&ud_rules, flow);
	if (!rule)
		return NULL;
	__sync_fetch_and_add(&rule->packets, 1);
	__sync_fetch_and_add(&rule->bytes, skb->len);
	rule->last_ns = bpf_ktime_get_coarse_ns();
	if (head[TCP_FLAGS] & (UD_SEEN_FIN | UD_SEEN_RST))
		__sync_fetch_and_or(&rule->seen, head[TCP_FLAGS] & (UD_SEEN_FIN | UD_SEEN_RST));
	return rule;
}

INLINE int rewrite_ipv4(struct __sk_buff *skb, __u32 tcp, const __u8 *old, const __u8 *new, __u32 at)
{
	__be32 from, to;

	__builtin_memcpy(&from, old, 4);
	__builtin_memcpy(&to, new, 4);
	if (from == to)
		return 0;
	if (bpf_l3_csum_replace(skb, ETH_HLEN + offsetof(struct iphdr, check), from, to, 4) ||
	    bpf_l4_csum_replace(skb, tcp + TCP_CHECKSUM, from, to, BPF_F_PSEUDO_HDR | 4))
		return -1;
	return bpf_skb_store_bytes(skb, at, &to, 4, 0);
}

INLINE int rewrite_ipv6(struct __sk_buff *skb, __u32 tcp, __u8 *old, __u8 *new, __u32 at)
{
	__s64 difference = bpf_csum_diff((__be32 *)old, 16, (__be32 *)new, 16, 0);

	if (difference < 0 || bpf_l4_csum_replace(skb, tcp + TCP_CHECKSUM, 0, difference, BPF_F_PSEUDO_HDR))
		return -1;
	/*
	 * IPv6 has no header checksum to make up for the address, so the sum over the whole packet (CHECKSUM_COMPLETE)
	 * stays as it was. The helper above has taken the difference off that sum, and this one puts it back.
	 */
	return bpf_skb_store_bytes(skb, at, new, 16, BPF_F_RECOMPUTE_CSUM);
}

INLINE int rewrite_port(struct __sk_buff *skb, __u32 tcp, __be16 old, __be16 new, __u32 at)
{
	if (old == new)
		return 0;
	if (bpf_l4_csum_replace(skb, tcp + TCP_CHECKSUM, old, new, 2))
		return -1;
	return bpf_skb_store_bytes(skb, at, &new, 2, 0);
}

SEC("tcx/ingress")
int ud_ingress(struct __sk_buff *skb)
{
	struct ud_flow flow = {};
	struct ud_rule *rule;
	__u8 address[16];
	__u32 tcp = 0, ifindex;
	__be16 port;
	int failed;

	rule = find(skb, UD_HOOK_INGRESS, &flow, &tcp);
	if (!rule)
		return TC_ACT_UNSPEC;
	if (rule->action != UD_ACTION_REDIRECT)
		return TC_ACT_SHOT;
	__builtin_memcpy(address, rule->address, sizeof(address));
	port = rule->port;
	ifindex = rule->ifindex;
	if (flow.family == 4)
		failed = rewrite_ipv4(skb, tcp, flow.destination, address,
				      ETH_HLEN + offsetof(struct iphdr, daddr));
	else
		failed = rewrite_ipv6(skb, tcp, flow.destination, address,
				      ETH_HLEN + offsetof(struct ipv6hdr, daddr));
	if (failed || rewrite_port(skb, tcp, flow.destination_port, port, tcp + TCP_DESTINATION))
		return TC_ACT_SHOT;
	/* Looks up the next hop as the routing table has it, on the same segment or behind a router. */
	return bpf_redirect_neigh(ifindex, NULL, 0, 0);
}

SEC("tcx/egress")
int ud_egress(struct __sk_buff *skb)
{
	struct ud_flow flow = {};
	struct ud_rule *rule;
	__u8 address[16];
	__u32 tcp = 0;
	__be16 port;
	int failed;

	rule = find(skb, UD_HOOK_EGRESS, &flow, &tcp);
	if (!rule)
		return TC_ACT_UNSPEC;
	if (rule->action != UD_ACTION_SOURCE)
		return TC_ACT_SHOT;
	__builtin_memcpy(address, rule->address, sizeof(address));
	port = rule->port;
	if (flow.family == 4)
		failed = rewrite_ipv4(skb, tcp, flow.source, address, ETH_HLEN + offsetof(struct iphdr, saddr));
	else
		failed = rewrite_ipv6(skb, tcp, flow.source, address, ETH_HLEN + offsetof(struct ipv6hdr, saddr));
	/* A packet with the wrong source would end the connection: better none, the kernel sends it again. */
	if (failed || rewrite_port(skb, tcp, flow.source_port, port, tcp + TCP_SOURCE))
		return TC_ACT_SHOT;
	return TC_ACT_UNSPEC;
}

char _license[] SEC("license") = "Apache-2.0";
