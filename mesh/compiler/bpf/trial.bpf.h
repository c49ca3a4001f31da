/* A decision without a connection, for tests and measurements. */
#ifndef UNDERDECK_MESH_TRIAL_H
#define UNDERDECK_MESH_TRIAL_H

#include "policy.bpf.h"

/* The edited head of the last trial. */
struct trial_head {
	ud_u8 text[UD_OUT_MAX];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, ud_u32);
	__type(value, struct trial_head);
} ud_trial_heads SEC(".maps");

/* One decision for BPF_PROG_TEST_RUN. The trial's `random` is used as it is. */
SEC("syscall")
int ud_try(struct ud_trial *trial)
{
	ud_u32 key = 0, len = trial->size, rounds = trial->rounds, round = zero();
	struct ud_head *h = bpf_map_lookup_elem(&ud_heads, &key);
	struct trial_head *out = bpf_map_lookup_elem(&ud_trial_heads, &key);
	ud_u64 start;

	if (!h || len > UD_HEAD_MAX || __sync_lock_test_and_set(&h->claimed, 1))
		return 1;
	bpf_probe_read_kernel(h->text, len, trial->text);
	h->size = len;
	h->random = trial->random;
	h->destination = trial->destination;
	h->edited = 0;
	start = bpf_ktime_get_ns();
	do {
		/* A workload's policies have put the edited head there. */
		if (h->edited) {
			bpf_probe_read_kernel(h->text, len, trial->text);
			h->size = len;
		}
		judge(h);
		step(round, 1);
	} while (round < rounds && can_loop);
	trial->nanoseconds = bpf_ktime_get_ns() - start;
	trial->verdict = h->verdict;
	trial->reason = h->reason;
	trial->action = h->action;
	trial->cluster = h->cluster;
	trial->len = h->len;
	trial->body = h->body;
	trial->edited = h->edited;
	trial->response_edits = h->response_edits;
	trial->out_len = len = h->out_len;
	hide(len);
	if (out && h->edited && len <= UD_OUT_MAX)
		bpf_probe_read_kernel(out->text, len, h->out);
	__sync_lock_test_and_set(&h->claimed, 0);
	return 0;
}

#endif
