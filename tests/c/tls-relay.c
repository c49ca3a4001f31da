/* Answers one HTTPS request with what a backend answers, by SSL_read_ex(3) and SSL_write_ex(3): `tls-relay CERT KEY PORT`.
 * Says `port N`, and `done` at the end; then it waits for the end of its input, so that its counters can be read. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char buffer[65536];

static int fail(const char *what)
{
	perror(what);
	return 1;
}

static struct sockaddr_in loopback(int port)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(port) };
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	return address;
}

/* A connection to the backend that has the first request of the client. */
static int ask(SSL *client, int port)
{
	struct sockaddr_in address = loopback(port);
	int backend = socket(AF_INET, SOCK_STREAM, 0);
	size_t size = 0;

	if (backend < 0 || connect(backend, (struct sockaddr *)&address, sizeof(address)) != 0)
		return -1;
	while (!size || memcmp(buffer + size - 4, "\r\n\r\n", 4)) {
		size_t n;
		if (SSL_read_ex(client, buffer + size, sizeof(buffer) - size, &n) != 1)
			return -1;
		size += n;
	}
	if (write(backend, buffer, size) != (ssize_t)size || fcntl(backend, F_SETFL, O_NONBLOCK) != 0)
		return -1;
	return backend;
}

int main(int count, char **arguments)
{
	struct sockaddr_in address = loopback(0);
	socklen_t length = sizeof(address);
	int listener = socket(AF_INET, SOCK_STREAM, 0);
	SSL_CTX *context = SSL_CTX_new(TLS_server_method());
	SSL *client;
	int backend;

	if (count != 4 || SSL_CTX_use_certificate_file(context, arguments[1], SSL_FILETYPE_PEM) != 1 ||
	    SSL_CTX_use_PrivateKey_file(context, arguments[2], SSL_FILETYPE_PEM) != 1)
		return 2;
	if (bind(listener, (struct sockaddr *)&address, length) != 0 || listen(listener, 1) != 0 ||
	    getsockname(listener, (struct sockaddr *)&address, &length) != 0)
		return fail("listen");
	printf("port %d\n", ntohs(address.sin_port));
	fflush(stdout);
	client = SSL_new(context);
	if (SSL_set_fd(client, accept(listener, NULL, NULL)) != 1 || SSL_accept(client) != 1)
		return fail("accept");
	backend = ask(client, atoi(arguments[3]));
	if (backend < 0)
		return fail("ask");
	for (;;) {
		struct pollfd wait = { .fd = backend, .events = POLLIN };
		ssize_t n;
		size_t written = 0;

		poll(&wait, 1, -1);
		n = read(backend, buffer, sizeof(buffer));
		if (n == 0)
			break;
		if (n > 0 && (SSL_write_ex(client, buffer, n, &written) != 1 || written != (size_t)n))
			return fail("SSL_write_ex");
	}
	SSL_shutdown(client);
	close(SSL_get_fd(client));
	printf("done\n");
	fflush(stdout);
	while (read(0, buffer, sizeof(buffer)) > 0)
		;
	return 0;
}
