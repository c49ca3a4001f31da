/* What stays when the agent is gone and the node is to fail closed: it refuses connections to the services.
 *
 * The kernel empties a program array when no process has it open any more. So the agent's program is called while the
 * agent lives, however it ends.
 */
#include "helpers.bpf.h"

/* Where nobody may connect to without the agent, and the number of a link that the agent has. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, struct ud_address);
	__type(value, ud_u32);
} ud_guarded SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, ud_u32);
	__type(value, ud_u32);
} ud_alive4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, ud_u32);
	__type(value, ud_u32);
} ud_alive6 SEC(".maps");

inline_always int is_guarded(struct bpf_sock_addr *call, struct ud_address *meant)
{
	meant->port = __builtin_bswap16(call->user_port);
	return call->type == SOCK_STREAM && bpf_map_lookup_elem(&ud_guarded, meant) != 0;
}

SEC("cgroup/connect4")
int ud_guard4(struct bpf_sock_addr *call)
{
	struct ud_address meant = {.ip = {0, 0, MAPPED, call->user_ip4}};

	if (!is_guarded(call, &meant))
		return 1;
	bpf_tail_call(call, &ud_alive4, 0);
	return 0;
}

SEC("cgroup/connect6")
int ud_guard6(struct bpf_sock_addr *call)
{
	struct ud_address meant = {.ip = {call->user_ip6[0], call->user_ip6[1], call->user_ip6[2], call->user_ip6[3]}};

	if (!is_guarded(call, &meant))
		return 1;
	bpf_tail_call(call, &ud_alive6, 0);
	return 0;
}

char _license[] SEC("license") = "GPL";
