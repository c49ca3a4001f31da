/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Takes one connection through all steps of a handoff, in one process and one network namespace. It shows the order of
 * calls; between hosts, the bytes of ud_handoff_encode travel over an encrypted channel, and a redirection and a source
 * rule make up for the change of address.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "underdeck_handoff.h"

static void check(enum ud_handoff_error error, const char *call)
{
	if (error == UD_HANDOFF_ERROR_OK)
		return;
	fprintf(stderr, "%s: error %d: %s\n", call, (int)error, ud_handoff_message());
	exit(1);
}

static void must(int holds, const char *what)
{
	if (holds)
		return;
	perror(what);
	exit(1);
}

static void talk(int from, int to, const char *text)
{
	char got[64] = "";
	struct pollfd ready = { .fd = to, .events = POLLIN };

	must(write(from, text, strlen(text)) == (ssize_t)strlen(text), "write");
	must(poll(&ready, 1, 20000) == 1, "poll");
	must(read(to, got, sizeof(got) - 1) == (ssize_t)strlen(text), "read");
	must(!strcmp(got, text), "the same bytes");
}

/* Both ends of a connection on the loopback device. */
static int connect_to_self(int *server)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t length = sizeof(address);
	int listener = socket(AF_INET, SOCK_STREAM, 0), client = socket(AF_INET, SOCK_STREAM, 0);

	must(listener >= 0 && client >= 0, "socket");
	must(!bind(listener, (struct sockaddr *)&address, length) && !listen(listener, 1), "listen");
	must(!getsockname(listener, (struct sockaddr *)&address, &length), "getsockname");
	must(!connect(client, (struct sockaddr *)&address, length), "connect");
	*server = accept(listener, NULL, NULL);
	must(*server >= 0, "accept");
	close(listener);
	return client;
}

/* From one socket to another at the same address: what happens to a connection on each of its ways. */
static int move(struct ud_handoff_steer *steer, int fd, const char *request)
{
	struct ud_handoff_frozen *frozen;
	struct ud_handoff_snapshot *snapshot;
	struct ud_handoff_thawing *thawing;
	struct sockaddr_storage local, peer;
	socklen_t length = sizeof(local);
	const uint8_t *blob;
	uint8_t *bytes;
	size_t size, blob_size;

	must(!getsockname(fd, (struct sockaddr *)&local, &length), "getsockname");
	length = sizeof(peer);
	must(!getpeername(fd, (struct sockaddr *)&peer, &length), "getpeername");

	check(ud_handoff_block(steer, &local, &peer), "block");
	check(ud_handoff_freeze(fd, (const uint8_t *)request, strlen(request), &frozen), "freeze");
	check(ud_handoff_encode(frozen, &bytes, &size), "encode");
	check(ud_handoff_decode(bytes, size, &snapshot), "decode");
	ud_handoff_free_bytes(bytes, size);

	check(ud_handoff_blob(snapshot, &blob, &blob_size), "blob");
	must(blob_size == strlen(request) && !memcmp(blob, request, blob_size), "the blob has travelled");
	check(ud_handoff_addresses(snapshot, &local, &peer), "addresses");

	/* The frozen socket still has the address: this is the error that another port or host solves. */
	must(ud_handoff_thaw(snapshot, &local, &thawing) == UD_HANDOFF_ERROR_ADDRESS_IN_USE, "it is in use");
	must(strstr(ud_handoff_message(), "already connected") != NULL, "the message says so");

	check(ud_handoff_release(frozen), "release");
	check(ud_handoff_thaw(snapshot, &local, &thawing), "thaw");
	check(ud_handoff_half_close(thawing), "half_close");
	check(ud_handoff_unblock(steer, &local, &peer), "unblock");
	check(ud_handoff_finish(thawing, &fd), "finish");
	ud_handoff_free_snapshot(snapshot);
	return fd;
}

int main(void)
{
	struct ud_handoff_steer *steer;
	struct ud_handoff_frozen *frozen;
	int server, client = connect_to_self(&server);

	check(ud_handoff_attach("lo", 16, NULL, &steer), "attach");
	talk(client, server, "before");
	server = move(steer, server, "GET / HTTP/1.1\r\n\r\n");
	talk(client, server, "request");
	talk(server, client, "response");

	/* A way back at any time before the release. */
	check(ud_handoff_freeze(server, NULL, 0, &frozen), "freeze");
	check(ud_handoff_resume(frozen, &server), "resume");
	talk(server, client, "after");

	must(ud_handoff_freeze(-1, NULL, 0, &frozen) == UD_HANDOFF_ERROR_ARGUMENT, "a bad descriptor is refused");
	ud_handoff_detach(steer, 0);
	close(server);
	close(client);
	puts("handed over");
	return 0;
}
