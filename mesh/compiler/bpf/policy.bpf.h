/* The judgement of one set of policies on a head, around the generated `decide`. */
#ifndef UNDERDECK_MESH_POLICY_H
#define UNDERDECK_MESH_POLICY_H

#include "head.bpf.h"

/* Generated: sets verdict, action and cluster; where the head changes, `out`, `out_len` and `edited`. */
apart int decide(struct ud_head *h never_null);

/* sk_msg programs run with preemption, so a head is claimed. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, ud_u32);
	__type(value, struct ud_head);
} ud_heads SEC(".maps");

/* 0: decided; 1: more bytes are needed; -1: Envoy. */
inline_always int judge(struct ud_head *h)
{
	int result;

	h->verdict = UD_ENVOY;
	h->reason = UD_REASON_POLICY;
	h->edited = h->out_len = h->response_edits = 0;
	result = read_head(h);
	if (result)
		return result;
	if (!(h->seen & (1ULL << UD_NAME_HOST)) || !h->value[UD_NAME_HOST].len) {
		refuse(h, UD_REASON_SYNTAX);
		return -1;
	}
	h->authority = h->value[UD_NAME_HOST];
	if (decide(h)) {
		refuse(h, UD_REASON_CROWDED);
		return -1;
	}
	return h->verdict == UD_ENVOY ? -1 : 0;
}

char _license[] SEC("license") = "GPL";

#endif
