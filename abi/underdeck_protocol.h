/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The contract between a protocol program and whoever runs it.
 *
 * A protocol program is eBPF (SEC("syscall")), written in C once. It is called with one `struct ud_cut` and says
 * which span of the byte stream comes next. It runs in user space (the preload library) and, later, in the kernel
 * module; it owns nothing but `state`, keeps no maps and calls no helpers.
 *
 *     bytes ──> cut() ──> [metadata n][opaque n][metadata n] …
 *
 * The context holds no pointers and is the same on both sides of every privilege boundary.
 */
#ifndef UNDERDECK_PROTOCOL_H
#define UNDERDECK_PROTOCOL_H

#ifdef __bpf__
typedef unsigned char ud_u8;
typedef unsigned int ud_u32;
typedef unsigned long long ud_u64;
#else
#include <stdint.h>
typedef uint8_t ud_u8;
typedef uint32_t ud_u32;
typedef uint64_t ud_u64;
#endif

/* Version of this contract; an object names the one it was built for in its "underdeck" section (UD_PROTOCOL). */
#define UD_PROTOCOL_VERSION 1

/* Bytes of the stream that a program sees at once (the paper's default). A power of two. */
#define UD_WINDOW 256
/* 64-bit words of per-connection memory, shared by both directions, zero when the connection begins. */
#define UD_STATE_WORDS 8

/* Direction of the stream in `window`, seen from the process that holds the socket. */
enum ud_direction {
	UD_RX = 0, /* bytes that the process receives */
	UD_TX = 1, /* bytes that the process sends */
};

/* Who opened the connection. */
enum ud_role {
	UD_SERVER = 0, /* accepted: RX carries requests, TX responses */
	UD_CLIENT = 1, /* connected: TX carries requests, RX responses */
};

/* What the program says of the bytes at window[0]. */
enum ud_verdict {
	/* The next `span` bytes are metadata: the process must see them. 1 <= span <= len. */
	UD_METADATA = 1,
	/* The next `span` bytes are payload that nobody needs to look at. 1 <= span, may reach far beyond the window;
	 * UD_UNTIL_CLOSE: to the end of the stream. */
	UD_OPAQUE = 2,
	/* `len` bytes do not decide; ask again with more. Only valid while len < UD_WINDOW. What the program wrote to
	 * `state` is thrown away. With len == 0: not known before the next byte has come.
	 * `span`: 1 inside a message, so that more is bound to follow; 0 (as it comes) between two. */
	UD_NEED_MORE = 3,
	/* Leave this connection alone, in both directions and for good. */
	UD_PASS = 4,
};

#define UD_UNTIL_CLOSE (~(ud_u64)0)
/* For `then`: a message is over, and nothing is known of what follows it. */
#define UD_BETWEEN (~(ud_u64)1)

struct ud_cut {
	ud_u8 window[UD_WINDOW];      /* in: the next bytes of the stream; zero beyond `len` is NOT promised */
	ud_u32 len;                   /* in: how many of them are valid, 0..UD_WINDOW; 0 asks what is known already:
	                               * UD_OPAQUE and UD_PASS are answers, else UD_NEED_MORE */
	ud_u32 direction;             /* in: enum ud_direction */
	ud_u32 role;                  /* in: enum ud_role */
	ud_u32 verdict;               /* out: enum ud_verdict; anything else counts as UD_PASS */
	ud_u64 span;                  /* out: bytes, for UD_METADATA and UD_OPAQUE; see UD_NEED_MORE. Comes as 0 */
	ud_u64 state[UD_STATE_WORDS]; /* in and out: the program's own */
	ud_u64 then;                  /* out, with UD_METADATA: what is known of the bytes after the span. So many bytes of
	                               * payload follow it, or UD_UNTIL_CLOSE, or UD_BETWEEN; `state` is already what it is
	                               * behind them. 0, as it comes: ask. It saves a call with len == 0 */
};

/* What an object says of itself, in its section "underdeck". */
struct ud_protocol {
	ud_u32 version; /* UD_PROTOCOL_VERSION of the contract that it was built for */
	char name[28];  /* zero-terminated: what a user calls the protocol */
};

#ifdef __bpf__
/*
 * UD_PROTOCOL(http1) { ... } defines the program: the body gets `struct ud_cut *c` and returns 0.
 *
 * The verifier lets a global function index the memory that it is given, but not a program its context: hence three
 * functions. `c` is never null; the verifier wants to see it checked.
 */
#define UD_PROTOCOL(NAME)                                                                                              \
	__attribute__((section("underdeck"), used)) const struct ud_protocol ud_protocol = {UD_PROTOCOL_VERSION, #NAME}; \
	static inline __attribute__((always_inline)) int NAME##_body(struct ud_cut *c);                                \
	__attribute__((noinline)) int NAME##_cut(struct ud_cut *c)                                                     \
	{                                                                                                              \
		return c ? NAME##_body(c) : 0;                                                                         \
	}                                                                                                              \
	__attribute__((section("syscall"), used)) int NAME(struct ud_cut *c)                                           \
	{                                                                                                              \
		return NAME##_cut(c);                                                                                  \
	}                                                                                                              \
	static inline __attribute__((always_inline)) int NAME##_body(struct ud_cut *c)
#endif

_Static_assert(sizeof(struct ud_protocol) == 32, "struct ud_protocol has no padding");
_Static_assert(sizeof(struct ud_cut) == UD_WINDOW + 4 * 4 + 8 + 8 * UD_STATE_WORDS + 8, "struct ud_cut has no padding");
_Static_assert((UD_WINDOW & (UD_WINDOW - 1)) == 0, "an index is bounded by a mask");

#endif
