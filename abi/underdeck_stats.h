/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counters that an engine keeps in shared memory and that `underdeck stat`, `underdeck metrics` and the tests read.
 *
 * One page-aligned block per process, in a memfd named "underdeck-stats" that the process keeps open: it vanishes with
 * the process. Readers find it as /proc/PID/fd/N -> "/memfd:underdeck-stats (deleted)". Every field is a native-endian
 * 64-bit word, written with relaxed atomics, and only ever grows, except those marked (gauge).
 */
#ifndef UNDERDECK_STATS_H
#define UNDERDECK_STATS_H

#include <stdint.h>

#define UD_STATS_MAGIC 0x3153544154534455ULL /* "UDSTATS1" in memory order on little-endian machines */
#define UD_STATS_VERSION 1
#define UD_STATS_MEMFD_NAME "underdeck-stats"

/*
 * Why payload was not anchored, or did not stay anchored. One list for shared memory, command line, metrics and docs:
 * X(constant, name, one sentence for people)
 */
#define UD_REASONS(X)                                                                                                  \
	X(BELOW_MIN_BODY, "below-min-body", "the body is shorter than --min-body, where copying is cheaper")           \
	X(HEAD_OF_BODY, "head-of-body", "first bytes of a body that came in the same read as its header")              \
	X(SHORT_READ, "short-read", "few bytes were there to be read, copying them is cheaper")                        \
	X(CONNECTION_LIMIT, "connection-limit", "the connection already holds --max-anchored bytes")                   \
	X(TOTAL_LIMIT, "total-limit", "the process already holds --max-anchored-total bytes")                          \
	X(PIPE_FULL, "pipe-full", "the pipe of the message has no free slot")                                          \
	X(NO_PIPE, "no-pipe", "no pipe could be made: descriptors or fs.pipe-user-pages-soft are used up")             \
	X(BLOCKING_SOCKET, "blocking-socket", "the socket is in blocking mode")                                        \
	X(CALL_FLAGS, "call-flags", "the call had flags that only a copy can honour (MSG_PEEK, MSG_WAITALL, MSG_TRUNC)") \
	X(SMALL_BUFFER, "small-buffer", "the buffer of the call is too small to hold a placeholder")                   \
	X(PROTOCOL_PASS, "protocol-pass", "the protocol program left the connection alone: ambiguous or malformed")    \
	X(NOT_PROTOCOL, "not-protocol", "the stream is not of the chosen protocol")                                    \
	X(ROUTE_LEARNT, "route-learnt", "payload from this peer kept being materialised, so it is copied for a while") \
	X(DIRECTION_OFF, "direction-off", "anchoring is switched off for this direction or listener")                  \
	X(SWITCHED_OFF, "switched-off", "the engine was switched off at run time")                                     \
	X(EXIT_FILE, "exit-file", "materialised: the payload was written to a file")                                   \
	X(EXIT_TLS, "exit-tls", "materialised: the payload was handed to a TLS library")                               \
	X(EXIT_DEFLATE, "exit-deflate", "materialised: the payload was handed to a compressor")                        \
	X(EXIT_OTHER, "exit-other", "materialised: the payload left by another descriptor than a TCP socket")          \
	X(EXIT_UNSPLICEABLE, "exit-unspliceable", "materialised: the receiving socket does not take spliced pages")    \
	X(INTERNAL, "internal", "the engine met a state it does not trust and went back to copying")                    \
	X(ROUTE_UNPROVEN, "route-unproven", "uploads to this listener were not seen to leave as they came, so they are copied")

#define UD_REASON_ENUM_(constant, name, text) UD_REASON_##constant,
enum ud_reason { UD_REASONS(UD_REASON_ENUM_) UD_REASON_COUNT };
#undef UD_REASON_ENUM_

/* Room for reasons to come without a new layout. */
#define UD_REASON_SLOTS 32

/* Counters of one connection role; index: enum ud_role of underdeck_protocol.h (0 accepted, 1 connected),
 * by the socket that the payload was RECEIVED on. */
struct ud_stats_role {
	uint64_t connections;                      /* connections seen */
	uint64_t messages;                         /* messages with a body */
	uint64_t messages_anchored;                /* of these: at least one byte anchored */
	uint64_t messages_copied;                  /* of these: every byte copied */
	uint64_t bytes_anchored;                   /* payload bytes that stayed in the kernel on receive */
	uint64_t bytes_copied;                     /* payload bytes copied to the process on receive */
	uint64_t bytes_forwarded;                  /* anchored bytes that left by splice, never copied */
	uint64_t bytes_materialised;               /* anchored bytes that had to be copied after all */
	uint64_t bytes_dropped;                    /* anchored bytes that the process never sent */
	uint64_t copied_by_reason[UD_REASON_SLOTS];       /* bytes, receive side */
	uint64_t materialised_by_reason[UD_REASON_SLOTS]; /* bytes, exit side */
};

struct ud_stats {
	uint64_t magic;
	uint64_t version;
	uint64_t pid;
	uint64_t started_realtime_ns; /* CLOCK_REALTIME when the engine started in this process */
	uint64_t enabled;             /* (gauge) 1 while the engine anchors, 0 when switched off */
	uint64_t anchors_open;        /* (gauge) */
	uint64_t anchors_open_max;
	uint64_t bytes_held;          /* (gauge) bytes in pipes now */
	uint64_t bytes_held_max;
	uint64_t pipes_open;          /* (gauge) */
	uint64_t pipes_open_max;
	uint64_t resets;              /* connections that the engine had to reset: must be 0 */
	uint64_t panics;              /* panics caught at the border: must be 0 */
	uint64_t reserved[3];
	struct ud_stats_role role[2];
	char protocol[16];            /* name of the protocol program, zero-terminated */
};

_Static_assert(UD_REASON_COUNT <= UD_REASON_SLOTS, "reasons fit");
_Static_assert(sizeof(struct ud_stats_role) == 8 * (9 + 2 * UD_REASON_SLOTS), "words only");
_Static_assert(sizeof(struct ud_stats) == 8 * 16 + 2 * sizeof(struct ud_stats_role) + 16, "no padding");
_Static_assert(sizeof(struct ud_stats) <= 4096, "one page");

#endif
