/* What the programs of the mesh engine call. Numbers are those of <linux/bpf.h>. */
#ifndef UNDERDECK_MESH_HELPERS_H
#define UNDERDECK_MESH_HELPERS_H

#include <linux/bpf.h>
#include "underdeck_mesh.h"

#define SEC(name) __attribute__((section(name), used))
#define inline_always static inline __attribute__((always_inline))
#define __uint(name, value) int(*name)[value]
#define __type(name, value) typeof(value) *name
#define __array(name, value) typeof(value) *name[]

static void *(*const bpf_map_lookup_elem)(void *map, const void *key) = (void *)BPF_FUNC_map_lookup_elem;
static long (*const bpf_map_update_elem)(void *map, const void *key, const void *value, ud_u64 flags) =
	(void *)BPF_FUNC_map_update_elem;
static long (*const bpf_map_delete_elem)(void *map, const void *key) = (void *)BPF_FUNC_map_delete_elem;
static long (*const bpf_map_push_elem)(void *map, const void *value, ud_u64 flags) = (void *)BPF_FUNC_map_push_elem;
static long (*const bpf_map_pop_elem)(void *map, void *value) = (void *)BPF_FUNC_map_pop_elem;
static long (*const bpf_tail_call)(void *context, void *map, ud_u32 index) = (void *)BPF_FUNC_tail_call;
static ud_u32 (*const bpf_get_prandom_u32)(void) = (void *)BPF_FUNC_get_prandom_u32;
static ud_u64 (*const bpf_ktime_get_ns)(void) = (void *)BPF_FUNC_ktime_get_ns;
static ud_u64 (*const bpf_get_socket_cookie)(void *context) = (void *)BPF_FUNC_get_socket_cookie;
static long (*const bpf_probe_read_kernel)(void *to, ud_u32 size, const void *from) =
	(void *)BPF_FUNC_probe_read_kernel;
static long (*const bpf_msg_redirect_hash)(struct sk_msg_md *msg, void *map, void *key, ud_u64 flags) =
	(void *)BPF_FUNC_msg_redirect_hash;
static long (*const bpf_msg_apply_bytes)(struct sk_msg_md *msg, ud_u32 bytes) = (void *)BPF_FUNC_msg_apply_bytes;
static long (*const bpf_msg_cork_bytes)(struct sk_msg_md *msg, ud_u32 bytes) = (void *)BPF_FUNC_msg_cork_bytes;
static long (*const bpf_msg_pull_data)(struct sk_msg_md *msg, ud_u32 start, ud_u32 end, ud_u64 flags) =
	(void *)BPF_FUNC_msg_pull_data;
static long (*const bpf_msg_push_data)(struct sk_msg_md *msg, ud_u32 start, ud_u32 len, ud_u64 flags) =
	(void *)BPF_FUNC_msg_push_data;
static long (*const bpf_msg_pop_data)(struct sk_msg_md *msg, ud_u32 start, ud_u32 len, ud_u64 flags) =
	(void *)BPF_FUNC_msg_pop_data;
static long (*const bpf_sk_redirect_hash)(struct __sk_buff *skb, void *map, void *key, ud_u64 flags) =
	(void *)BPF_FUNC_sk_redirect_hash;
static long (*const bpf_sock_hash_update)(struct bpf_sock_ops *ops, void *map, void *key, ud_u64 flags) =
	(void *)BPF_FUNC_sock_hash_update;
static long (*const bpf_skb_load_bytes)(const void *skb, ud_u32 offset, void *to, ud_u32 len) =
	(void *)BPF_FUNC_skb_load_bytes;
static void *(*const bpf_skc_to_tcp_sock)(void *sk) = (void *)BPF_FUNC_skc_to_tcp_sock;
static ud_u64 (*const bpf_get_current_pid_tgid)(void) = (void *)BPF_FUNC_get_current_pid_tgid;
static void *(*const bpf_sk_storage_get)(void *map, void *sk, void *value, ud_u64 flags) =
	(void *)BPF_FUNC_sk_storage_get;

/* Ends a loop that the verifier need not count (Linux 6.9). */
#define can_loop                                                                      \
	({                                                                                \
		__label__ l_break, l_continue;                                                \
		_Bool more = 1;                                                               \
		asm volatile goto("may_goto %l[l_break]" : : : : l_break);                    \
		goto l_continue;                                                              \
	l_break:                                                                          \
		more = 0;                                                                     \
	l_continue:;                                                                      \
		more;                                                                         \
	})

/* The optimiser must forget what it knows of a number that the verifier has to see bounded. */
#define hide(x) asm volatile("" : "+r"(x))

/* A number that is 0, which the verifier does not know. */
static volatile ud_u32 always_zero;
#define zero() (always_zero)

/* `i += by` in a loop: the verifier forgets what `i` was, and so verifies the loop once, not once for each turn. */
#define step(i, by) ((i) = ((i) + (by)) ^ zero())

#define SOCK_STREAM 1
#define MAPPED 0xffff0000 /* 00 00 ff ff, of an IPv4-mapped address. */

inline_always int is_ipv4(const struct ud_address *address)
{
	return !address->ip[0] && !address->ip[1] && address->ip[2] == MAPPED;
}

/* Eight bytes from wherever: the compiler would take them one by one if it saw that they are not aligned. */
inline_always ud_u64 load_word(const ud_u8 *from)
{
	hide(from);
	return *(const ud_u64 *)from;
}

#endif
