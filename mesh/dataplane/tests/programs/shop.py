"""A client of Python's requests: "client HOST:PORT". It knows the paths of tests/support/backend.rs."""
import sys
import requests

service = sys.argv[2]
url = 'http://' + service
session = requests.Session()
session.trust_env = False
session.headers['Host'] = 'shop.test'


def pattern(size):
    return bytes(97 + (at + at // 26 * 7) % 26 for at in range(size))


def pieces(body):
    for at in range(0, len(body), 10000):
        yield body[at:at + 10000]


for turn in range(30):
    size = 2000000 if turn == 7 else turn * 6007 % 150000
    wanted = pattern(size)
    for path in ('/size/%d' % size, '/chunked/%d' % size):
        got = session.get(url + path, timeout=60)
        assert got.status_code == 200 and got.content == wanted, (path, got.status_code, len(got.content))
        with session.get(url + path, timeout=60, stream=True) as got:
            slow = b''.join(got.iter_content(777))
        assert slow == wanted, (path, len(slow))
    for body in (wanted, pieces(wanted)):
        got = session.post(url + '/up', data=body, timeout=60)
        assert got.text.endswith('body %d 1' % size), (size, got.text[:200])
    assert session.head(url + '/size/5000', timeout=60).headers['content-length'] == '5000'
    assert session.get(url + '/forbidden', timeout=60).status_code == 403
    assert session.get(url + '/old', timeout=60, allow_redirects=False).status_code == 301
    assert session.get(url + '/envoy', timeout=60).status_code == 200
pools = session.get_adapter(url).poolmanager.pools
all_pools = [pools[key] for key in pools.keys()]
print('reused', sum(pool.num_requests - pool.num_connections for pool in all_pools))
