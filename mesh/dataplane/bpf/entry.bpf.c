/* The fixed programs, in the order of the path of the data: connect, request, response. */
#include "maps.bpf.h"

#define ONES 0x0101010101010101ULL
#define HIGHS 0x8080808080808080ULL

/* Of the kernel's own structures, what is looked at; libbpf finds out where it is. */
struct sock {
	void *sk_user_data;
} __attribute__((preserve_access_index));

struct tcp_sock {
	ud_u32 write_seq;
} __attribute__((preserve_access_index));

struct sk_buff_head {
	ud_u32 qlen;
} __attribute__((preserve_access_index));

struct sk_psock {
	struct sk_buff_head ingress_skb;
} __attribute__((preserve_access_index));

/* Where processes connect to that is to be taken over. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, struct ud_address);
	__type(value, struct ud_address); /* Where the agent listens for it. */
} ud_services SEC(".maps");

/* Connections that were taken over and are not established yet: where they were meant to go. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, ud_u64);
	__type(value, struct ud_address);
} ud_connecting SEC(".maps");

/* By the address and port of the application's side, which is all that the agent sees. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct ud_address);
	__type(value, ud_u64);
} ud_by_peer SEC(".maps");

/* The agent's end of a connection that it is making to an endpoint of this host, as the endpoint sees it. */
struct pair {
	struct ud_address ours, theirs;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct pair);
	__type(value, ud_u64); /* The cookie of the agent's end. */
} ud_expected SEC(".maps");

/* Heads of responses. sk_skb programs run in softirq, so they have a buffer of their own. */
struct response {
	ud_u8 text[1024 + UD_SLACK];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, ud_u32);
	__type(value, struct response);
} ud_responses SEC(".maps");

/* The same for those that are read where they are sent, which may be interrupted by others that are. */
struct reply {
	ud_u64 claimed;
	struct response head;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, ud_u32);
	__type(value, struct reply);
} ud_replies SEC(".maps");

/* Of an endpoint's socket: the cookie of the other end, which is the agent's. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, ud_u64);
} ud_peers SEC(".maps");

/* Where the agent listens for a connection, if it takes it over. */
inline_always struct ud_address *agent_for(struct bpf_sock_addr *call, struct ud_address *meant)
{
	struct ud_address *agent;
	ud_u64 cookie;

	if (call->type != SOCK_STREAM)
		return 0;
	meant->port = __builtin_bswap16(call->user_port);
	agent = bpf_map_lookup_elem(&ud_services, meant);
	if (!agent)
		return 0;
	cookie = bpf_get_socket_cookie(call);
	bpf_map_update_elem(&ud_connecting, &cookie, meant, BPF_ANY);
	return agent;
}

SEC("cgroup/connect4")
int ud_connect4(struct bpf_sock_addr *call)
{
	struct ud_address meant = {.ip = {0, 0, MAPPED, call->user_ip4}}, *agent = agent_for(call, &meant);

	if (agent) {
		call->user_ip4 = agent->ip[3];
		call->user_port = __builtin_bswap16(agent->port);
	}
	return 1;
}

/* Also IPv4 from a socket of IPv6: then the agent's address is an IPv4-mapped one, too. */
SEC("cgroup/connect6")
int ud_connect6(struct bpf_sock_addr *call)
{
	struct ud_address meant = {.ip = {call->user_ip6[0], call->user_ip6[1], call->user_ip6[2], call->user_ip6[3]}};
	struct ud_address *agent = agent_for(call, &meant);

	if (agent) {
		call->user_ip6[0] = agent->ip[0];
		call->user_ip6[1] = agent->ip[1];
		call->user_ip6[2] = agent->ip[2];
		call->user_ip6[3] = agent->ip[3];
		call->user_port = __builtin_bswap16(agent->port);
	}
	return 1;
}

/* The two ends of a connection. The compiler must not turn the loads of two fields into one of a computed address. */
inline_always void ends_of(struct bpf_sock_ops *ops, struct ud_address *local, struct ud_address *remote)
{
	ud_u32 here = ops->local_ip4, there = ops->remote_ip4;

	hide(here);
	hide(there);
	local->ip[2] = remote->ip[2] = MAPPED;
	local->ip[3] = here;
	remote->ip[3] = there;
	if (ops->family == 10 /* AF_INET6 */) {
		local->ip[0] = ops->local_ip6[0];
		local->ip[1] = ops->local_ip6[1];
		local->ip[2] = ops->local_ip6[2];
		local->ip[3] = ops->local_ip6[3];
		remote->ip[0] = ops->remote_ip6[0];
		remote->ip[1] = ops->remote_ip6[1];
		remote->ip[2] = ops->remote_ip6[2];
		remote->ip[3] = ops->remote_ip6[3];
	}
	local->port = ops->local_port;
	remote->port = __builtin_bswap32(ops->remote_port);
}

/* An endpoint gets a connection of the agent. Now, because nobody can be waiting for its bytes yet: who waits since
 * before a socket was put into a sockmap is not woken up. */
inline_always void accept_local(struct bpf_sock_ops *ops, struct bpf_sock *sk)
{
	struct pair pair = {};
	ud_u64 *found, cookie;
	ud_u32 yes = 1;

	if (!sk)
		return;
	ends_of(ops, &pair.theirs, &pair.ours);
	found = bpf_map_lookup_elem(&ud_expected, &pair);
	if (!found)
		return;
	cookie = *found;
	bpf_map_delete_elem(&ud_expected, &pair);
	if (bpf_sk_storage_get(&ud_peers, sk, &cookie, BPF_SK_STORAGE_GET_F_CREATE) &&
	    !bpf_sock_hash_update(ops, &ud_locals, &cookie, BPF_ANY))
		bpf_map_update_elem(&ud_were_local, &cookie, &yes, BPF_ANY);
}

SEC("sockops")
int ud_established(struct bpf_sock_ops *ops)
{
	struct ud_address *meant, peer = {}, agent = {};
	struct ud_conn conn = {};
	struct bpf_sock *sk = ops->sk;
	struct tcp_sock *tcp;
	ud_u64 cookie, *stored;

	if (ops->op == BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB)
		accept_local(ops, sk);
	if (ops->op != BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB || !sk)
		return 1;
	cookie = bpf_get_socket_cookie(ops);
	meant = bpf_map_lookup_elem(&ud_connecting, &cookie);
	if (!meant)
		return 1;
	conn.destination = *meant;
	bpf_map_delete_elem(&ud_connecting, &cookie);
	tcp = bpf_skc_to_tcp_sock(sk);
	conn.first = tcp ? tcp->write_seq : 0;
	/* If this fails, all of it goes to the agent, and on to Envoy. */
	conn.foreign = bpf_sock_hash_update(ops, &ud_clients, &cookie, BPF_ANY) != 0;
	stored = bpf_sk_storage_get(&ud_cookies, sk, &cookie, BPF_SK_STORAGE_GET_F_CREATE);
	if (!stored || bpf_map_update_elem(&ud_conns, &cookie, &conn, BPF_ANY))
		return 1;
	ends_of(ops, &peer, &agent);
	bpf_map_update_elem(&ud_by_peer, &peer, &cookie, BPF_ANY);
	return 1;
}

/* Whether something of an earlier request is still under way. How much went to the agent, TCP knows: of a message that
 * is let through, a socket that does not block may take a part, and is given the rest again. */
inline_always int is_busy(struct sk_msg_md *msg, struct ud_conn *conn, ud_u64 client)
{
	struct tcp_sock *tcp = bpf_skc_to_tcp_sock(msg->sk);
	struct ud_upstream *upstream;
	struct ud_progress *done;
	ud_u32 in;

	if (!tcp)
		return 1;
	in = tcp->write_seq - conn->first;
	if (conn->upstream) {
		upstream = bpf_map_lookup_elem(&ud_upstreams, &conn->upstream);
		if (upstream && upstream->client == client)
			return 1;
	}
	/* Atomic, so that it is read after `client` was. */
	if (__sync_fetch_and_add(&conn->mover, 0))
		return 1;
	done = bpf_map_lookup_elem(&ud_progresses, &client);
	if (!done)
		return in || conn->out;
	return (ud_u32)done->in != in || done->out != conn->out;
}

/* Whether bytes that came by TCP are on their way into the receive queue of a socket, in the work queue or because it is
 * full. What skips TCP would overtake them. */
inline_always int has_queued(struct sk_msg_md *msg)
{
	struct sock *sk = bpf_skc_to_tcp_sock(msg->sk);
	struct sk_psock *psock;
	ud_u32 count = 1;

	if (!sk)
		return 1;
	/* The lowest bits are flags (SK_USER_DATA_PTRMASK). */
	psock = (struct sk_psock *)((ud_u64)sk->sk_user_data & ~7ULL);
	bpf_probe_read_kernel(&count, sizeof(count), &psock->ingress_skb.qlen);
	return count != 0;
}

SEC("sk_msg")
int ud_request(struct sk_msg_md *msg)
{
	struct ud_conn *conn;
	ud_u64 client = 0;

	/* What an earlier run asked for holds for this one otherwise. */
	bpf_msg_apply_bytes(msg, 0);
	bpf_msg_cork_bytes(msg, 0);
	conn = conn_of(msg, &client);
	if (!conn)
		return SK_PASS;
	if (!is_busy(msg, conn, client)) {
		conn->by_tcp = has_queued(msg);
		bpf_tail_call(msg, &ud_programs, 0);
	}
	return SK_PASS;
}

/* What the agent sends to an application: counted, and let through. */
SEC("sk_skb/stream_verdict")
int ud_from_agent(struct __sk_buff *skb)
{
	ud_u64 client = bpf_get_socket_cookie(skb);
	struct ud_conn *conn = bpf_map_lookup_elem(&ud_conns, &client);

	if (conn)
		conn->out += skb->len;
	return SK_PASS;
}

inline_always ud_u64 word_of(struct response *r, ud_u32 at)
{
	return load_word(&r->text[at & 1023]);
}

inline_always ud_u64 lower(ud_u64 w)
{
	return w | (0x20 * ONES);
}

/* "connection: keep-alive" and the end of the line. */
inline_always int is_keep_alive(struct response *r, ud_u32 at)
{
	return lower(word_of(r, at + 8)) == 0x7065656b203a6e6fULL /* on: keep */ &&
	       lower(word_of(r, at + 16)) == 0x2a2d6576696c612dULL /* -alive and its end */;
}

/* A response with a length, all of whose head is in the first segment. `length`: of all of it. 0: yes. */
static __attribute__((noinline)) int read_response(struct response *r, ud_u32 size, ud_u32 no_body, ud_u64 *length)
{
	ud_u32 i = zero(), status, has_length = 0;
	ud_u64 body = 0;

	if (size < 16 || word_of(r, 0) != 0x312e312f50545448ULL)
		return -1;
	status = (r->text[9] - '0') * 100 + (r->text[10] - '0') * 10 + (r->text[11] - '0');
	if (status < 200 || status > 599)
		return -1;
	i += 12;
	while (i < size && can_loop) {
		ud_u64 w = word_of(r, i), x = w ^ ('\n' * ONES);
		ud_u64 marks = (x - ONES) & ~x & HIGHS;

		if (!marks) {
			step(i, 8);
			continue;
		}
		i += (ud_u32)(((((marks & -marks) - 1) & ONES) * ONES) >> 56) - 1;
		/* A line that ends in a line feed alone. */
		if (r->text[(i - 1) & 1023] != '\r')
			return -1;
		step(i, 1);
		if (i >= size)
			return -1;
		w = lower(word_of(r, i));
		if ((word_of(r, i) & 0xffff) == 0x0a0d) {
			*length = i + 2 + (no_body || status == 204 || status == 304 ? 0 : body);
			if (i + 2 > size)
				return -1;
			return has_length || no_body || status == 204 || status == 304 ? 0 : -1;
		}
		if (w == 0x2d746e65746e6f63ULL /* content- */ &&
		    (lower(word_of(r, i + 8)) & 0xffffffffffffULL) == 0x6874676e656cULL /* length */) {
			ud_u32 at = i + 16, digits = 0;

			if (has_length || (word_of(r, i + 8) >> 48) != 0x203a /* :_ */)
				return -1;
			while (at < size && digits < 10 && r->text[at & 1023] >= '0' && r->text[at & 1023] <= '9' && can_loop) {
				body = body * 10 + (r->text[at & 1023] - '0');
				step(at, 1);
				step(digits, 1);
			}
			if (!digits || r->text[at & 1023] != '\r')
				return -1;
			has_length = 1;
		}
		/* transfer-encoding, connection, trailer, upgrade: the agent knows what to do. */
		if (w == 0x726566736e617274ULL || w == 0x3a72656c69617274ULL || w == 0x3a65646172677075ULL)
			return -1;
		/* "connection: keep-alive" only says what is so anyway. */
		if (w == 0x697463656e6e6f63ULL && !is_keep_alive(r, i))
			return -1;
	}
	return -1;
}

/* The first segment of a response. 0: the kernel moves it. */
inline_always int begin_response(struct __sk_buff *skb, struct ud_upstream *upstream)
{
	ud_u32 key = 0, size = skb->len > 1024 ? 1024 : skb->len;
	struct response *r = bpf_map_lookup_elem(&ud_responses, &key);
	ud_u64 length = 0;

	hide(size);
	if (!r || size < 1 || size > 1024 || bpf_skb_load_bytes(skb, 0, r->text, size))
		return -1;
	/* Of a head of up to 1024 bytes, and a body. */
	if (read_response(r, size, upstream->no_body, &length) || length > UD_BODY_MAX + 1024)
		return -1;
	upstream->left = length;
	upstream->in_body = 1;
	return 0;
}

/* A response is complete: others may take the connection. */
inline_always void end_response(struct ud_upstream *upstream, ud_u64 cookie, ud_u32 keep)
{
	ud_u32 endpoint = upstream->endpoint;
	ud_u64 *active = bpf_map_lookup_elem(&ud_active, &endpoint);
	void *pool = bpf_map_lookup_elem(&ud_pools, &endpoint);

	if (active)
		__sync_fetch_and_sub(active, 1);
	upstream->in_body = upstream->relay = 0;
	__sync_lock_test_and_set(&upstream->client, keep ? 0 : UD_RETIRED);
	if (pool && keep)
		bpf_map_push_elem(pool, &cookie, BPF_ANY);
}

/* What an endpoint sends: to the application that asked, if the kernel can move all of it. */
SEC("sk_skb/stream_verdict")
int ud_response(struct __sk_buff *skb)
{
	ud_u64 cookie = bpf_get_socket_cookie(skb), client;
	struct ud_upstream *upstream = bpf_map_lookup_elem(&ud_upstreams, &cookie);
	struct ud_counters *all;
	struct ud_conn *conn;

	/* A segment that is only FIN is for the agent. */
	if (!skb->len || !upstream || !upstream->client || upstream->client == UD_RETIRED || upstream->relay)
		return SK_PASS;
	client = upstream->client;
	conn = bpf_map_lookup_elem(&ud_conns, &client);
	/* If the client is gone, the agent knows what to do. */
	if (!conn || (!upstream->in_body && begin_response(skb, upstream)) || skb->len > upstream->left) {
		upstream->relay = 1;
		return SK_PASS;
	}
	upstream->left -= skb->len;
	if (!upstream->left) {
		all = counters();
		if (all)
			all->responses_kernel++;
		end_response(upstream, cookie, 1);
	}
	return bpf_sk_redirect_hash(skb, &ud_clients, &client, BPF_F_INGRESS);
}

/* The beginning of a response, where it is sent. 0: the kernel moves it. */
inline_always int begin_reply(struct sk_msg_md *msg, struct ud_upstream *upstream)
{
	ud_u32 key = 0, size = msg->size > 1024 ? 1024 : msg->size;
	struct reply *r = bpf_map_lookup_elem(&ud_replies, &key);
	ud_u64 length = 0;
	int result = -1;

	if (!r || __sync_lock_test_and_set(&r->claimed, 1))
		return -1;
	if (bpf_msg_pull_data(msg, 0, size, 0))
		goto done;
	hide(size);
	if (size < 1 || size > 1024 || (ud_u8 *)msg->data + size > (ud_u8 *)msg->data_end)
		goto done;
	bpf_probe_read_kernel(r->head.text, size, msg->data);
	result = read_response(&r->head, size, upstream->no_body, &length);
	if (!result && length > UD_LOCAL_MAX + 1024)
		result = -1;
	upstream->left = length;
done:
	__sync_lock_test_and_set(&r->claimed, 0);
	return result;
}

/* What an endpoint of this host sends: straight to the application that asked. No packet is made, and no
 * other thread of the kernel is woken up. What it does not move takes the way of all others, and is the agent's. */
SEC("sk_msg")
int ud_reply(struct sk_msg_md *msg)
{
	struct bpf_sock *sk = msg->sk;
	struct ud_upstream *upstream;
	struct ud_counters *all;
	struct ud_conn *conn;
	ud_u64 *cookie, client;

	if (!sk)
		return SK_PASS;
	cookie = bpf_sk_storage_get(&ud_peers, sk, 0, 0);
	if (!cookie)
		return SK_PASS;
	upstream = bpf_map_lookup_elem(&ud_upstreams, cookie);
	if (!upstream || !upstream->client || upstream->client == UD_RETIRED || upstream->relay)
		return SK_PASS;
	client = upstream->client;
	conn = bpf_map_lookup_elem(&ud_conns, &client);
	if (conn && conn->by_tcp)
		return SK_PASS;
	if (!conn || (!upstream->in_body && begin_reply(msg, upstream)) ||
	    msg->size > upstream->left ||
	    bpf_msg_redirect_hash(msg, &ud_clients, &client, BPF_F_INGRESS) != SK_PASS) {
		upstream->relay = 1;
		return SK_PASS;
	}
	upstream->in_body = 1;
	upstream->left -= msg->size;
	if (!upstream->left) {
		all = counters();
		if (all)
			all->responses_kernel++;
		conn->mover = bpf_get_current_pid_tgid();
		end_response(upstream, *cookie, 1);
	}
	return SK_PASS;
}

/* Bytes are in the receive queue of a socket, and nobody has read them yet: its lock is held. A thread that moves bytes
 * into a socket waits for that lock before, maybe for long, so this is where the end of a response has arrived. */
SEC("tp_btf/sk_data_ready")
int ud_arrived(ud_u64 *arguments)
{
	struct sock *sk = (struct sock *)arguments[0];
	ud_u64 *client = bpf_sk_storage_get(&ud_cookies, sk, 0, 0);
	struct ud_conn *conn;

	if (!client)
		return 0;
	conn = bpf_map_lookup_elem(&ud_conns, client);
	/* Only of a thread that is at it: the agent sends nothing meanwhile, and nothing else moves bytes by itself. */
	if (conn && conn->mover && conn->mover == (ud_u32)bpf_get_current_pid_tgid())
		conn->mover = 0;
	return 0;
}

/* What is sent to an endpoint by TCP is let through. With a verdict, Linux knows how much is there (FIONREAD). */
SEC("sk_skb/stream_verdict")
int ud_to_local(struct __sk_buff *skb)
{
	(void)skb;
	return SK_PASS;
}

/* An idle connection to an endpoint begins to end: nobody takes it from now on. It stays in `ud_servers` until the agent
 * sees that, and whoever sent to it would be told of the reset. */
SEC("tp_btf/inet_sock_set_state")
int ud_ending(ud_u64 *arguments)
{
	struct ud_upstream *upstream;
	ud_u64 cookie;

	if ((ud_u32)arguments[1] != BPF_TCP_ESTABLISHED)
		return 0;
	cookie = bpf_get_socket_cookie((void *)arguments[0]);
	upstream = bpf_map_lookup_elem(&ud_upstreams, &cookie);
	if (upstream)
		__sync_val_compare_and_swap(&upstream->client, 0, UD_RETIRED);
	return 0;
}

/* What the agent does to the pools. */
SEC("syscall")
int ud_pool(struct ud_pool_call *call)
{
	ud_u64 cookie = call->cookie;
	struct ud_upstream *upstream = bpf_map_lookup_elem(&ud_upstreams, &cookie);

	if (!upstream)
		return 0;
	if (call->what == UD_POOL_RETIRE)
		return __sync_val_compare_and_swap(&upstream->client, 0, UD_RETIRED) == 0;
	end_response(upstream, cookie, call->keep);
	return 1;
}

char _license[] SEC("license") = "GPL";
