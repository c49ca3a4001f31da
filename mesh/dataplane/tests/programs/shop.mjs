// A client and a server of Node: "client HOST:PORT" or "server". Both know the paths of tests/support/backend.rs.
import http from 'node:http';

const pattern = (size) => {
  const out = Buffer.alloc(size);
  for (let at = 0; at < size; at++) out[at] = 97 + (at + Math.floor(at / 26) * 7) % 26;
  return out;
};

const check = (holds, what) => {
  if (!holds) throw new Error(what);
};

const agent = new http.Agent({ keepAlive: true, maxSockets: 4 });
let reused = 0;

// `how`: length, chunked or expect.
const ask = (service, method, path, body, how) => new Promise((done, failed) => {
  const [host, port] = service.split(':');
  const headers = { host: 'shop.test' };
  if (body && how !== 'chunked') headers['content-length'] = body.length;
  if (how === 'expect') headers.expect = '100-continue';
  const request = http.request({ host, port, method, path, headers, agent, timeout: 60000 }, (response) => {
    const pieces = [];
    response.on('data', (piece) => pieces.push(piece));
    response.on('end', () => done({ status: response.statusCode, body: Buffer.concat(pieces) }));
    response.on('error', failed);
  });
  request.on('socket', () => { reused += request.reusedSocket ? 1 : 0; });
  request.on('timeout', () => failed(new Error(`${path}: timeout`)));
  request.on('error', (error) => failed(new Error(`${method} ${path}: ${error}`)));
  if (how === 'expect') {
    request.flushHeaders();
    request.on('continue', () => request.end(body));
  } else {
    for (let at = 0; body && at < body.length; at += 10000) request.write(body.subarray(at, at + 10000));
    request.end();
  }
});

const turns = async (service, worker) => {
  for (let turn = 0; turn < 20; turn++) {
    const size = turn === 7 ? 3000000 : (worker * 7919 + turn * 4099) % 150000;
    const wanted = pattern(size);
    for (const path of [`/size/${size}`, `/chunked/${size}`]) {
      const { status, body } = await ask(service, 'GET', path);
      check(status === 200 && body.equals(wanted), `${path}: ${status}, ${body.length} bytes`);
    }
    for (const how of ['length', 'chunked', ...(size ? ['expect'] : [])]) {
      const { body } = await ask(service, 'POST', '/up', wanted, how);
      check(body.toString().endsWith(`body ${size} 1`), `${how} of ${size}: ${body.subarray(0, 200)}`);
    }
    check((await ask(service, 'HEAD', '/size/5000')).body.length === 0, 'HEAD');
    check((await ask(service, 'GET', '/forbidden')).status === 403, '/forbidden');
    check((await ask(service, 'GET', '/old')).status === 301, '/old');
    check((await ask(service, 'GET', '/envoy')).status === 200, '/envoy');
  }
};

// fetch has a client of its own, and does not let itself be told the host: /size is not of the shop then.
const fetches = async (service) => {
  for (let turn = 0; turn < 40; turn++) {
    const answer = await fetch(`http://${service}/anything`, { method: turn % 2 ? 'POST' : 'GET', body: turn % 2 ? 'x'.repeat(turn * 1000) : undefined });
    await answer.arrayBuffer();
    check(answer.status === 404, `fetch: ${answer.status}`);
  }
};

const client = async (service) => {
  await Promise.all([0, 1, 2, 3, 4, 5].map((worker) => turns(service, worker)));
  await fetches(service);
  console.log('reused', reused);
  process.exit(0);
};

const server = () => {
  const listener = http.createServer((request, response) => {
    const [what, size] = request.url.split('/').slice(-2);
    if (what === 'size') return response.end(pattern(Number(size)));
    if (what === 'chunked') {
      response.write(pattern(Number(size)).subarray(0, 10));
      return response.end(pattern(Number(size)).subarray(10));
    }
    const pieces = [];
    request.on('data', (piece) => pieces.push(piece));
    request.on('end', () => {
      const body = Buffer.concat(pieces);
      response.end(`${request.method} ${request.url} HTTP/1.1|body ${body.length} ${body.equals(pattern(body.length)) ? 1 : 0}`);
    });
  });
  listener.listen(0, '127.0.0.1', () => console.log(`127.0.0.1:${listener.address().port}`));
  // It ends with its parent, which holds the other end.
  process.stdin.resume().on('end', () => process.exit(0));
};

if (process.argv[2] === 'server') server(); else await client(process.argv[3]);
