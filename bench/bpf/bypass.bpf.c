/* What a sidecar mesh can have without Underdeck: bytes between two sockets of one host skip TCP, and nobody looks at them.
 * Requests and responses alternate on these connections, so bytes that take the one way never overtake those that
 * took the other one. */
#include "helpers.bpf.h"

static long (*const bpf_sock_ops_cb_flags_set)(struct bpf_sock_ops *ops, int flags) =
	(void *)BPF_FUNC_sock_ops_cb_flags_set;

struct flow {
	__u32 local_ip, remote_ip, local_port, remote_port;
};

struct {
	__uint(type, BPF_MAP_TYPE_SOCKHASH);
	__uint(max_entries, 65536);
	__type(key, struct flow);
	__type(value, __u64);
} sockets SEC(".maps");

/* Which of them are there: a redirect to one that is not loses the message. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct flow);
	__type(value, __u32);
} known SEC(".maps");

/* Messages that were redirected. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} redirected SEC(".maps");

SEC("sockops")
int established(struct bpf_sock_ops *ops)
{
	struct flow flow;
	__u32 one = 1;

	if (ops->op == BPF_SOCK_OPS_STATE_CB && ops->args[1] == BPF_TCP_CLOSE)
		goto gone;
	if (ops->op != BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB && ops->op != BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB)
		return 1;
	if (ops->family != 2 /* AF_INET */)
		return 1;
	flow = (struct flow){ops->local_ip4, ops->remote_ip4, ops->local_port, __builtin_bswap32(ops->remote_port)};
	if (bpf_sock_hash_update(ops, &sockets, &flow, BPF_ANY))
		return 1;
	bpf_map_update_elem(&known, &flow, &one, BPF_ANY);
	bpf_sock_ops_cb_flags_set(ops, ops->bpf_sock_ops_cb_flags | BPF_SOCK_OPS_STATE_CB_FLAG);
	return 1;
gone:
	flow = (struct flow){ops->local_ip4, ops->remote_ip4, ops->local_port, __builtin_bswap32(ops->remote_port)};
	bpf_map_delete_elem(&known, &flow);
	return 1;
}

SEC("sk_msg")
int sent(struct sk_msg_md *msg)
{
	struct flow peer = {msg->remote_ip4, msg->local_ip4, __builtin_bswap32(msg->remote_port), msg->local_port};
	__u32 zero = 0;
	__u64 *count;

	if (!bpf_map_lookup_elem(&known, &peer))
		return SK_PASS;
	count = bpf_map_lookup_elem(&redirected, &zero);
	if (count)
		(*count)++;
	return bpf_msg_redirect_hash(msg, &sockets, &peer, BPF_F_INGRESS);
}

char _license[] SEC("license") = "GPL";
