"""Long bodies with asyncio, whose sockets do not block: long.py HOST:PORT SIZE SNDBUF. Everything on one connection."""
import asyncio
import hashlib
import socket
import sys

# The bytes of the server's bodies come again after so many.
BLOCK = bytes(ord('a') + (at + at // 26 * 7) % 26 for at in range(676))


def body(size):
    return (BLOCK * (size // len(BLOCK) + 1))[:size]


async def response(reader):
    head = (await reader.readuntil(b'\r\n\r\n')).decode().lower()
    assert head.startswith('http/1.1 200 '), head
    if 'transfer-encoding: chunked' in head:
        parts = []
        while size := int(await reader.readline(), 16):
            parts.append((await reader.readexactly(size + 2))[:size])
        assert await reader.readline() == b'\r\n'
        return b''.join(parts)
    length = next(line for line in head.split('\r\n') if line.startswith('content-length:'))
    return await reader.readexactly(int(length.split(':')[1]))


async def main(address, size, sndbuf):
    host, port = address.split(':')
    raw = socket.socket()
    if sndbuf:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, sndbuf)
    raw.setblocking(False)
    await asyncio.get_running_loop().sock_connect(raw, (host, int(port)))
    reader, writer = await asyncio.open_connection(sock=raw, limit=1 << 20)
    wanted = hashlib.sha256(body(size)).hexdigest()

    async def few():
        for turn in range(10):
            writer.write(b'GET /size/1000 HTTP/1.1\r\nHost: shop.test\r\n\r\n')
            assert await response(reader) == body(1000), turn

    async def down(path):
        writer.write(f'GET /{path}/{size} HTTP/1.1\r\nHost: shop.test\r\n\r\n'.encode())
        got = hashlib.sha256(await response(reader)).hexdigest()
        assert got == wanted, path

    async def up(framing, pieces):
        head = f'POST /up HTTP/1.1\r\nHost: shop.test\r\n{framing}\r\n\r\n'.encode()
        for piece in pieces:
            writer.write(head + piece)
            head = b''
            await writer.drain()
        text = (await response(reader)).decode()
        assert text.endswith(f'|body {size} 1'), text[-100:]

    def chunks():
        whole = body(size)
        for at in range(0, size, 300_000):
            piece = whole[at:at + 300_000]
            yield b'%x\r\n' % len(piece) + piece + b'\r\n'
        yield b'0\r\n\r\n'

    await few()
    await down('size')
    await few()
    await down('chunked')
    await few()
    await up(f'Content-Length: {size}', [body(size)])
    await few()
    await up('Transfer-Encoding: chunked', chunks())
    await few()
    print(size, 'four times')


asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
