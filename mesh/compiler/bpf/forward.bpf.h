/* What becomes of a message: judged, and moved to an endpoint or to the agent. */
#ifndef UNDERDECK_MESH_FORWARD_H
#define UNDERDECK_MESH_FORWARD_H

#include "maps.bpf.h"
#include "policy.bpf.h"

/* Set by the agent before the program is loaded: which of its programs this is. */
const volatile ud_u32 generation SEC(".rodata.generation") = 0;

/* Clusters of this program. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, UD_CLUSTERS_MAX);
	__type(key, ud_u32);
	__type(value, struct ud_cluster);
} ud_clusters SEC(".maps");

/* Requests of each action of this program. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, UD_ACTIONS_MAX);
	__type(key, ud_u32);
	__type(value, ud_u64);
} ud_action_counts SEC(".maps");

inline_always void count_envoy(ud_u32 reason)
{
	struct ud_counters *all = counters();

	if (all && reason < UD_REASONS)
		all->envoy[reason]++;
}

/* With weights, as Envoy's scheduler has it (earliest deadline first). Where the fewest requests count, those that an
 * endpoint has at the time put its next turn off. */
apart int choose_by_weight(ud_u32 cluster_index)
{
	struct ud_cluster *cluster = bpf_map_lookup_elem(&ud_clusters, &cluster_index);
	ud_u32 i = zero(), first = zero(), endpoint;
	ud_u64 least = 0, ahead, *active;

	if (!cluster)
		return -1;
	while (i < cluster->count && can_loop) {
		ud_u64 due = cluster->due[i & (UD_CLUSTER_ENDPOINTS_MAX - 1)];

		/* The sums overflow: what counts is which one is behind the other. */
		if (!i || (long long)(due - least) < 0) {
			least = due;
			first = i;
		}
		step(i, 1);
	}
	first &= UD_CLUSTER_ENDPOINTS_MAX - 1;
	hide(first);
	first &= UD_CLUSTER_ENDPOINTS_MAX - 1;
	endpoint = cluster->endpoint[first];
	ahead = cluster->ahead[first];
	if (cluster->balancing == UD_LEAST_REQUEST) {
		active = bpf_map_lookup_elem(&ud_active, &endpoint);
		if (active)
			ahead *= 1 + (*active < 0xffff ? *active : 0xffff);
	}
	/* Another CPU may have chosen the same one: both turns count. */
	__sync_fetch_and_add(&cluster->due[first], ahead);
	return endpoint;
}

/* The endpoint that is next in a cluster, or -1. */
inline_always int choose(ud_u32 cluster_index, ud_u32 random)
{
	struct ud_cluster *cluster = bpf_map_lookup_elem(&ud_clusters, &cluster_index);
	ud_u32 first, second;

	if (!cluster || !cluster->count)
		return -1;
	if (cluster->weighted)
		return choose_by_weight(cluster_index);
	if (cluster->balancing == UD_ROUND_ROBIN)
		first = __sync_fetch_and_add(&cluster->next, 1) % cluster->count;
	else
		first = random % cluster->count;
	first = cluster->endpoint[first & (UD_CLUSTER_ENDPOINTS_MAX - 1)];
	if (cluster->balancing == UD_LEAST_REQUEST) {
		ud_u64 *one, *two;

		second = cluster->endpoint[((random >> 16) % cluster->count) & (UD_CLUSTER_ENDPOINTS_MAX - 1)];
		one = bpf_map_lookup_elem(&ud_active, &first);
		two = bpf_map_lookup_elem(&ud_active, &second);
		if (one && two && *two < *one)
			return second;
	}
	return first;
}

/* Says where the message goes. 0: the connection is open, as far as the kernel knows now. The end of an endpoint of this
 * host leaves the map when its process closes it. The endpoint would reset what is sent to it by TCP after that, and
 * the sender would be told of it. */
inline_always int direct(struct sk_msg_md *msg, ud_u64 *cookie)
{
	if (bpf_msg_redirect_hash(msg, &ud_locals, cookie, BPF_F_INGRESS) == SK_PASS)
		return 0;
	if (bpf_map_lookup_elem(&ud_were_local, cookie))
		return -1;
	return bpf_msg_redirect_hash(msg, &ud_servers, cookie, 0) == SK_PASS ? 0 : -1;
}

/* An idle connection to an endpoint, to which the message is directed. */
inline_always struct ud_upstream *take(struct sk_msg_md *msg, ud_u32 endpoint, ud_u64 client, ud_u64 *cookie)
{
	void *pool = bpf_map_lookup_elem(&ud_pools, &endpoint);

	if (!pool)
		return 0;
	for (int tries = 0; tries < 4; tries++) {
		struct ud_upstream *upstream;

		if (bpf_map_pop_elem(pool, cookie))
			return 0;
		upstream = bpf_map_lookup_elem(&ud_upstreams, cookie);
		/* One that was closed meanwhile is only a number, and one that is being closed is not taken. */
		if (!upstream || __sync_val_compare_and_swap(&upstream->client, 0, client))
			continue;
		if (!direct(msg, cookie))
			return upstream;
		/* It is being closed. The agent will see that, too. */
		__sync_lock_test_and_set(&upstream->client, UD_RETIRED);
	}
	return 0;
}

/* A connection that was taken and not used. */
inline_always void give_back(struct ud_upstream *upstream, ud_u64 cookie, ud_u32 endpoint)
{
	void *pool = bpf_map_lookup_elem(&ud_pools, &endpoint);

	__sync_lock_test_and_set(&upstream->client, 0);
	if (pool)
		bpf_map_push_elem(pool, &cookie, BPF_ANY);
}

/* Makes the first `old` bytes of the message the first `new` bytes of `out`. */
static __attribute__((noinline)) int replace(struct sk_msg_md *msg, struct ud_head *h, ud_u32 old)
{
	ud_u32 new = h->out_len, i = zero();
	ud_u8 *data, *end;

	if (new > UD_OUT_MAX || old > UD_HEAD_MAX)
		return -1;
	if (new > old && bpf_msg_push_data(msg, 0, new - old, 0))
		return -1;
	if (new < old && bpf_msg_pop_data(msg, 0, old - new, 0))
		return -1;
	if (bpf_msg_pull_data(msg, 0, new, 0))
		return -1;
	data = msg->data;
	end = msg->data_end;
	while (i + 8 <= new && can_loop) {
		ud_u32 at = i & (UD_OUT_MAX - 1);

		hide(at);
		at &= UD_OUT_MAX - 1;
		if (data + at + 8 > end)
			return -1;
		*(ud_u64 *)(data + at) = *(ud_u64 *)&h->out[at];
		step(i, 8);
	}
	while (i < new && can_loop) {
		ud_u32 at = i & (UD_OUT_MAX - 1);

		hide(at);
		at &= UD_OUT_MAX - 1;
		if (data + at + 1 > end)
			return -1;
		data[at] = h->out[at];
		step(i, 1);
	}
	return 0;
}

/* Hands a decided request to the agent, behind a tag. */
inline_always int to_agent(struct sk_msg_md *msg, struct ud_head *h, ud_u32 endpoint)
{
	ud_u32 head_len = h->edited ? h->out_len : h->len;
	struct ud_tag tag = {
		.magic = {0, 'U', 'D', 1},
		.verdict = h->verdict,
		.action = h->action,
		.endpoint = endpoint,
		.head_len = head_len,
		.generation = generation,
	};
	struct ud_counters *all = counters();

	/* The edited head moves up to make room; it lies in `out`, the unedited one in `text`. */
	if (head_len > UD_HEAD_MAX)
		return -1;
	if (h->edited)
		bpf_probe_read_kernel(h->text, head_len, h->out);
	h->out_len = 0;
	if (put_literal(h, &tag, sizeof(tag)) || put_text(h, 0, head_len) || replace(msg, h, h->len))
		return -1;
	if (all) {
		if (h->verdict == UD_ANSWER)
			all->answered++;
		else
			all->agent++;
	}
	return 0;
}

/* Sends a decided request on. -1: nothing was done. */
inline_always int to_upstream(struct sk_msg_md *msg, struct ud_head *h, struct ud_conn *conn,
			      struct ud_upstream *upstream, ud_u64 cookie, ud_u32 endpoint)
{
	struct ud_counters *all = counters();
	ud_u64 *active = bpf_map_lookup_elem(&ud_active, &endpoint);

	if (h->edited && replace(msg, h, h->len))
		return -1;
	conn->upstream = cookie;
	upstream->left = 0;
	upstream->in_body = 0;
	upstream->action = h->action;
	upstream->generation = generation;
	upstream->relay = h->response_edits;
	upstream->no_body = h->method.len == 4 && (word(h, 0) & 0xffffffff) == 0x44414548;
	if (active)
		__sync_fetch_and_add(active, 1);
	if (all)
		all->kernel++;
	return SK_PASS;
}

inline_always int forward(struct sk_msg_md *msg, struct ud_head *h, struct ud_conn *conn, ud_u64 client)
{
	int endpoint = -1, verdict;
	ud_u64 cookie = 0, *count;
	struct ud_upstream *upstream;

	count = bpf_map_lookup_elem(&ud_action_counts, &h->action);
	if (count)
		(*count)++;
	if (h->verdict == UD_FORWARD) {
		struct ud_counters *all = counters();

		endpoint = choose(h->cluster, h->random);
		if (endpoint < 0) {
			count_envoy(UD_REASON_POLICY);
			return SK_PASS;
		}
		/* The kernel cannot redirect a part of a message and let the rest pass: all of it, or nothing. */
		if (h->body != UD_BODY_CHUNKED && h->content_length <= UD_BODY_MAX && msg->size - h->len == h->content_length) {
			upstream = take(msg, endpoint, client, &cookie);
			if (upstream) {
				verdict = to_upstream(msg, h, conn, upstream, cookie, endpoint);
				if (verdict >= 0)
					return verdict;
				give_back(upstream, cookie, endpoint);
				return SK_DROP;
			}
			if (all)
				all->empty_pool++;
		}
	}
	return to_agent(msg, h, endpoint) ? SK_DROP : SK_PASS;
}

/* How long the message must be before it can be moved. 0: as long as it is. */
inline_always ud_u32 bytes_needed(struct ud_head *h, ud_u32 size, int result)
{
	if (result > 0)
		return size < UD_HEAD_MAX ? size + 1 : 0;
	if (result || h->verdict != UD_FORWARD || h->content_length > UD_BODY_MAX ||
	    size >= h->len + h->content_length)
		return 0;
	return h->len + h->content_length;
}

SEC("sk_msg")
int ud_policy(struct sk_msg_md *msg)
{
	ud_u32 key = 0, size = msg->size, verdict = SK_PASS, len, need;
	struct ud_head *h = bpf_map_lookup_elem(&ud_heads, &key);
	struct ud_conn *conn;
	ud_u64 client = 0;
	int result;

	conn = conn_of(msg, &client);
	if (!h || !conn)
		return SK_PASS;
	if (__sync_lock_test_and_set(&h->claimed, 1)) {
		count_envoy(UD_REASON_SCRATCH);
		return SK_PASS;
	}
	len = size > UD_HEAD_MAX ? UD_HEAD_MAX : size;
	if (bpf_msg_pull_data(msg, 0, len, 0))
		goto envoy;
	hide(len);
	if (len > UD_HEAD_MAX || (ud_u8 *)msg->data + len > (ud_u8 *)msg->data_end)
		goto envoy;
	bpf_probe_read_kernel(h->text, len, msg->data);
	h->size = len;
	h->random = bpf_get_prandom_u32();
	h->destination = conn->destination;
	result = judge(h);
	need = bytes_needed(h, size, result);
	if (need && conn->corks < UD_CORKS_MAX && !bpf_msg_cork_bytes(msg, need)) {
		conn->corks++;
		goto done;
	}
	conn->corks = 0;
	if (result > 0)
		h->reason = UD_REASON_LONG;
	if (result)
		goto envoy;
	verdict = forward(msg, h, conn, client);
	goto done;
envoy:
	count_envoy(h->reason);
done:
	__sync_lock_test_and_set(&h->claimed, 0);
	return verdict;
}

#endif
