/* SPDX-License-Identifier: Apache-2.0 */
/* Generated from handoff/c/src by its tests: UNDERDECK_UPDATE=1 cargo test -p underdeck-handoff-c --test header */
/*
 * Hands a live TCP connection to another host and takes it back.
 *
 *   balancer                                        backend
 *   --------                                        -------
 *   ud_handoff_block(steer, local, peer)
 *   ud_handoff_freeze(fd, blob, length, &frozen)
 *   ud_handoff_encode(frozen, &bytes, &length) -->  ud_handoff_decode(bytes, length, &snapshot)
 *                                                   ud_handoff_thaw(snapshot, own, &thawing)
 *                                                   ud_handoff_rewrite_source(steer, own, peer, local)
 *                                                   ud_handoff_block(steer, own, peer)
 *                                                   ud_handoff_half_close(thawing)
 *   ud_handoff_redirect(steer, local, peer, own) <- ready
 *   ud_handoff_release(frozen)                  --> ud_handoff_unblock(steer, own, peer)
 *                                                   ud_handoff_finish(thawing, &fd)
 *
 * local and peer are the addresses of the connection as the client's packets have them, own is an address and port of the
 * backend. On any failure before the release: the balancer calls ud_handoff_unblock(steer, local, peer), then
 * ud_handoff_resume(frozen, &fd), and the connection goes on there; the backend calls ud_handoff_abandon, then
 * ud_handoff_unblock and ud_handoff_keep_source. The backend's block is what makes that safe: a connection that is not
 * finished acknowledges what arrives, and when it is given up then, nobody has that data.
 *
 * The way back:
 *
 *   balancer                                        backend
 *   --------                                        -------
 *                                                   ud_handoff_block(steer, own, peer)
 *                                                   ud_handoff_freeze(fd, blob, length, &frozen)
 *   ud_handoff_decode(bytes, length, &snapshot) <-- ud_handoff_encode(frozen, &bytes, &length)
 *   ud_handoff_thaw(snapshot, local, &thawing)
 *   ud_handoff_half_close(thawing)
 *   ud_handoff_unblock(steer, local, peer)
 *   ud_handoff_finish(thawing, &fd)             --> ud_handoff_keep_source(steer, own, peer)
 *                                                   ud_handoff_release(frozen)
 *                                                   ud_handoff_unblock(steer, own, peer)
 *
 * If the balancer fails before it ends the redirection, the backend calls ud_handoff_unblock and ud_handoff_resume.
 *
 * Calls return 0 or an error of enum ud_handoff_error; ud_handoff_message() says more. Objects belong to the caller until
 * a call that is said to consume them, which it does whether it fails or not, unless it says otherwise. They may be used
 * by any thread, by one at a time; a steer by several. All calls are made in the network namespace of the connection, and
 * need CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF. Link with -lunderdeck_handoff, and for the static library also with
 * -lelf -lz -lpthread -ldl -lm.
 */


#ifndef UNDERDECK_HANDOFF_H
#define UNDERDECK_HANDOFF_H

#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

/**
 * Why a call failed.
 */
enum ud_handoff_error {
  /**
   * It did not fail.
   */
  UD_HANDOFF_ERROR_OK = 0,
  /**
   * A pointer is NULL, a name is no UTF-8, or an address is neither IPv4 nor IPv6.
   */
  UD_HANDOFF_ERROR_ARGUMENT = 1,
  /**
   * A capability is missing.
   */
  UD_HANDOFF_ERROR_PRIVILEGE = 2,
  /**
   * The descriptor is no TCP socket, or the connection is in a state that cannot be handed over.
   */
  UD_HANDOFF_ERROR_STATE = 3,
  /**
   * The connection kept changing while it was read: block its packets first.
   */
  UD_HANDOFF_ERROR_MOVING = 4,
  /**
   * The address and port are taken towards this peer: try another port.
   */
  UD_HANDOFF_ERROR_ADDRESS_IN_USE = 5,
  /**
   * The address is not this host's, or there is no route.
   */
  UD_HANDOFF_ERROR_ADDRESS = 6,
  /**
   * The bytes are no snapshot, or one of a newer version.
   */
  UD_HANDOFF_ERROR_SNAPSHOT = 7,
  /**
   * Kernel TLS is missing, or a record is under way.
   */
  UD_HANDOFF_ERROR_KTLS = 8,
  /**
   * There is no room for another flow.
   */
  UD_HANDOFF_ERROR_FULL = 9,
  /**
   * A system call failed, or the kernel lacks something.
   */
  UD_HANDOFF_ERROR_SYSTEM = 10,
  /**
   * A fault of this library. The object that was passed must not be used again.
   */
  UD_HANDOFF_ERROR_INTERNAL = 11,
};

/**
 * A connection that was read, and whose socket waits.
 */
struct ud_handoff_frozen;

/**
 * The state of a connection.
 */
struct ud_handoff_snapshot;

/**
 * Programs at the hooks of some interfaces.
 */
struct ud_handoff_steer;

/**
 * A restored connection that does not send yet.
 */
struct ud_handoff_thawing;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * What the last call that failed on this thread has to say. Valid until the next call on this thread.
 */
const char *ud_handoff_message(void);

/**
 * Freezes a connection. `blob` travels with it; NULL and 0 for none.
 *
 * Success consumes `fd`: the library owns it. After an error it is the caller's, and the connection goes on.
 */
enum ud_handoff_error ud_handoff_freeze(int fd, const uint8_t *blob, size_t length, struct ud_handoff_frozen **frozen);

/**
 * The snapshot as bytes for another host. They hold payload and may hold keys: send them encrypted. Free them with
 * ud_handoff_free_bytes.
 */
enum ud_handoff_error ud_handoff_encode(const struct ud_handoff_frozen *frozen, uint8_t **bytes, size_t *length);

/**
 * Frees what ud_handoff_encode gave.
 */
void ud_handoff_free_bytes(uint8_t *bytes, size_t length);

/**
 * Rolls back: the connection goes on here under `*fd`, and sends the first unacknowledged segment again. Consumes `frozen`.
 */
enum ud_handoff_error ud_handoff_resume(struct ud_handoff_frozen *frozen,
                                        int *fd);

/**
 * Closes the socket without a word to the peer: the connection lives elsewhere. Consumes `frozen`.
 */
enum ud_handoff_error ud_handoff_release(struct ud_handoff_frozen *frozen);

/**
 * Reads what ud_handoff_encode wrote.
 */
enum ud_handoff_error ud_handoff_decode(const uint8_t *bytes, size_t length, struct ud_handoff_snapshot **snapshot);

/**
 * The addresses that the connection had where it was frozen.
 */
enum ud_handoff_error ud_handoff_addresses(const struct ud_handoff_snapshot *snapshot,
                                           struct sockaddr_storage *local,
                                           struct sockaddr_storage *peer);

/**
 * The blob that was given to ud_handoff_freeze. It belongs to the snapshot.
 */
enum ud_handoff_error ud_handoff_blob(const struct ud_handoff_snapshot *snapshot, const uint8_t **blob, size_t *length);

/**
 * Frees a snapshot.
 */
void ud_handoff_free_snapshot(struct ud_handoff_snapshot *snapshot);

/**
 * Restores a connection at `local`, an address and port of this host. It does not send yet.
 */
enum ud_handoff_error ud_handoff_thaw(const struct ud_handoff_snapshot *snapshot,
                                      const struct sockaddr_storage *local,
                                      struct ud_handoff_thawing **thawing);

/**
 * Brings a restored connection into the state in which it was, if one side has closed. After this, nothing that depends
 * on the connection can fail. Nothing to do for others. Needs the loopback device, and a source rule or a block.
 *
 * UD_HANDOFF_ERROR_STATE if it did not come about: give the connection up then. The object stays the caller's.
 */
enum ud_handoff_error ud_handoff_half_close(struct ud_handoff_thawing *thawing);

/**
 * Lets a restored connection go on under `*fd`, which is in non-blocking mode and closes on exec: sends what was unsent,
 * and the first unacknowledged segment again. Does what ud_handoff_half_close does, if that was not called. Consumes
 * `thawing`.
 */
enum ud_handoff_error ud_handoff_finish(struct ud_handoff_thawing *thawing,
                                        int *fd);

/**
 * Gives a restored connection up, without a word to the peer. Consumes `thawing`.
 */
void ud_handoff_abandon(struct ud_handoff_thawing *thawing);

/**
 * Attaches to an interface of the calling thread's network namespace, with room for `capacity` flows. `pin` is NULL, or
 * a folder in a BPF file system in which the rules outlive the process.
 */
enum ud_handoff_error ud_handoff_attach(const char *interface,
                                        uint32_t capacity,
                                        const char *pin,
                                        struct ud_handoff_steer **steer);

/**
 * Takes everything back, and frees `steer`. With `keep` other than 0, pinned rules stay.
 */
void ud_handoff_detach(struct ud_handoff_steer *steer, int32_t keep);

/**
 * Silences a flow in both directions, except for packets to the peer that have a source rule.
 */
enum ud_handoff_error ud_handoff_block(const struct ud_handoff_steer *steer,
                                       const struct sockaddr_storage *local,
                                       const struct sockaddr_storage *peer);

/**
 * Sends the peer's packets to `target` instead, in place of a block.
 */
enum ud_handoff_error ud_handoff_redirect(const struct ud_handoff_steer *steer,
                                          const struct sockaddr_storage *local,
                                          const struct sockaddr_storage *peer,
                                          const struct sockaddr_storage *target);

/**
 * Gives packets to the peer the source `source`: the address and port that the peer knows.
 */
enum ud_handoff_error ud_handoff_rewrite_source(const struct ud_handoff_steer *steer,
                                                const struct sockaddr_storage *local,
                                                const struct sockaddr_storage *peer,
                                                const struct sockaddr_storage *source);

/**
 * Ends a block or a redirection. Nothing happens if there is none.
 */
enum ud_handoff_error ud_handoff_unblock(const struct ud_handoff_steer *steer,
                                         const struct sockaddr_storage *local,
                                         const struct sockaddr_storage *peer);

/**
 * Ends ud_handoff_rewrite_source. Nothing happens if there is no such rule.
 */
enum ud_handoff_error ud_handoff_keep_source(const struct ud_handoff_steer *steer,
                                             const struct sockaddr_storage *local,
                                             const struct sockaddr_storage *peer);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* UNDERDECK_HANDOFF_H */
