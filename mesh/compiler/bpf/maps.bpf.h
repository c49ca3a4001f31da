/* The maps that all programs of one agent share. */
#ifndef UNDERDECK_MESH_MAPS_H
#define UNDERDECK_MESH_MAPS_H

#include "helpers.bpf.h"

/* Connections of applications: sk_msg reads requests, a verdict counts what the agent sends. */
struct {
	__uint(type, BPF_MAP_TYPE_SOCKHASH);
	__uint(max_entries, 65536);
	__type(key, ud_u64);
	__type(value, ud_u64);
} ud_clients SEC(".maps");

/* Connections to endpoints: a verdict reads responses. */
struct {
	__uint(type, BPF_MAP_TYPE_SOCKHASH);
	__uint(max_entries, 65536);
	__type(key, ud_u64);
	__type(value, ud_u64);
} ud_servers SEC(".maps");

/* The other ends of connections to endpoints of this host, by the same cookies: bytes need not take the way through TCP. */
struct {
	__uint(type, BPF_MAP_TYPE_SOCKHASH);
	__uint(max_entries, 65536);
	__type(key, ud_u64);
	__type(value, ud_u64);
} ud_locals SEC(".maps");

/* Connections that are, or were, in `ud_locals`. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, ud_u64);
	__type(value, ud_u32);
} ud_were_local SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, ud_u64);
	__type(value, struct ud_conn);
} ud_conns SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, ud_u64);
	__type(value, struct ud_progress);
} ud_progresses SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, ud_u64);
	__type(value, struct ud_upstream);
} ud_upstreams SEC(".maps");

/* The cookie of an application's socket, which sk_msg cannot ask for. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, ud_u64);
} ud_cookies SEC(".maps");

struct ud_pool {
	__uint(type, BPF_MAP_TYPE_STACK);
	__uint(max_entries, UD_POOL_MAX);
	__uint(key_size, 0);
	__uint(value_size, sizeof(ud_u64));
};

/* Idle connections of each endpoint; the one used last is taken first. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, UD_ENDPOINTS_MAX);
	__type(key, ud_u32);
	__array(values, struct ud_pool);
} ud_pools SEC(".maps");

/* Requests at a time, for each endpoint. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, UD_ENDPOINTS_MAX);
	__type(key, ud_u32);
	__type(value, ud_u64);
} ud_active SEC(".maps");

/* Slot 0: the program of the policies in force. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, ud_u32);
	__type(value, ud_u32);
} ud_programs SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, ud_u32);
	__type(value, struct ud_counters);
} ud_counts SEC(".maps");

inline_always struct ud_counters *counters(void)
{
	ud_u32 zero = 0;

	return bpf_map_lookup_elem(&ud_counts, &zero);
}

/* The connection that a message is sent on. */
inline_always struct ud_conn *conn_of(struct sk_msg_md *msg, ud_u64 *cookie)
{
	struct bpf_sock *sk = msg->sk;
	ud_u64 *stored;

	if (!sk)
		return 0;
	stored = bpf_sk_storage_get(&ud_cookies, sk, 0, 0);
	if (!stored)
		return 0;
	*cookie = *stored;
	return bpf_map_lookup_elem(&ud_conns, stored);
}

#endif
