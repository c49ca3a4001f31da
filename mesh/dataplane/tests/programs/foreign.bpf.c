/* Another user of sockmaps, as tools that observe messages are: it takes sockets when they are established, and changes
 * nothing. */
#include "helpers.bpf.h"

struct {
	__uint(type, BPF_MAP_TYPE_SOCKHASH);
	__uint(max_entries, 1024);
	__type(key, ud_u64);
	__type(value, ud_u64);
} foreign_sockets SEC(".maps");

/* How many it has got. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, ud_u32);
	__type(value, ud_u64);
} foreign_count SEC(".maps");

SEC("sk_msg")
int foreign_message(struct sk_msg_md *msg)
{
	(void)msg;
	return SK_PASS;
}

inline_always int take(struct bpf_sock_ops *ops, ud_u32 when)
{
	ud_u64 cookie = bpf_get_socket_cookie(ops), *count;
	ud_u32 key = 0;

	if (ops->op != when || bpf_sock_hash_update(ops, &foreign_sockets, &cookie, BPF_ANY))
		return 1;
	count = bpf_map_lookup_elem(&foreign_count, &key);
	if (count)
		__sync_fetch_and_add(count, 1);
	return 1;
}

SEC("sockops")
int foreign_connected(struct bpf_sock_ops *ops)
{
	return take(ops, BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB);
}

SEC("sockops")
int foreign_accepted(struct bpf_sock_ops *ops)
{
	return take(ops, BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB);
}

char _license[] SEC("license") = "GPL";
