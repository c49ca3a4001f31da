/* The contract of the mesh engine: what its eBPF programs and its agent share.
 *
 * Fixed programs (mesh/dataplane/bpf) take connections over and move bytes. One program is made for each set of
 * policies (mesh/compiler): it reads request heads and decides. All of them see the maps below by these names.
 */
#ifndef UNDERDECK_MESH_H
#define UNDERDECK_MESH_H

typedef unsigned char ud_u8;
typedef unsigned short ud_u16;
typedef unsigned int ud_u32;
typedef unsigned long long ud_u64;

enum {
	UD_HEAD_MAX = 4096,   /* Longer request heads are Envoy's. A power of two. */
	UD_OUT_MAX = 8192,    /* The longest head after edits. A power of two. */
	UD_SLACK = 64,        /* Behind each buffer, for loads of words at its end. */
	UD_NAMES_MAX = 64,    /* Header names that policies can mention. */
	UD_LINES_MAX = 64,    /* Lines of those names in one head. */
	UD_PATH_WORDS = 8,    /* Words of a path that are at hand for comparisons. A power of two. */
	UD_HOST_WORDS = 32,   /* Words of the longest host name. A power of two. */
	UD_ENDPOINTS_MAX = 1024,
	UD_CLUSTERS_MAX = 512,
	UD_CLUSTER_ENDPOINTS_MAX = 32,
	UD_POOL_MAX = 4096,   /* Idle connections to one endpoint. */
	UD_ACTIONS_MAX = 8192,
	UD_BODY_MAX = 65536,  /* Longer bodies are moved by the agent. */
	UD_LOCAL_MAX = 1048576, /* The same for responses of endpoints of this host. */
	UD_CORKS_MAX = 6,     /* Requests in more pieces may not fit into one message: 17 fragments. */
};

/* What was decided. */
enum { UD_ENVOY, UD_FORWARD, UD_ANSWER };

/* Why a request is Envoy's (`ud_head.reason`). The first ones are the parser's. */
enum {
	UD_REASON_POLICY,     /* A rule that is placed in Envoy may be meant. */
	UD_REASON_LONG,       /* The head is longer than UD_HEAD_MAX, or came in pieces. */
	UD_REASON_SYNTAX,     /* Something that the parser does not know with certainty. */
	UD_REASON_TARGET,     /* The target is no plain path. */
	UD_REASON_PATH,       /* The path would be normalised. */
	UD_REASON_FRAMING,    /* Both lengths, an odd length, or a transfer coding but chunked. */
	UD_REASON_CONNECTION, /* Connection, Upgrade, Expect, TE and the like. */
	UD_REASON_DUPLICATE,  /* A header that policies look at is there twice. */
	UD_REASON_CROWDED,    /* More lines of interest than UD_LINES_MAX, or edits past UD_OUT_MAX. */
	UD_REASON_BUSY,       /* Something of this connection is still with the agent. Counted by the agent. */
	UD_REASON_SCRATCH,    /* Another request was being read on this CPU. */
	UD_REASON_SOCKET,     /* Another program holds the socket. Counted by the agent. */
	UD_REASONS,
};

/* How the body of a request is framed. */
enum { UD_BODY_NONE, UD_BODY_LENGTH, UD_BODY_CHUNKED };

/* Header names that are always looked for. Those of the policies come after them. */
enum { UD_NAME_HOST, UD_NAME_LENGTH, UD_NAME_CODING, UD_NAME_CONNECTION, UD_NAMES_FIXED };

/* An address and a port. IPv6 as on the wire; IPv4 as an IPv4-mapped address (RFC 4291 section 2.5.5.2). */
struct ud_address {
	ud_u32 ip[4];
	ud_u32 port;
};

struct ud_span {
	ud_u32 at, len;
};

/* A line of the head whose name is of interest. */
struct ud_line {
	ud_u32 start, end; /* `end` is past its line feed. */
	ud_u32 name;
	ud_u32 pad;
};

/* One request head, and what was decided on it. */
struct ud_head {
	/* In. */
	ud_u32 size;           /* Bytes in `text`. */
	ud_u32 random;
	struct ud_address destination; /* Where the application connected to. */
	/* Out of the parser. */
	ud_u32 len;            /* With the empty line; 0: it is not complete. */
	ud_u32 body;
	ud_u32 lines;          /* In `line`. */
	ud_u64 content_length;
	struct ud_span method, target, path, authority;
	ud_u64 path_words[UD_PATH_WORDS]; /* What `path` begins with, and what follows it. */
	ud_u64 host_words[UD_HOST_WORDS]; /* The authority in lower case. */
	ud_u64 seen;           /* A bit for each name that is there. */
	struct ud_span value[UD_NAMES_MAX];
	struct ud_line line[UD_LINES_MAX];
	/* Out of the decision. */
	ud_u32 verdict;
	ud_u32 reason;
	ud_u32 action;         /* Index in the compiler's table; meant for UD_FORWARD and UD_ANSWER. */
	ud_u32 cluster;
	ud_u32 response_edits; /* The response must be edited: by the agent. */
	ud_u32 edited;         /* `out` is the head to send. */
	ud_u32 out_len;
	ud_u32 claimed;
	ud_u8 text[UD_HEAD_MAX + UD_SLACK];
	ud_u8 out[UD_OUT_MAX + UD_SLACK];
};

/* For BPF_PROG_TEST_RUN: one head in, the decision out. */
struct ud_trial {
	ud_u32 size, random;
	struct ud_address destination;
	ud_u32 verdict, reason, action, cluster;
	ud_u32 len, body, edited, out_len;
	ud_u32 rounds, response_edits, pad;
	ud_u64 nanoseconds;
	ud_u8 text[UD_HEAD_MAX];
};

/* A connection of an application, by the cookie of its socket. */
struct ud_conn {
	ud_u64 out;       /* Bytes that came from the agent. */
	ud_u64 upstream;  /* Cookie of the upstream connection that has, or had, its last request. */
	struct ud_address destination;
	ud_u32 corks;     /* How often the beginning of a request was told to wait for the rest. */
	ud_u32 mover;     /* The thread that is moving the end of a response into its socket; 0: none is. */
	ud_u32 by_tcp;    /* The response to its last request must not skip TCP. */
	ud_u32 first;     /* TCP's sequence number of the first byte that goes to the agent. */
	ud_u32 foreign;   /* Another program holds its socket: none of its requests is read. */
};

/* What the agent has done for a connection. The kernel takes requests again when it agrees with `ud_conn`. */
struct ud_progress {
	ud_u64 in, out;
};

/* A connection to an endpoint, by the cookie of its socket. The kernel writes an entry while `client` is 0 or `relay`
 * is 0; otherwise the agent owns it. */
struct ud_upstream {
	ud_u64 client;     /* Cookie of the connection whose request it has; 0: idle; UD_RETIRED: it is being closed. */
	ud_u64 left;       /* Of the response. */
	ud_u32 endpoint;
	ud_u32 action;
	ud_u32 generation; /* Of the program that `action` belongs to. */
	ud_u32 in_body;    /* The kernel has begun to move this response. */
	ud_u32 relay;      /* The agent moves this response. */
	ud_u32 no_body;    /* The request was HEAD. */
};

#define UD_RETIRED 0x7fffffffffffffffULL /* No cookie. */

/* What the agent asks of `ud_pool`, because it must be atomic. */
enum {
	UD_POOL_RETIRE, /* Nobody shall take this connection. Result 1: it was idle. */
	UD_POOL_DONE,   /* The agent has moved the response. */
};

struct ud_pool_call {
	ud_u64 cookie;
	ud_u32 what;
	ud_u32 keep;    /* With UD_POOL_DONE: others may take it. */
};

struct ud_cluster {
	ud_u32 count;
	ud_u32 balancing;
	ud_u32 next;
	ud_u32 weighted; /* Its endpoints have different weights: `due` says which one is next. */
	ud_u32 endpoint[UD_CLUSTER_ENDPOINTS_MAX];
	ud_u64 ahead[UD_CLUSTER_ENDPOINTS_MAX]; /* How far one request moves `due`: the less, the greater the weight. */
	ud_u64 due[UD_CLUSTER_ENDPOINTS_MAX];   /* The one that is most behind is next; the sums overflow. */
};

enum { UD_ROUND_ROBIN, UD_RANDOM, UD_LEAST_REQUEST };

/* In front of a decided head that goes to the agent. No request begins with a NUL. */
struct ud_tag {
	ud_u8 magic[4]; /* 0 'U' 'D' 1 */
	ud_u32 verdict;
	ud_u32 action;
	ud_u32 endpoint;
	ud_u32 head_len;
	ud_u32 generation;
};

/* Counters, summed over CPUs. */
struct ud_counters {
	ud_u64 kernel;   /* Requests that the kernel sent on itself. */
	ud_u64 agent;    /* Requests that the kernel decided and the agent moved. */
	ud_u64 answered; /* Requests that the kernel decided and the agent answered. */
	ud_u64 envoy[UD_REASONS];
	ud_u64 responses_kernel;
	ud_u64 responses_agent;
	ud_u64 empty_pool;
};

_Static_assert(sizeof(struct ud_tag) == 24, "the agent reads it as it is");
_Static_assert(sizeof(struct ud_head) <= 32768, "one element of a per-CPU array");

#endif
